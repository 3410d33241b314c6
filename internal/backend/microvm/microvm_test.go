package microvm

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
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

func TestMain(m *testing.M) {
	backendtest.Main(m, map[string]func() (server.Driver, error){Name: NewDriver})
}

func TestConformance(t *testing.T) {
	cache := t.TempDir()
	machines(t, cache)
	only := []string{"Exit", "Freeze", "Attach", "Isolation", "Files", "EvalKeepsState", "F33MemoryBites", "F33ProcessesBite", "D42CopiedInterpreter"}
	switch {
	case os.Getenv("E2E_SOAK") != "":
		only = nil // all of them: an emulated machine boots for seconds
	case os.Getuid() != 0:
		only = []string{"Exit", "Files", "F33Limits", "F33MemoryBites"} // limits that no cgroup of the host applies
	}
	backendtest.Run(t, func(t *testing.T) *backendtest.Machine {
		cfg := config(t, cache)
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
	}, only...)
}

// machines is a configuration with which machines can be started here.
func machines(t testing.TB, cache string) Config {
	t.Helper()
	testenv.Program(t, "qemu-system-x86_64")
	if _, err := boot.Find(boot.Images, boot.Modules); err != nil {
		t.Skip("needs a kernel for machines")
	}
	return config(t, cache)
}

// config is that of an installation of its own, with the guest that `make` builds.
func config(t testing.TB, cache string) Config {
	t.Helper()
	guest, err := filepath.Abs("../../../bin/pando-guest")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(guest); err != nil {
		t.Skip("needs bin/pando-guest: make")
	}
	dir := t.TempDir()
	cfg := Config{Config: isolation.Config{Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30,
		Installation: "test" + strconv.Itoa(os.Getpid()), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, Guest: guest, Path: os.Getenv("PATH"), Cache: cache}
	for _, d := range []string{cfg.Keepers, cfg.Scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.ShowLog(t, cfg.Keepers)
	return cfg
}
