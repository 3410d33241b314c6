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
		if got := Of(cell.ModelUse{Model: c.model, Input: 100, Output: 10, CacheRead: 100, CacheWrite: 100}, nil); got != (Use{c.want, c.known, false}) {
			t.Errorf("%s: %+v", c.model, got)
		}
	}
	if got := Of(cell.ModelUse{Model: "claude-sonnet-4-5", Input: 1e6, Output: 1e6, CacheRead: 1e6, CacheWrite: 1e6}, nil); got.MicroUSD != 22_050_000 {
		t.Errorf("a million tokens of each kind: %+v", got)
	}
	if got := Of(cell.ModelUse{Model: "gpt-5-nano", Input: 1}, nil); got.MicroUSD != 1 {
		t.Errorf("one token costs %+v", got)
	}
	if got := Of(cell.ModelUse{Model: "new", Requests: 3}, nil); got != (Use{Known: true}) {
		t.Errorf("no token: %+v", got)
	}
}

// The user's own prices come before the table, the first that matches. A sum has an end.
func TestOwnPrices(t *testing.T) {
	own := []Own{{"gpt-5", Rate{Input: 2}}, {"claude-*", Rate{Input: 3}}, {"local/*", Rate{}}, {"*", Rate{Input: 1e6}}}
	for model, want := range map[string]Use{
		"gpt-5":             {200, true, true},
		"gpt-5-2025-08-07":  {200, true, true},
		"gpt-5-latest":      {200, true, true},
		"gpt-5-mini":        {100e6, true, true},
		"claude-sonnet-4-5": {300, true, true},
		"local/qwen":        {0, true, true},
	} {
		if got := Of(cell.ModelUse{Model: model, Input: 100}, own); got != want {
			t.Errorf("%s: %+v", model, got)
		}
	}
	if got := Of(cell.ModelUse{Model: "gpt-5-mini", Input: 1e6}, own[:3]); got != (Use{250_000, true, false}) {
		t.Errorf("by the table: %+v", got)
	}
	if got := Of(cell.ModelUse{Model: "x", Input: 1 << 62}, own); got.MicroUSD != most {
		t.Errorf("a sum without an end: %+v", got)
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
