package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/testenv"
)

// FAILURES about values, time and limits, over HTTP with a token.
func TestFailuresOverHTTP(t *testing.T) {
	testenv.Python(t)
	t.Parallel()
	h := newHost(t)
	c, s, token := caller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 3*testenv.Patience())
	defer cancel()
	_, err := c.Create(ctx, api.CreateRequest{Name: "web"})
	must(t, err)

	// E48: NaN, big integers, bytes and invalid text have one payload through every door.
	t.Run("E48 values have one payload", func(t *testing.T) {
		const code = `[float("nan"), float("inf"), -float("inf"), -0.0, 2**53 + 1, -2**70, b"\x00\xff", "\udcff", "\u2028", {1: "a"}, {"$float": 1}]`
		res, err := c.Eval(ctx, "web", api.EvalRequest{Code: code}, client.Listener{})
		must(t, err)
		type value struct {
			Value struct{ JSON json.RawMessage }
		}
		var rest value
		must(t, json.Unmarshal(res.Result, &rest))
		var mcp struct {
			StructuredContent struct{ Value json.RawMessage }
			Content           []struct{ Text string }
		}
		asked(t, s.URLs[0], token, "tools/call", "eval", map[string]any{"name": "eval", "arguments": map[string]any{"cell": "web", "code": code}}, &mcp)
		cli := decoded[struct{ Result value }](h, "eval", "web", code, "--json")
		canonical := func(raw json.RawMessage) (v any) {
			if err := json.Unmarshal(raw, &v); err != nil {
				t.Errorf("%s: %v", raw, err)
			}
			return v
		}
		want := canonical(rest.Value.JSON)
		for who, raw := range map[string]json.RawMessage{"MCP": mcp.StructuredContent.Value, "the command line": cli.Result.Value.JSON} {
			if !reflect.DeepEqual(canonical(raw), want) {
				t.Errorf("%s has\n%s\nand REST\n%s", who, raw, rest.Value.JSON)
			}
		}
		sdk, err := filepath.Abs("../sdk/python")
		must(t, err)
		py := h.cmd("python3", "-c", "import pando, sys; print(ascii(pando.cell('web').eval(sys.argv[1])))", code)
		py.Env = append(py.Env, "PYTHONPATH="+sdk, "PANDO_HOST="+s.URLs[0], "PANDO_TOKEN="+token, "PYTHONDONTWRITEBYTECODE=1")
		if o := h.exec(py); o.out != `[nan, inf, -inf, -0.0, 9007199254740993, -1180591620717411303424, b'\x00\xff', '\udcff', '\u2028', {1: 'a'}, {'$float': 1}]`+"\n" {
			t.Errorf("Python has %s%s", o.out, o.stderr)
		}
	})

	// E49: an evaluation that never answers ends at its time limit, and delays no other.
	t.Run("E49 nobody is held up", func(t *testing.T) {
		_, err := c.Create(ctx, api.CreateRequest{Name: "stuck"})
		must(t, err)
		over := make(chan error, 1)
		began := time.Now()
		go func() {
			_, err := c.Eval(ctx, "stuck", api.EvalRequest{Code: "while True: pass", Timeout: "2s"}, client.Listener{})
			over <- err
		}()
		for i := range 20 {
			if res, err := c.Eval(ctx, "web", api.EvalRequest{Code: fmt.Sprint(i)}, client.Listener{}); err != nil || !strings.Contains(string(res.Result), fmt.Sprintf(`"json":%d`, i)) {
				t.Errorf("%d: %s, %v", i, res.Result, err)
			}
		}
		if err := <-over; !isKind(err, "timeout") && err != nil || time.Since(began) > testenv.Patience() {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})

	// C29: a time-out takes effect, and a caller that hangs up leaves nothing running.
	t.Run("C29 nothing is left running", func(t *testing.T) {
		x, err := c.RunExec(ctx, "web", api.ExecRequest{Command: []string{"sleep", "1000"}, Timeout: "300ms"})
		if err != nil || x.Cause != "timeout" {
			t.Errorf("%+v, %v", x, err)
		}
		short, hangUp := context.WithTimeout(ctx, 300*time.Millisecond)
		defer hangUp()
		if _, err := c.RunExec(short, "web", api.ExecRequest{Command: []string{"sleep", "2000"}}); err == nil {
			t.Error("it has ended")
		}
		for end := time.Now().Add(testenv.Patience()); ; time.Sleep(50 * time.Millisecond) {
			list, err := c.Processes(ctx, "web")
			must(t, err)
			running := ""
			for _, p := range list {
				if strings.Contains(p.Command, "sleep") {
					running = p.Command
				}
			}
			if running == "" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s goes on, and nobody waits for it", running)
			}
		}
	})

	// C30: fifty mebibytes of output are counted, and a bounded part is kept.
	t.Run("C30 output is bounded", func(t *testing.T) {
		x, err := c.RunExec(ctx, "web", api.ExecRequest{Command: []string{"sh", "-c", "head -c 52428800 /dev/zero; echo err >&2"}})
		must(t, err)
		if x.Output.Stdout.Bytes != 50<<20 || len(x.Stdout) == 0 || len(x.Stdout) > 1<<20 || string(x.Stderr) != "err\n" || x.Output.Stdout.Kept >= x.Output.Stdout.Bytes {
			t.Errorf("%+v, %d bytes", x.Output, len(x.Stdout))
		}
	})

	// C31: an invalid limit is an error, and never unlimited.
	t.Run("C31 no limit is an error", func(t *testing.T) {
		for _, bad := range []string{"0", "0s", "-1", "-5m", "99999999999999999999", "9223372036854775807h", "NaN", "1e400", " "} {
			if _, err := c.RunExec(ctx, "web", api.ExecRequest{Command: []string{"true"}, Timeout: bad}); !isKind(err, "invalid") {
				t.Errorf("an exec for %q: %v", bad, err)
			}
			if _, err := c.Lease(ctx, "web", api.LeaseRequest{For: bad}); !isKind(err, "invalid") {
				t.Errorf("a lease for %q: %v", bad, err)
			}
			for name, l := range map[string]api.Limits{"cpus": {CPUs: bad}, "memory": {Memory: bad}, "pids": {PIDs: bad}, "disk": {Disk: bad}} {
				if name != "pids" && name != "cpus" && strings.HasPrefix(bad, "9223") {
					continue
				}
				if _, err := c.Create(ctx, api.CreateRequest{Limits: l}); !isKind(err, "invalid") {
					t.Errorf("%s of %q: %v", name, bad, err)
				}
			}
		}
	})

	// D44: of many requests for one name one gets it; the others get an error.
	t.Run("D44 one name", func(t *testing.T) {
		_, err := c.Create(ctx, api.CreateRequest{Name: "parent"})
		must(t, err)
		var all sync.WaitGroup
		results := make(chan error, 20)
		for i := range 20 {
			all.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = c.Create(ctx, api.CreateRequest{Name: "one"})
				} else {
					_, err = c.Fork(ctx, "parent", api.ForkRequest{Name: "one"})
				}
				results <- err
			})
		}
		all.Wait()
		close(results)
		won := 0
		for err := range results {
			switch {
			case err == nil:
				won++
			case !isKind(err, "exists") && !isKind(err, "conflict"):
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d have it", won)
		}
	})

	// E52: an error says what failed and why, without internal names, and what to do about it.
	t.Run("E52 errors say what to do", func(t *testing.T) {
		for what, do := range map[string]func() error{
			"a cell": func() error { _, err := c.Cell(ctx, "none"); return err },
			"a template": func() error {
				_, err := c.ForkTemplate(ctx, "none", api.WarmForkRequest{}, client.Listener{})
				return err
			},
			"a command":   func() error { _, err := c.RunExec(ctx, "web", api.ExecRequest{}); return err },
			"a directory": func() error { _, err := c.Create(ctx, api.CreateRequest{From: "/etc"}); return err },
			"a scope":     func() error { _, err := c.CreateToken(ctx, api.TokenRequest{}); return err },
			"a backend":   func() error { _, err := c.Create(ctx, api.CreateRequest{Backend: "other"}); return err },
		} {
			e, ok := errors.AsType[*api.Error](do())
			if !ok || !strings.HasPrefix(e.Message, "cannot ") || e.Hint == "" || strings.Count(e.Message, "cannot ") > 2 || strings.ContainsAny(e.Message, "\n") {
				t.Errorf("%s: %+v", what, e)
				continue
			}
			for _, part := range []string{"engine.", "daemon.", "keeper.", "registry", "%!", "0x"} {
				if strings.Contains(e.Message, part) {
					t.Errorf("%s: %s", what, e.Message)
				}
			}
		}
	})
}

