package namespace

import (
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
)

// A fork of a cell that talks has a link and a gateway of its own, goes by what it
// was adopted with, and has proven that.
func TestD34ForksTalkThroughTheirOwnGateway(t *testing.T) {
	g := newForkBedWith(t, "import os, socket", func(s *cell.Spec) { s.Network = backendtest.Allowing(t, "example.com") })
	g.seal()
	spec := g.child()
	spec.Network = backendtest.Allowing(t, "example.com")
	f, err := g.warm.Fork(t.Context(), spec)
	g.must(err)
	defer f.Remove(g.bg(), "done")
	c, err := f.Adopt(t.Context(), cell.Adoption{Hostname: "x", Network: backendtest.Allowing(t, "example.org")})
	g.must(err)
	if b := c.Battery; b.Passed != b.Total || b.Total < 45 || !slices.Contains(b.Bites, "gateway") || !slices.Contains(b.Bites, "limits") {
		t.Errorf("its battery: %+v", b)
	}
	if got, want := g.says(f, `def tries(f):
    try:
        return f()
    except OSError as e:
        return type(e).__name__
(tries(lambda: socket.create_connection(('192.0.2.1', 80), 2)), open('/proc/net/dev').read().count('pando0'))`), "('ConnectionRefusedError', 1)"; got != want {
		t.Errorf("it says %s, want %s", got, want)
	}
}
