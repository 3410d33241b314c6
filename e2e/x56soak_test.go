package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/testenv"
)

const (
	soakSandboxes = 500 // at most one in a second of the soak's hour
	soakCells     = 6   // at once, by the ceiling
	soakQueue     = 2   // requests that wait for one
	soakCrowd     = 25  // every so many visits a crowd comes in the place of one sandbox
)

// soakHour is how long 500 sandboxes are spread over: an hour in the soak, two minutes
// otherwise, or PANDO_SOAK_HOUR.
func soakHour(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PANDO_SOAK_HOUR")
	switch {
	case text == "" && os.Getenv("E2E_SOAK") != "":
		return time.Hour
	case text == "":
		return 2 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 10*time.Second {
		t.Fatalf("PANDO_SOAK_HOUR is %q: say how long the soak's hour is, 10s or more, as in 2m", text)
	}
	return d
}

// TestX56AnHourOfSandboxes: 500 sandboxes in an hour, each used through E2B's protocol and
// REST (code, files, a command, a port), some paused and resumed, some killed, some at the end
// of their time, some refused by the ceiling, leave nothing behind: no process, mount, cgroup,
// descriptor, memory, file or record.
func TestX56AnHourOfSandboxes(t *testing.T) {
	testenv.Python(t)
	rootHasRunIt(t)
	hour := soakHour(t)
	many := min(soakSandboxes, int(hour/time.Second))
	h := newHost(t)
	ceilings := filepath.Join(h.work, "ceilings.yaml")
	h.writeAt(ceilings, fmt.Sprintf("version: 1\nqueue: {length: %d, wait: 2s}\ndoors: {e2b: {cells: %d, keep: 1s, default: {memory: 256M}}}\n", soakQueue, soakCells))
	h.must(os.Chmod(ceilings, 0o600))
	d := serving(t, h, "--ceilings", ceilings)
	s := &soak{h: h, url: d.URLs[0], token: d.Token, serve: d.pid, did: map[string]int{},
		rest: client.New(client.Config{Host: d.URLs[0], Token: d.Token})}

	// Once through everything, so that what is made once is there.
	for i := range soakCrowd {
		s.visit(t.Context(), i)
	}
	before := s.settled()
	s.did, s.took = map[string]int{}, nil
	t.Logf("at the beginning: %v", before)

	tick := time.NewTicker(hour / time.Duration(many))
	defer tick.Stop()
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() { s.visit(t.Context(), i) })
		if i%100 == 99 {
			t.Logf("%d of %d: %v", i+1, many, s.counts())
		}
		<-tick.C
	}
	all.Wait()
	after := s.settled()
	t.Logf("at the end: %v", after)

	slices.Sort(s.took)
	if len(s.took) == 0 || s.did["crowd"] == 0 && many >= soakCrowd {
		t.Fatalf("nothing was done: %v", s.did)
	}
	t.Logf("%d sandboxes in %v: %v; create: median %v, 99th percentile %v, longest %v", many, hour, s.did,
		s.took[len(s.took)/2], s.took[len(s.took)*99/100], s.took[len(s.took)-1])
	for _, what := range []string{"used", "paused and resumed", "killed", "ended by its time", "paused by its time", "refused"} {
		if s.did[what] == 0 {
			t.Errorf("no sandbox was %s", what)
		}
	}
	for what, n := range after {
		if more := n - before[what]; more > s.mayGrow(what) {
			t.Errorf("%d more %s than before (%d)", more, what, n)
		}
	}
	for _, c := range h.cells() {
		t.Errorf("sandbox %s (%s, %+v) is left", c.ID, c.State, c.Lease)
	}
	if left := h.leftovers(); left != nil {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}

// soak makes sandboxes at one daemon, many at once.
type soak struct {
	h          *host
	url, token string
	serve      int // the process of pando serve
	rest       *client.Client

	mu   sync.Mutex // guards what follows
	did  map[string]int
	took []time.Duration // of creating a sandbox
}

