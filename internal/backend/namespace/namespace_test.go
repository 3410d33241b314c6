package namespace

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/keeper/server"
)

func TestMain(m *testing.M) {
	backendtest.MainWith(m, map[string]func() (server.Driver, error){Name: remembered(NewDriver), lax: laxDriver, vethOnly: remembered(vethDriver), capable: capableDriver, linkless: linklessDriver}, mirrors{})
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) *backendtest.Machine {
		cfg := config(t)
		return &backendtest.Machine{
			Open: func() (backend.Backend, func()) { b := New(cfg); return b, b.Close },
			Left: func() []string { return left(t, cfg) },
		}
	})
}

// config is that of an installation of its own.
func config(t testing.TB) Config {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30,
		Installation: "test" + strconv.Itoa(os.Getpid()), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, d := range []string{cfg.Keepers, cfg.Scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.ShowLog(t, cfg.Keepers)
	return cfg
}

// left is what the cells of an installation leave behind: files of keepers, and
// cgroups.
func left(t *testing.T, cfg Config) []string {
	t.Helper()
	list := backendtest.KeeperFiles(cfg.Keepers)
	b := New(cfg)
	defer b.Close()
	if b.cgroups == nil {
		return list
	}
	names, err := b.cgroups.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n != keepersName {
			list = append(list, "cgroup "+n)
		}
	}
	return list
}
