package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// wayEnv makes the test program the Go program among the ways round.
const wayEnv = "PANDO_E2E_WAY"

// The world of the ways round. Only inside4 and inside6 may be reached; every other address is
// forbidden.
const (
	inside4 = "192.0.2.7"
	inside6 = "2001:db8::7"
)

var outside = []string{
	"192.0.2.8", "2001:db8::8", // a host like any other
	"8.8.8.8",                                                // its DNS
	"192.168.7.7", "10.9.8.7", "100.64.0.9", "169.254.0.253", // neighbours
	"169.254.169.254", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", // metadata
	"198.18.0.1", "fd70:616e:646f::1", // what a gateway has inside, here on the host
}

// may are the names that the policy allows.
var may = []string{"allowed.example", "opened.example", "local.example", "lan.example", "meta.example", "rebind.example", "rebind2.example"}

func waysWorld(h *host) (w *witness, zone *names) {
	h.t.Helper()
	world(h.t, append([]string{inside4, inside6}, outside...)...)
	zone = newNames(h.t, "127.0.0.1:5300")
	zone.set("allowed.example", inside4, inside6)
	zone.set("opened.example", inside4)
	zone.set("*.wild.example", inside4)
	zone.set("evil.example", "192.0.2.8", "2001:db8::8")
	zone.set("*.evil.example", "192.0.2.8")
	zone.set("local.example", "127.0.0.1", "::1")
	zone.set("lan.example", "192.168.7.7")
	zone.set("meta.example", "169.254.169.254", "fd00:ec2::254")
	zone.set("rebind2.example", "127.0.0.1", "192.168.7.7", inside4)
	// Another answer each time that the one before can't be remembered any more.
	var phase int
	var last time.Time
	zone.let("rebind.example", func() []string { // under the lock of the names
		if time.Since(last) > 900*time.Millisecond {
			phase, last = phase+1, time.Now()
		}
		return []string{[]string{inside4, "127.0.0.1", "169.254.169.254"}[phase%3]}
	})
	ca := newAuthority(h.t)
	w = newWitness(h.t, ca, append([]string{"evil.example", "192.0.2.8", "8.8.8.8"}, may...)...)
	for _, a := range []string{"8.8.8.8", "192.0.2.8", "2001:db8::8", "198.18.0.1"} {
		w.resolve(a, zone)
	}
	// Programs on the host ask the server in /etc/resolv.conf: it is a host of this world, too,
	// which no cell may reach.
	b, _ := os.ReadFile("/etc/resolv.conf")
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) == 2 && f[0] == "nameserver" && w.dns[f[1]] == nil {
			ip := net.ParseIP(f[1])
			if ip == nil {
				continue
			}
			if !ip.IsLoopback() {
				world(h.t, f[1])
			}
			w.resolve(f[1], zone)
		}
	}
	l, err := net.Listen("unix", "@pando-e2e-witness")
	h.must(err)
	h.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.note(visit{at: "@pando-e2e-witness", what: "unix"})
			c.Write([]byte(reached))
			c.Close()
		}
	}()
	h.env = append(h.env, "PANDO_RESOLVER="+zone.addr, "PANDO_ROOTS="+ca.file(h))
	return w, zone
}

// permitted reports whether a visit is one that the policy allows.
func (v visit) permitted() bool {
	addr, port, err := net.SplitHostPort(v.at)
	if err != nil || addr != inside4 && addr != inside6 || port != "80" && port != "443" {
		return false
	}
	kind, name, _ := strings.Cut(v.what, " ")
	switch kind {
	case "tcp":
		return true
	case "tls", "http":
		name, _, _ = strings.Cut(name, ":")
		if name == "opened.example" && kind == "http" && !strings.HasPrefix(v.more, "GET /open/") {
			return false
		}
		return slices.Contains(may, name)
	}
	return false
}

// escaped lists the visits that nothing allows.
func escaped(list []visit) (out []string) {
	for _, v := range list {
		if !v.permitted() {
			out = append(out, v.String())
		}
	}
	return out
}

// tried is what came of one way.
type tried struct {
	out  string
	code int
	took time.Duration
}

