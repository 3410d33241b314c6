package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
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

// sandboxes asks at the door of E2B.
type sandboxes struct {
	t          *testing.T
	url, token string
}

// ask sends a request, and returns the status, the answer and its headers.
func (s *sandboxes) ask(method, path string, body any) (int, map[string]any, http.Header) {
	s.t.Helper()
	b, _ := json.Marshal(body)
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", s.token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Error(err)
		return 0, nil, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	var out map[string]any
	json.Unmarshal(text, &out)
	return resp.StatusCode, out, resp.Header
}

// X56: the operator's file bounds what programs get; a refusal names the ceiling, where it is
// set, what is in use and when to try again; a daemon that drains makes nothing.
func TestX56CeilingsOfADoor(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	file := filepath.Join(h.work, "ceilings.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte("version: 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("queue: {length: none}\ndoors: {e2b: {cells: 1, max: {memory: 256M}}}\n")
	d := serving(t, h, "--ceilings", file)
	s := &sandboxes{t, d.URLs[0], d.Token}
	code, one, _ := s.ask("POST", "/v2/sandboxes", map[string]any{"templateID": "base", "metadata": map[string]string{"user": "1"}})
	if code != 201 {
		t.Fatalf("%d %v", code, one)
	}
	id := fmt.Sprint(one["sandboxID"])
	if _, info, _ := s.ask("GET", "/sandboxes/"+id, nil); info["memoryMB"] != 256.0 {
		t.Errorf("it has %v MB", info["memoryMB"])
	}
	code, two, head := s.ask("POST", "/v2/sandboxes", map[string]any{"templateID": "base"})
	why := fmt.Sprint(two["message"])
	if n, err := strconv.Atoi(head.Get("Retry-After")); code != 429 || err != nil || n < 1 {
		t.Errorf("%d, Retry-After %q: %s", code, head.Get("Retry-After"), why)
	}
	for _, want := range []string{"1 at once", "door e2b, " + file, "there are 1"} {
		if !strings.Contains(why, want) {
			t.Errorf("the refusal lacks %q: %s", want, why)
		}
	}
	var all api.Overview
	if err := json.Unmarshal([]byte(h.pando("stats", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all.Ceilings, func(c api.Ceiling) bool { return c.For == "door e2b" }); i < 0 || all.Ceilings[i].Cells != 1 || all.Ceilings[i].Refused != 1 || all.Ceilings[i].Max.Memory != 256<<20 {
		t.Errorf("stats: %+v", all.Ceilings)
	}
	if m := h.pando("daemon", "metrics"); !strings.Contains(m, `pando_ceiling_refused_total{for="door e2b"} 1`) {
		t.Error("metrics do not tell of the refusal")
	}
	// A paused one makes room, and goes on when there is some.
	if code, _, _ := s.ask("POST", "/sandboxes/"+id+"/pause", nil); code != 204 {
		t.Errorf("pause: %d", code)
	}
	code, two, _ = s.ask("POST", "/v2/sandboxes", map[string]any{"templateID": "base"})
	if code != 201 {
		t.Fatalf("beside a paused one: %d %v", code, two)
	}
	if code, _, _ := s.ask("POST", "/sandboxes/"+id+"/connect", map[string]any{}); code != 429 {
		t.Errorf("resumed beyond the ceiling: %d", code)
	}
	// Another file is in force when the daemon is told.
	write("queue: {length: none}\ndoors: {e2b: {cells: 2, keep: 1s}}\n")
	var pid struct{ PID int }
	if err := json.Unmarshal([]byte(h.pando("daemon", "status", "--json")), &pid); err != nil || pid.PID == 0 {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid.PID, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		code, _, _ := s.ask("GET", "/sandboxes/"+id, nil)
		return code == 404
	}, "the removal of a paused sandbox after its second")
	h.pando("daemon", "drain")
	if code, out, _ := s.ask("POST", "/v2/sandboxes", map[string]any{"templateID": "base"}); code != 503 || !strings.Contains(fmt.Sprint(out["message"]), "no new work") {
		t.Errorf("a daemon that drains: %d %v", code, out)
	}
	if code, _, _ := s.ask("DELETE", "/sandboxes/"+fmt.Sprint(two["sandboxID"]), nil); code != 204 {
		t.Errorf("what is there can't be removed while the daemon drains: %d", code)
	}
}

// X56: sandboxes that come and go leave nothing behind: killed, timed out, or paused for
// longer than they are kept. The log tells how long creating took. What is used while they
// live, an hour long, is TestX56AnHourOfSandboxes.
func TestX56SandboxesLeaveNothingBehind(t *testing.T) {
	const many, long = 12, 6 // seconds
	t.Parallel()
	rootHasRunIt(t)
	h := newHost(t)
	file := filepath.Join(h.work, "ceilings.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nqueue: {length: 1000, wait: 60s}\ndoors: {e2b: {cells: 8, keep: 1s, default: {memory: 256M}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := serving(t, h, "--ceilings", file)
	s := &sandboxes{t, d.URLs[0], d.Token}
	c := client.New(client.Config{Host: d.URLs[0], Token: d.Token})
	var mu sync.Mutex // guards took
	var took []time.Duration
	visit := func(i int) {
		began := time.Now()
		req := map[string]any{"templateID": "base", "timeout": 300, "metadata": map[string]string{"visit": strconv.Itoa(i)}}
		switch i % 3 {
		case 1:
			req["timeout"], req["autoPause"] = 1, false // it ends by itself
		case 2:
			req["timeout"], req["autoPause"] = 1, true // it is paused then, and kept for a second
		}
		code, box, _ := s.ask("POST", "/v2/sandboxes", req)
		if code != 201 {
			t.Errorf("sandbox %d: %d %v", i, code, box)
			return
		}
		mu.Lock()
		took = append(took, time.Since(began))
		mu.Unlock()
		if i%3 != 0 {
			return
		}
		id := fmt.Sprint(box["sandboxID"])
		if x, err := c.RunExec(t.Context(), id, api.ExecRequest{Command: []string{"sh", "-c", "echo hi > f; cat f"}}); err != nil || x.ExitCode == nil || *x.ExitCode != 0 {
			t.Errorf("in sandbox %d: %+v, %v", i, x, err)
		}
		if code, out, _ := s.ask("DELETE", "/sandboxes/"+id, nil); code != 204 {
			t.Errorf("kill sandbox %d: %d %v", i, code, out)
		}
	}
	drained := func() (left []api.Cell) {
		for end := time.Now().Add(testenv.Patience()); ; time.Sleep(100 * time.Millisecond) {
			if left = h.cells(); len(left) == 0 || time.Now().After(end) {
				return left
			}
		}
	}
	for i := range 3 { // what is made once is there
		visit(i)
	}
	drained()
	before := holdingsOf(h.work)
	took = nil
	var all sync.WaitGroup
	const pause = long * time.Second / many
	for i := range many {
		all.Go(func() { visit(i) })
		time.Sleep(pause)
	}
	all.Wait()
	for _, left := range drained() {
		t.Errorf("sandbox %s (%s, %+v) is left", left.ID, left.State, left.Lease)
	}
	slices.Sort(took)
	if len(took) != many {
		t.Errorf("%d of %d sandboxes were made", len(took), many)
	} else {
		t.Logf("%d sandboxes in %d s; create: median %v, 99th percentile %v, longest %v", many, long, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	}
	h.pando("gc", "--yes")
	before["threads of pando-daemon"] += 16 // the runtime keeps those it once needed
	if more := heldMore(h.work, before); more != "" {
		t.Errorf("it holds more than before: %s", more)
	}
	if left := h.leftovers(); left != nil {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}