func (s *soak) done(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did[what]++
}

func (s *soak) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.did)
}

// soakBox is a sandbox as E2B's clients know it.
type soakBox struct {
	ID    string `json:"sandboxID"`
	Token string `json:"envdAccessToken"`
}

// ports of a sandbox that E2B's protocol gives a meaning, and one of a program.
const envdPort, interpreterPort, soakPort = "49983", "49999", "8123"

// ask sends a request to the control plane, or with a port to a sandbox.
func (s *soak) ask(ctx context.Context, method, path, port string, box soakBox, body string) (int, []byte, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if port == "" {
		r.Header.Set("X-Api-Key", s.token)
	} else {
		r.Header.Set("E2b-Sandbox-Id", box.ID)
		r.Header.Set("E2b-Sandbox-Port", port)
		r.Header.Set("X-Access-Token", box.Token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, resp.Header, err
}

// wants is ask where one status is right.
func (s *soak) wants(ctx context.Context, status int, method, path, port string, box soakBox, body string) ([]byte, error) {
	code, b, _, err := s.ask(ctx, method, path, port, box, body)
	if err == nil && code != status {
		err = fmt.Errorf("%s %s: %d instead of %d: %.300s", method, path, code, status, b)
	}
	return b, err
}

var errRefused = errors.New("refused by the ceiling")

// create makes a sandbox. A refusal by the ceiling is errRefused, and has to say when to
// try again.
func (s *soak) create(ctx context.Context, body string) (box soakBox, err error) {
	began := time.Now()
	code, b, head, err := s.ask(ctx, "POST", "/v2/sandboxes", "", box, body)
	switch {
	case err != nil:
	case code == http.StatusTooManyRequests:
		if n, err := strconv.Atoi(head.Get("Retry-After")); err != nil || n < 1 || !bytes.Contains(b, []byte("door e2b")) {
			return box, fmt.Errorf("refused with Retry-After %q: %s", head.Get("Retry-After"), b)
		}
		s.done("refused")
		err = errRefused
	case code != http.StatusCreated:
		err = fmt.Errorf("%d: %s", code, b)
	default:
		err = json.Unmarshal(b, &box)
		s.mu.Lock()
		s.took = append(s.took, time.Since(began))
		s.mu.Unlock()
	}
	return box, err
}

// visit makes a sandbox, again after refusals, uses it and lets it end in the way that i says.
func (s *soak) visit(ctx context.Context, i int) {
	if i%soakCrowd == soakCrowd-1 {
		s.crowd(ctx)
		return
	}
	body := fmt.Sprintf(`{"templateID":"base","timeout":300,"autoPause":%v,"metadata":{"visit":"%d"}}`, i%4 == 3, i)
	box, err := s.create(ctx, body)
	for end := time.Now().Add(testenv.Patience()); errors.Is(err, errRefused) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Second)
		box, err = s.create(ctx, body)
	}
	if err != nil {
		s.h.t.Errorf("sandbox %d: %v", i, err)
		return
	}
	end := "killed"
	err = s.use(ctx, box, i)
	if err == nil && i%4 == 1 {
		err = s.pause(ctx, box)
	}
	switch at := "/sandboxes/" + box.ID; {
	case err == nil && i%4 == 2, err == nil && i%4 == 3:
		end = "ended by its time"
		if i%4 == 3 {
			end = "paused by its time" // and kept for a second
		}
		_, err = s.wants(ctx, http.StatusNoContent, "POST", at+"/timeout", "", box, `{"timeout":1}`)
	default:
		_, kill := s.wants(ctx, http.StatusNoContent, "DELETE", at, "", box, "")
		err = errors.Join(err, kill)
	}
	if err != nil {
		s.h.t.Errorf("in sandbox %d: %v", i, err)
		return
	}
	s.done(end)
}

