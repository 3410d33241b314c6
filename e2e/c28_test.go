package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/upload"
)

// uploaded is the size of the upload, in bytes.
const uploaded = 32 << 20

// TestC28KilledDuringRequests kills the daemon during each kind of request by TCP, and checks
// the state that the next daemon finds: every object is complete, or gives a reason why not, and
// probes and metrics are right.
func TestC28KilledDuringRequests(t *testing.T) {
	t.Parallel()
	rootHasRunIt(t)
	testenv.Python(t)
	times := 1
	if os.Getenv("E2E_SOAK") != "" {
		times = 12
	}
	h := newHost(t)
	l := &load{h: h, took: map[string][]time.Duration{}, refused: map[string]int{}}
	h.write("f", "old\n")
	l.serve("127.0.0.1:0", "--first-token", "admin")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := l.client()
	// What a client sends by TCP: a path would be one of its own host.
	source := func(c *client.Client) (id string, err error) {
		var b bytes.Buffer
		if _, err := upload.Pack(ctx, upload.Request{Dir: h.src}, &b); err != nil {
			return "", err
		}
		up, err := c.Upload(ctx, &b)
		return up.ID, err
	}
	build := func(c *client.Client, name string) error {
		id, err := source(c)
		if err == nil {
			_, err = c.BuildTemplate(ctx, api.TemplateRequest{Name: name, Upload: id, Setup: "x = 20"}, client.Listener{})
		}
		return err
	}
	create := func(c *client.Client, name string) error {
		id, err := source(c)
		if err == nil {
			_, err = c.Create(ctx, api.CreateRequest{Name: name, Upload: id})
		}
		return err
	}
	must(t, build(c, "tp"))
	cell := func(name string) {
		t.Helper()
		must(t, create(c, name))
	}
	forked := func(name string) {
		t.Helper()
		_, err := c.ForkTemplate(ctx, "tp", api.WarmForkRequest{Name: name}, client.Listener{})
		must(t, err)
	}
	none := func(string) {}
	for _, a := range []struct {
		name   string
		before func(name string)
		do     func(c *client.Client, name string) error
	}{
		{"create", none, create},
		{"run", none, func(c *client.Client, name string) error {
			var r api.Run
			id, err := source(c)
			if err == nil {
				r, err = c.StartRun(ctx, api.RunRequest{Cell: name, Upload: id, Command: []string{"sh", "-c", "sleep 0.05; echo new >f"}})
			}
			if err == nil {
				r, err = c.Run(ctx, r.ID, true)
			}
			if err == nil && r.ExitCode == nil && r.Error != nil { // it says why its command was not started, or is lost
				err = r.Error
			}
			return err
		}},
		{"template", none, build},
		{"fork", none, func(c *client.Client, name string) error {
			_, err := c.ForkTemplate(ctx, "tp", api.WarmForkRequest{Name: name, Count: 8, Eval: "x + 1"}, client.Listener{})
			return err
		}},
		{"branch", forked, func(c *client.Client, name string) error {
			_, err := c.Branch(ctx, name, api.BranchRequest{Count: 3})
			return err
		}},
		{"checkpoint", cell, func(c *client.Client, name string) error {
			if _, err := c.RunExec(ctx, name, api.ExecRequest{Command: []string{"sh", "-c", "echo new >f"}, Wait: true}); err != nil {
				return err
			}
			_, err := c.Checkpoint(ctx, name, api.CheckpointRequest{})
			return err
		}},
		{"upload", cell, func(c *client.Client, name string) error {
			_, err := c.WriteFile(ctx, name, "big", io.LimitReader(zeros{}, uploaded), client.Seen{})
			return err
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			a.before("whole")
			began := time.Now()
			must(t, a.do(c, "whole"))
			long := time.Since(began)
			for i := range times {
				name := fmt.Sprintf("cut%d", i)
				a.before(name)
				at := time.Duration((float64(i) + 0.2 + 0.6*rand.Float64()) / float64(times) * float64(long))
				over := make(chan error, 1)
				go func() { over <- a.do(l.client(), name) }()
				time.Sleep(at)
				l.restart()
				err := <-over
				when := fmt.Sprintf("killed after %v of %v; the client was told %v", at.Round(100*time.Microsecond), long.Round(100*time.Microsecond), err)
				l.whole(t, ctx, when, err == nil)
			}
		})
	}
	_, err := l.client().RemoveTemplate(ctx, "tp", api.TemplateRemoval{})
	must(t, err)
	if left := h.leftovers(); left != nil {
		t.Errorf("left over: %s", left)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// whole checks every object, and removes all but the template tp. done means that the request
// was answered as done.
func (l *load) whole(t *testing.T, ctx context.Context, when string, done bool) {
	t.Helper()
	h, c := l.h, l.client()
	bad := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s", when, fmt.Sprintf(format, args...))
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		resp, err := http.Get(l.url + path)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			bad("%s answers %d", path, resp.StatusCode)
		}
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // a daemon completes the work of the previous one
		busy := ""
		for _, r := range h.runs() {
			if r.Phase != "ended" {
				busy = "run " + r.ID + " is " + r.Phase
			}
		}
		for _, x := range h.cells() {
			if x.State != "idle" && x.State != "running" && x.State != "failed" {
				busy = "cell " + x.Name + " is " + x.State
			}
		}
		if busy == "" {
			break
		}
		if time.Since(began) > testenv.Patience() {
			bad("%s", busy)
			return
		}
	}
	cells := h.cells()
	told := 0.0
	for _, m := range h.metrics()["pando_cells"].GetMetric() {
		told += m.GetGauge().GetValue()
	}
	if n := sample(h.metrics()["pando_runs_under_way"]); int(told) != len(cells) || n > 0 {
		bad("the metrics tell of %v cells and %v runs under way; there are %d and none", told, n, len(cells))
	}
	if len(cells) == 0 && done && !strings.HasSuffix(t.Name(), "/template") {
		bad("nothing is there")
	}
	for _, x := range cells {
		if x.State == "failed" {
			if x.Cause == "" {
				bad("cell %s failed without a cause", x.Name)
			}
		} else if r, err := c.RunExec(ctx, x.ID, api.ExecRequest{Command: []string{"sh", "-c", "cat f; stat -c %s big 2>/dev/null; true"}, Wait: true}); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
			bad("cell %s can't be used: %+v, %v", x.Name, r, err)
		} else if got := string(r.Stdout); got != "old\n" && got != "new\n" && got != fmt.Sprintf("old\n%d\n", uploaded) {
			bad("cell %s holds %q", x.Name, got)
		}
		if strings.HasSuffix(t.Name(), "/fork") || strings.HasSuffix(t.Name(), "/branch") {
			if r, err := c.Eval(ctx, x.ID, api.EvalRequest{Code: "x + 1"}, client.Listener{}); err != nil || !strings.Contains(string(r.Result), "21") {
				bad("the interpreter of %s says %s, %v", x.Name, r.Result, err)
			}
		}
		if o := h.try("rm", "--yes", x.ID); o.code != 0 {
			bad("cell %s can't be removed: %s", x.Name, o.stderr)
		}
	}
	list, err := c.Templates(ctx)
	must(t, err)
	for _, x := range list {
		if r, err := c.ForkTemplate(ctx, x.Name, api.WarmForkRequest{Eval: "x + 1", Remove: true}, client.Listener{}); err != nil || len(r.Forks) != 1 || !strings.Contains(string(r.Forks[0].Result), "21") {
			bad("template %s (%s) can't be forked: %+v, %v", x.Name, x.State, r, err)
		}
		if x.Name != "tp" {
			_, err := c.RemoveTemplate(ctx, x.Name, api.TemplateRemoval{})
			must(t, err)
		}
	}
	if v := h.verify(); !v.OK {
		bad("receipts: %+v", v.Problems)
	}
}
