//go:build linux

package e2e

import (
	"io"
	"net/http"
	"testing"
)

// A daemon is ready as long as something new can be made: not while as many cells are there
// as may be, nor while it takes no new work.
func TestX47ReadyIsTrue(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := serving(t, h, "--max-cells", "2")
	ready := func(when string, status int, says string) {
		t.Helper()
		resp, err := http.Get(s.URLs[0] + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != status || string(b) != says {
			t.Errorf("%s /readyz answers %s %q, %v", when, resp.Status, b, err)
		}
	}
	ready("at first", 200, "ok\n")
	h.pando("run", "--cell", "one", "--", "true")
	ready("with room for one", 200, "ok\n")
	h.pando("run", "--cell", "two", "--", "true")
	ready("without room", 503, "full\n")
	h.exits(125, "run", "--cell", "three", "--", "true")
	h.pando("rm", "-y", "one")
	ready("with room again", 200, "ok\n")
	h.pando("daemon", "drain")
	ready("while it drains", 503, "draining\n")
	h.pando("daemon", "drain", "--undo")
	ready("when it takes work again", 200, "ok\n")
}
