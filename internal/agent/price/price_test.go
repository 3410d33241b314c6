package price

import (
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

func TestPrices(t *testing.T) {
	for _, c := range []struct {
		model string
		want  int64
		known bool
	}{
		{"claude-sonnet-4-5", 300 + 150 + 30 + 375, true},
		{"claude-sonnet-4-5-20250929", 855, true},
		{"claude-sonnet-4-5-latest", 855, true},
		{"claude-opus-4-20250514", 4275, true},
		{"gpt-5-2025-08-07", 363, true}, // of 362.5
		{"gpt-5-pro", 0, false},
		{"gpt-5.2", 0, false},
		{"claude-sonnet-4-6", 0, false},
		{"", 0, false},
		{cell.OtherModels, 0, false},
	} {
		got, known := Of(cell.ModelUse{Model: c.model, Input: 100, Output: 10, CacheRead: 100, CacheWrite: 100})
		if known != c.known || got != c.want {
			t.Errorf("%s: %d, %t", c.model, got, known)
		}
	}
	if got, _ := Of(cell.ModelUse{Model: "claude-sonnet-4-5", Input: 1e6, Output: 1e6, CacheRead: 1e6, CacheWrite: 1e6}); got != 22_050_000 {
		t.Errorf("a million tokens of each kind: %d", got)
	}
	if got, _ := Of(cell.ModelUse{Model: "gpt-5-nano", Input: 1}); got != 1 {
		t.Errorf("one token costs %d", got)
	}
	if got, known := Of(cell.ModelUse{Model: "new", Requests: 3}); got != 0 || !known {
		t.Errorf("no token: %d, %t", got, known)
	}
}

func TestTableIsDated(t *testing.T) {
	if _, err := time.Parse(time.DateOnly, Date()); err != nil {
		t.Error(err)
	}
	for name, r := range table().Rates {
		if r.Input <= 0 || r.Output < r.Input || r.CacheRead <= 0 || r.CacheRead >= r.Input || r.CacheWrite < r.Input {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