// crowd asks for more sandboxes at once than there may be and than may wait, and keeps each
// until all have an answer: so at least one is refused.
func (s *soak) crowd(ctx context.Context) {
	var all sync.WaitGroup
	boxes, errs := make([]soakBox, soakCells+soakQueue+1), make([]error, soakCells+soakQueue+1)
	for i := range boxes {
		all.Go(func() {
			boxes[i], errs[i] = s.create(ctx, `{"templateID":"base","timeout":300,"metadata":{"visit":"crowd"}}`)
		})
	}
	all.Wait()
	refused := 0
	for i, box := range boxes {
		if errors.Is(errs[i], errRefused) {
			refused++
			continue
		}
		if errs[i] == nil {
			_, errs[i] = s.wants(ctx, http.StatusNoContent, "DELETE", "/sandboxes/"+box.ID, "", box, "")
		}
		if errs[i] != nil {
			s.h.t.Errorf("in a crowd: %v", errs[i])
		}
	}
	if refused < len(boxes)-soakCells {
		s.h.t.Errorf("of %d sandboxes at once %d were refused; there may be %d", len(boxes), refused, soakCells)
	}
	s.done("crowd")
}

// use has code, files, a command and a port answer.
func (s *soak) use(ctx context.Context, box soakBox, i int) error {
	text := fmt.Sprintf("visit %d\n", i)
	file := "/files?path=" + url.QueryEscape("/tmp/said")
	if _, err := s.wants(ctx, http.StatusOK, "POST", "/execute", interpreterPort, box, fmt.Sprintf(`{"code":"import os; x = %d; open('/tmp/by-code', 'w').write(str(x))"}`, i)); err != nil {
		return err
	}
	if _, err := s.wants(ctx, http.StatusOK, "POST", file, envdPort, box, text); err != nil {
		return err
	}
	if b, err := s.wants(ctx, http.StatusOK, "GET", file, envdPort, box, ""); err != nil || string(b) != text {
		return errors.Join(err, fmt.Errorf("a file says %q", b))
	}
	x, err := s.rest.RunExec(ctx, box.ID, api.ExecRequest{Command: []string{"sh", "-c", "cat /tmp/said /tmp/by-code"}})
	if want := text + strconv.Itoa(i); err != nil || x.ExitCode == nil || *x.ExitCode != 0 || string(x.Stdout) != want {
		return errors.Join(err, fmt.Errorf("a command says %q: %+v", x.Stdout, x))
	}
	if i%2 == 0 {
		if err := s.port(ctx, box, text); err != nil {
			return err
		}
	}
	s.done("used")
	return nil
}

// port starts a server in the sandbox and asks it from outside. It lives as long as the sandbox.
func (s *soak) port(ctx context.Context, box soakBox, want string) error {
	_, err := s.rest.StartExec(ctx, box.ID, api.ExecRequest{Command: []string{"python3", "-m", "http.server", "-d", "/tmp", soakPort}})
	if err != nil {
		return err
	}
	for end := time.Now().Add(testenv.Patience()); ; time.Sleep(20 * time.Millisecond) {
		code, b, _, err := s.ask(ctx, "GET", "/said", soakPort, box, "")
		if err == nil && code == http.StatusOK && string(b) == want {
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("its port says %d, %.200q, %v", code, b, err)
		}
	}
}

// pause pauses a sandbox and goes on with it: its interpreter has what it had.
func (s *soak) pause(ctx context.Context, box soakBox) error {
	if _, err := s.wants(ctx, http.StatusNoContent, "POST", "/sandboxes/"+box.ID+"/pause", "", box, ""); err != nil {
		return err
	}
	for end := time.Now().Add(testenv.Patience()); ; time.Sleep(100 * time.Millisecond) {
		code, b, _, err := s.ask(ctx, "POST", "/sandboxes/"+box.ID+"/connect", "", box, `{"timeout":300}`)
		switch {
		case err == nil && code == http.StatusTooManyRequests && time.Now().Before(end) && ctx.Err() == nil:
			s.done("refused")
			continue
		case err != nil || code/100 != 2:
			return errors.Join(err, fmt.Errorf("resume: %d: %.300s", code, b))
		}
		break
	}
	b, err := s.wants(ctx, http.StatusOK, "POST", "/execute", interpreterPort, box, `{"code":"x - int(open('/tmp/by-code').read())"}`)
	if err != nil || !bytes.Contains(b, []byte(`"text":"0"`)) {
		return errors.Join(err, fmt.Errorf("after a pause code says %.300s", b))
	}
	s.done("paused and resumed")
	return nil
}

