package namespace

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
			Left: func() []string { return backendtest.Left(t, cfg.Keepers, cfg.Installation) },
		}
	})
}

// config is that of an installation of its own.
func config(t testing.TB) isolation.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := isolation.Config{Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30,
		Installation: "test" + strconv.Itoa(os.Getpid()), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, d := range []string{cfg.Keepers, cfg.Scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.ShowLog(t, cfg.Keepers)
	return cfg
}