// F53: an address that other hosts can reach has TLS, and every request needs a token; no secret
// is in a command line.
func TestF53OpenAddresses(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := serving(t, h, "--listen", "0.0.0.0:0")
	if len(s.URLs) != 2 || !strings.HasPrefix(s.URLs[0], "http://127.0.0.1:") || !strings.HasPrefix(s.URLs[1], "https://") || s.Fingerprint == "" || s.Token == "" {
		t.Fatalf("%+v", s)
	}
	plain := "http://127.0.0.1:" + s.URLs[1][strings.LastIndex(s.URLs[1], ":")+1:]
	if resp, err := http.Get(plain + "/v1/cells"); err == nil && resp.StatusCode == http.StatusOK {
		t.Error("it answers in plain text")
	}
	over := client.New(client.Config{Host: strings.Replace(plain, "http://", "https://", 1) + "#sha256=" + s.Fingerprint})
	if _, err := over.Cells(t.Context()); !isKind(err, "unauthenticated") {
		t.Errorf("without a token: %v", err)
	}
	for _, weak := range []string{"pando_", "pando_changeme", "pando_" + strings.Repeat("0", 40), "secret", "", " "} {
		c := client.New(client.Config{Host: s.URLs[0], Token: weak})
		if _, err := c.Cells(t.Context()); err == nil {
			t.Errorf("%q is a token", weak)
		}
	}
	if c := client.New(client.Config{Host: s.URLs[0], Token: s.Token}); c != nil {
		_, err := c.Cells(t.Context())
		must(t, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, path := range lines {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), strings.TrimPrefix(s.Token, "pando_")) {
			t.Errorf("%s has the token", path)
		}
	}
	if o := h.try("serve", "--help"); strings.Contains(o.out, strings.TrimPrefix(s.Token, "pando_")) {
		t.Error("--help has the token")
	}
}