// soakRest is for how long nothing may change of what is held before it counts as all that is
// held for good: results of commands can be asked for within a minute of their end, each with
// a goroutine that waits.
const soakRest = 65 * time.Second

// settled is what daemon, serve and state hold at rest: all sandboxes have ended, and what
// was left over is collected.
func (s *soak) settled() map[string]int {
	testenv.Eventually(s.h.t, func() bool { return len(s.h.cells()) == 0 }, "the end of all sandboxes")
	s.h.pando("gc", "--yes")
	http.DefaultClient.CloseIdleConnections()
	var last map[string]int
	since := time.Now()
	for end := since.Add(soakRest + testenv.Patience()); ; time.Sleep(time.Second) {
		now := s.holds()
		steady := maps.Clone(now)
		maps.DeleteFunc(steady, func(what string, _ int) bool { return strings.HasPrefix(what, "MiB resident") || s.logged(what) })
		switch {
		case !maps.Equal(steady, last):
			since = time.Now()
		case time.Since(since) > soakRest:
			return now
		}
		if last = steady; time.Now().After(end) {
			s.h.t.Errorf("what is held changes without an end: %v", now)
			return now
		}
	}
}

// goroutines is the line of the metrics that counts them.
var goroutines = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^pando_daemon_goroutines (\d+)$`) })

// holds counts what holdingsOf does, and what the process of serve and the files of the
// state are.
func (s *soak) holds() map[string]int {
	h := holdingsOf(s.h.work)
	metrics := s.h.pando("daemon", "metrics")
	if m := goroutines().FindStringSubmatch(metrics); m != nil {
		h["goroutines of pando-daemon"], _ = strconv.Atoi(m[1])
	} else {
		s.h.t.Fatalf("the metrics don't count goroutines:\n%s", metrics)
	}
	h["descriptors of serve"] = entries(fmt.Sprintf("/proc/%d/fd", s.serve))
	h["MiB resident of serve"] = residentMiB(s.serve)
	if h["descriptors of serve"] == 0 || h["MiB resident of serve"] == 0 {
		s.h.t.Fatalf("serve (%d) holds nothing: %v", s.serve, h)
	}
	tops, err := os.ReadDir(s.h.state())
	s.h.must(err)
	for _, top := range tops {
		files, size := 0, int64(0)
		filepath.WalkDir(s.h.state(top.Name()), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil
			}
			if st, err := d.Info(); err == nil {
				files++
				size += st.Sys().(*syscall.Stat_t).Blocks * 512
			}
			return nil
		})
		h["files of state/"+top.Name()] = files
		h["KiB of state/"+top.Name()] = int(size >> 10)
	}
	return h
}

// logged reports whether something is the size of a file of the state that grows with what is
// done, and has a bound of its own (docs/howto/operate.md).
func (s *soak) logged(what string) bool {
	for _, log := range []string{"registry.log", "audit.jsonl", "audit-refused.jsonl", "daemon.log", "operations.log", "idempotency.log", "ledger"} {
		if what == "KiB of state/"+log {
			return true
		}
	}
	return false
}

// mayGrow is how much more there may be of something after the hour than before it.
func (s *soak) mayGrow(what string) int {
	switch {
	case strings.HasPrefix(what, "MiB resident"):
		return 64 // heaps breathe, and records of what was done are kept
	case strings.HasPrefix(what, "threads"):
		return 32 // the runtime keeps those it once needed
	case s.logged(what):
		return soakSandboxes * 32 // a sandbox is some lines
	}
	return 0
}
