package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Programs exhaust resources in one cell. Its limits take effect, and meanwhile the host and
// another cell answer, in the soak soon.
func TestBombs(t *testing.T) {
	h := newHost(t)
	h.pando("run", "--cell", "calm", "--", "sh", "-c", "echo calm > calm; sleep 120 >/dev/null 2>&1 &")
	base := max(h.latency(5, "exec", "calm", "--", "cat", "calm"), 20*time.Millisecond)
	for _, b := range []struct {
		name, script string
		limits       []string
		why          string // the cause that the run ends with, if it does
		root         bool   // the limit needs cgroups
	}{
		{"forks", `b() { b | b & b; }; (b) 2>/dev/null & sleep 2`, []string{"--pids", "64"}, "", false},
		{"memory", `exec tail /dev/zero`, []string{"--memory", "128M"}, "memory limit", true},
		{"memory in files", `head -c 1000000000 /dev/zero > /dev/shm/big; exit 9`, []string{"--memory", "128M"}, "memory limit", true},
		{"disk", `while :; do head -c 10000000 /dev/zero >> big || exit 9; done`, []string{"--disk", "48M"}, "", false},
		{"names", `i=0; while :; do mkdir -p d$i/d/d/d/d || exit 9; i=$((i+1)); done`, []string{"--disk", "16M"}, "", false},
		{"processors", `for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; sleep 2`, []string{"--cpus", "1"}, "", true},
		{"output", `yes | head -c 60000000`, nil, "", false},
	} {
		t.Run(b.name, func(t *testing.T) {
			args := append([]string{"run", "--cell", "bomb-" + strings.ReplaceAll(b.name, " ", "-"), "--on-failure", "pending", "--timeout", "20s"}, b.limits...)
			c := h.cmd(h.bin, append(args, "--", "sh", "-c", b.script)...)
			out, err := os.Create(filepath.Join(h.work, "out"))
			must(t, err)
			defer out.Close()
			c.Stdout, c.Stderr = out, out
			must(t, c.Start())
			done := make(chan error, 1)
			go func() { done <- c.Wait() }()
			time.Sleep(300 * time.Millisecond)
			cell := h.latency(5, "exec", "calm", "--", "cat", "calm")
			began := time.Now()
			must(t, exec.Command("true").Run())
			host := time.Since(began)
			t.Logf("another cell answers in %v (%v at rest), the host in %v", cell, base, host)
			if os.Getenv("E2E_SOAK") != "" && (cell > 20*base || host > time.Second) {
				t.Errorf("while the bomb goes off another cell answers in %v (%v at rest), the host in %v", cell, base, host)
			}
			select {
			case <-done:
			case <-time.After(40 * time.Second):
				t.Fatal("the bomb does not end")
			}
			if b.root && os.Geteuid() != 0 && c.ProcessState.ExitCode() == 125 {
				t.Logf("refused, as a limit that can't be had must be: %s", h.readAt(out.Name()))
				return
			}
			r := h.run(args[2] + ":latest")
			if r.Cause != b.why && !(b.name == "disk" || b.name == "names") {
				t.Errorf("the run ended by %q, want %q", r.Cause, b.why)
			}
			if b.name == "disk" || b.name == "names" {
				// A file system of its own is full; what is counted ends the cell.
				if r.Cause != "disk limit" && (r.ExitCode == nil || *r.ExitCode != 9) {
					t.Errorf("the disk's limit did not bite: exit %v, cause %q", r.ExitCode, r.Cause)
				}
			}
			if b.name == "forks" && os.Geteuid() == 0 && (r.Usage.PeakPIDs < 32 || r.Usage.PeakPIDs > 64) {
				t.Errorf("the limit of 64 processes did not bite: %+v", r.Usage)
			}
			h.pando("rm", args[2], "--yes")
		})
	}
	if got := h.inCell("calm", "cat calm"); got != "calm\n" {
		t.Errorf("the calm cell's file is now %q", got)
	}
	h.pando("rm", "calm", "--yes")
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}

// latency is the median time of n runs of pando, none of which may fail.
func (h *host) latency(n int, args ...string) time.Duration {
	h.t.Helper()
	var took []time.Duration
	for range n {
		began := time.Now()
		h.pando(args...)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[n/2]
}
