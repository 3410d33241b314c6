package none_test

import (
	"log/slog"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/backend/none"
	"github.com/pando-dev/pando/internal/keeper/server"
)

func TestMain(m *testing.M) {
	backendtest.Main(m, map[string]func() (server.Driver, error){none.Name: none.NewDriver})
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) *backendtest.Machine {
		dir := t.TempDir()
		backendtest.ShowLog(t, dir)
		return &backendtest.Machine{
			Open: func() (backend.Backend, func()) {
				b := none.New(none.Config{Keepers: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
				return b, b.Close
			},
			Left: func() []string { return backendtest.KeeperFiles(dir) },
		}
	})
}
