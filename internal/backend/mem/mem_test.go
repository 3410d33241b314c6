package mem_test

import (
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/backend/mem"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) *backendtest.Machine {
		h := &mem.Host{}
		t.Cleanup(h.Wait)
		return &backendtest.Machine{
			Open: func() (backend.Backend, func()) { return h.Open(), func() {} },
			Left: func() (left []string) {
				for _, id := range h.Cells() {
					left = append(left, string(id))
				}
				return left
			},
		}
	})
}
