package govern

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// bed is a Manager with a registry and a store of credentials in a home of its own.
type bed struct {
	testing.TB
	*Manager
	ctx  context.Context
	home paths.Home
	reg  *state.Registry
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{TB: t, ctx: t.Context(), home: paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run")}}
	b.must(b.home.Make())
	b.open()
	t.Cleanup(b.close)
	return b
}

func (b *bed) open() {
	b.Helper()
	var err error
	b.reg, err = state.Open(durable.Disk(b.home.State), "registry.log", b.home)
	b.must(err)
	credentials, err := credential.Open(credential.Config{Dir: durable.Disk(b.home.Credentials()), Keys: durable.Disk(b.home.Keys())})
	b.must(err)
	b.Manager = New(Config{
		Records: b.reg, Log: slog.New(slog.NewTextHandler(b.Output(), nil)), Home: b.home, Credentials: credentials,
		Host: policy.Host{CPUs: 2, Memory: 4 << 30}, Life: b.ctx,
	})
}

func (b *bed) close() {
	b.Helper()
	b.must(b.reg.Close())
}

// reopen ends the daemon and starts the next.
func (b *bed) reopen() {
	b.Helper()
	b.close()
	b.open()
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// wantKind asserts the kind of an error, and that its text has every word.
func (b *bed) wantKind(what string, err error, want cell.Kind, words ...string) {
	b.Helper()
	if cell.KindOf(err) != want {
		b.Errorf("%s: %v (kind %q), want kind %q", what, err, cell.KindOf(err), want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.Errorf("%s: %v; want %q in it", what, err, w)
		}
	}
}
