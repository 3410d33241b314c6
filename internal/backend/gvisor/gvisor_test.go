package gvisor

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
)

func TestMain(m *testing.M) {
	backendtest.Main(m, map[string]func() (server.Driver, error){Name: NewDriver})
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) *backendtest.Machine {
		cfg := config(t)
		return &backendtest.Machine{
			Open: func() (backend.Backend, func()) { b := New(cfg); return b, b.Close },
			Left: func() []string {
				b := New(cfg)
				defer b.Close()
				found, err := b.Leftovers(t.Context(), true)
				if err != nil {
					t.Error(err)
				}
				return append(found, backendtest.KeeperFiles(cfg.Keepers)...)
			},
		}
	})
}

// config is that of an installation of its own, with the programs that `make`
// builds.
func config(t testing.TB) Config {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{Config: isolation.Config{Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30,
		Installation: "test" + strconv.Itoa(os.Getpid()), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, Runsc: built(t, "pando-runsc"), Guest: built(t, "pando-guest")}
	for _, d := range []string{cfg.Keepers, cfg.Scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.ShowLog(t, cfg.Keepers)
	return cfg
}

// built is a program that `make` has put into bin.
func built(t testing.TB, name string) string {
	t.Helper()
	p, err := filepath.Abs("../../../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Skipf("needs bin/%s: make", name)
	}
	return p
}
