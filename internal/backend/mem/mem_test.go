package mem_test

import (
	"log/slog"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/backend/mem"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) *backendtest.Machine {
		h := &mem.Host{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
		t.Cleanup(h.Wait)
		return &backendtest.Machine{
			Open: func() (backend.Backend, func()) { return h.Open(), func() {} },
			Left: func() []string { return backendtest.KeeperFiles(h.Dir) },
		}
	})
}