// TestWaysRound tries ways round the gateway (in the soak all, else each fifth), with the tools
// of people and agents. Each is tried twice: outside, where it must arrive (else its failure
// would prove nothing), and in a cell, where it must be refused at once, with a decision that
// says so.
func TestWaysRound(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	h := newHost(t)
	w, zone := waysWorld(h)
	self, err := os.ReadFile(os.Args[0])
	h.must(err)
	h.must(os.WriteFile(filepath.Join(h.src, "goprobe"), self, 0o755))
	var runnable []way
	for i, a := range ways {
		if i%10 != 0 && os.Getenv("E2E_SOAK") == "" {
			continue
		}
		if _, err := exec.LookPath(a.prog); a.prog != "go" && err != nil {
			t.Logf("%s: there is no %s here", a.name, a.prog)
			continue
		}
		runnable = append(runnable, a)
	}

	// Outside.
	for _, a := range runnable {
		if a.barred {
			continue
		}
		w.take()
		got := onHost(h, a.sh)
		time.Sleep(5 * time.Millisecond) // a packet without an answer may be on its way
		if len(escaped(w.take())) == 0 && !strings.Contains(got.out, reached) {
			t.Errorf("%s: it does not arrive without a cell either (exit code %d)\n%s", a.name, got.code, got.out)
		}
	}

	// The way that is open.
	h.writeAt(filepath.Join(h.work, "repo/greeting"), "welcome\n")
	h.sh("cd ../repo && git init -q && git add -A && git commit -q -m x && git clone -q --bare . ../repo.git && git -C ../repo.git update-server-info")
	w.repo = filepath.Join(h.work, "repo.git")
	h.writeAt(filepath.Join(h.work, "policy.yaml"), waysPolicy)
	args := []string{"--policy", filepath.Join(h.work, "policy.yaml")}
	h.pando(append(append([]string{"run", "--cell", "w", "--with-secret", "goprobe"}, args...), "--", "true")...) // a program in which the scanner finds its own patterns
	for _, a := range through {
		if _, err := exec.LookPath(a.prog); a.prog != "go" && err != nil {
			continue
		}
		w.take()
		got, run := inCell(h, "w", args, a.sh)
		if !strings.Contains(got.out, "welcome") || strings.Contains(got.out, reached) {
			t.Errorf("%s: does not get where it may\n%s", a.name, got.out)
		}
		if n := denials(h, run); n > 0 {
			t.Errorf("%s: something was denied\n%s", a.name, got.out)
		}
	}
	h.pando("rm", "w", "--yes")

	// Inside.
	h.pando(append(append([]string{"run", "--cell", "w", "--with-secret", "goprobe"}, args...), "--", "true")...)
	for _, a := range runnable {
		w.take()
		zone.take()
		got, run := inCell(h, "w", args, a.sh)
		if bad := escaped(w.take()); len(bad) > 0 {
			t.Errorf("%s: arrived: %s\n%s", a.name, strings.Join(bad, "; "), got.out)
		}
		if bad := zone.foreign(); len(bad) > 0 {
			t.Errorf("%s: names were asked for: %s", a.name, strings.Join(bad, "; "))
		}
		if strings.Contains(got.out, reached) {
			t.Errorf("%s: worked\n%s", a.name, got.out)
		}
		if os.Getenv("E2E_SOAK") != "" && got.took > 6*time.Second {
			t.Errorf("%s: took %v to be refused\n%s", a.name, got.took.Round(time.Millisecond), got.out)
		}
		if n := denials(h, run); n == 0 && !a.silent {
			t.Errorf("%s: no decision denies it\n%s", a.name, got.out)
		}
	}
	if t.Failed() {
		return
	}
	h.pando("rm", "w", "--yes")
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}

// waysPolicy is in force in the cell. Connections to opened.example are opened,
// because a rule looks at what is in them.
const waysPolicy = `version: 1
network:
  allow:
    - allowed.example
    - local.example
    - lan.example
    - meta.example
    - rebind.example
    - rebind2.example
    - "*.wild.example"
    - {host: opened.example, ports: [443], methods: [GET], paths: [/open/**]}
`

// onHost runs a way without a cell.
func onHost(h *host, script string) tried {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "timeout", "6", "sh", "-c", script)
	c.Dir, c.Env = h.src, append(slices.Clone(h.env), wayEnv+"=1")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	c.WaitDelay = time.Second
	start := time.Now()
	c.Run()
	return tried{out.String(), c.ProcessState.ExitCode(), time.Since(start)}
}

