package isolation

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// plain names a driver with nothing above it.
const plain = "plain"

func plainDriver() (*Driver, error) { return NewDriver(nil) }

func TestMain(m *testing.M) {
	backendtest.MainWith(m, map[string]func() (server.Driver, error){plain: remembered(plainDriver), lax: laxDriver, vethOnly: remembered(vethDriver), capable: capableDriver, linkless: linklessDriver}, mirrors{})
}

// config is that of an installation of its own.
func config(t testing.TB) Config {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{Backend: plain, Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30,
		Installation: "test" + strconv.Itoa(os.Getpid()), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, d := range []string{cfg.Keepers, cfg.Scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.ShowLog(t, cfg.Keepers)
	return cfg
}