// inCell runs a way in a cell, and measures the way itself.
func inCell(h *host, name string, args []string, script string) (got tried, run string) {
	h.t.Helper()
	wrap := `s=$(date +%s%N); timeout 8 sh -c "$0" 2>&1; c=$?; e=$(date +%s%N); echo; echo "ended $c $(( (e - s) / 1000000 ))"`
	args = append(append([]string{"run", "--cell", name, "--env", wayEnv + "=1"}, args...), "--", "sh", "-c", wrap, script)
	before, _ := os.ReadDir(h.state("runs"))
	o := h.exits(0, args...)
	after, _ := os.ReadDir(h.state("runs"))
	for _, d := range after {
		if !slices.ContainsFunc(before, func(b os.DirEntry) bool { return b.Name() == d.Name() }) {
			run = d.Name()
		}
	}
	i := strings.LastIndex(o.out, "ended ")
	if i < 0 {
		h.t.Fatalf("%s: %s%s", script, o.out, o.stderr)
	}
	var ms int
	fmt.Sscanf(o.out[i:], "ended %d %d", &got.code, &ms)
	got.out, got.took = o.out+o.stderr, time.Duration(ms)*time.Millisecond
	return got, run
}

// eventsOf reads the events of one kind that a run's record has.
func eventsOf(h *host, run, kind string) (list []json.RawMessage) {
	h.t.Helper()
	for l := range strings.Lines(h.readAt(h.state("runs", run, "events.jsonl"))) {
		var e struct {
			Kind   string
			Fields json.RawMessage
		}
		h.must(json.Unmarshal([]byte(l), &e))
		if e.Kind == kind {
			list = append(list, e.Fields)
		}
	}
	return list
}

// decisions reads the decisions about what a run's processes tried.
func decisions(h *host, run string) (list []cell.Decided) {
	h.t.Helper()
	for _, raw := range eventsOf(h, run, "decision") {
		var d cell.Decided
		h.must(json.Unmarshal(raw, &d))
		list = append(list, d)
	}
	return list
}

// denials counts what was denied to a run.
func denials(h *host, run string) (n int) {
	h.t.Helper()
	for _, d := range decisions(h, run) {
		if !d.Decision.Allowed() {
			n++
		}
	}
	return n
}

// take forgets the questions so far.
func (n *names) take() (list []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list, n.saw = n.saw, nil
	return list
}

// foreign lists questions for names that the policy does not allow.
func (n *names) foreign() (list []string) {
	for _, q := range n.take() {
		kind, name, _ := strings.Cut(q, " ")
		if kind != "A" && kind != "AAAA" || !slices.Contains(may, name) && !strings.HasSuffix(name, ".wild.example") {
			list = append(list, q)
		}
	}
	return list
}

// goWays is the Go program: it dials and looks up what it must not, or what it
// may.
func goWays(what string) {
	if what == "through" {
		resp, err := http.Get("https://opened.example/open/x")
		if err != nil {
			fmt.Println(err)
			return
		}
		io.Copy(os.Stdout, resp.Body)
		return
	}
	var wg sync.WaitGroup
	say := make(chan string, 16)
	try := func(f func(ctx context.Context) string) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			say <- f(ctx)
		})
	}
	dial := func(network, addr string) {
		try(func(ctx context.Context) string {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return err.Error()
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Second))
			fmt.Fprintf(c, "GET / HTTP/1.0\r\n\r\n")
			b := make([]byte, 512)
			n, err := c.Read(b)
			return fmt.Sprintf("%s: %s %v", addr, b[:n], err)
		})
	}
	dial("tcp", "192.0.2.8:22")
	dial("tcp", "[2001:db8::8]:80")
	dial("tcp", "evil.example:80")
	dial("udp", "192.0.2.8:9999")
	dial("tcp", "169.254.169.254:80")
	for _, server := range []string{"", "8.8.8.8:53"} {
		try(func(ctx context.Context) string {
			r := &net.Resolver{PreferGo: true}
			if server != "" {
				r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, server)
				}
			}
			a, err := r.LookupHost(ctx, "evil.example")
			// A denied name has an address at which the gateway refuses.
			refusal := func(s string) bool {
				at, err := netip.ParseAddr(s)
				return err == nil && netip.MustParsePrefix("198.19.128.0/22").Contains(at)
			}
			switch {
			case err != nil:
				return err.Error()
			case len(a) == 1 && refusal(a[0]):
				return "refused at " + a[0]
			}
			return reached + fmt.Sprint(a)
		})
	}
	wg.Wait()
	close(say)
	for s := range say {
		fmt.Println(s)
	}
}
