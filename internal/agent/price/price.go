// Package price is a table of what models cost, with its date.
//
// It has the list prices of ordinary requests in US dollars; where they depend on the length of a
// prompt, the higher ones. It promises no price for a model that it does not know: a name stands for
// itself and its dated versions, and not for what begins like it. The sum that a service charges may
// be another one. Prices of the user's own (Own) come before the table.
package price

import (
	_ "embed"
	"encoding/json"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
)

//go:embed prices.json
var text []byte

// Rate is in dollars for a million tokens, which is millionths of a dollar for a token.
type Rate struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read"`
	CacheWrite float64 `json:"cache_write"`
}

var table = sync.OnceValue(func() (t struct {
	Date  string          `json:"date"`
	Rates map[string]Rate `json:"usd_per_million_tokens"`
}) {
	if err := json.Unmarshal(text, &t); err != nil {
		panic(err) // its test reads it
	}
	return t
})

// Date is the day of the table, YYYY-MM-DD.
func Date() string { return table().Date }

// Own is a price of the user's own.
type Own struct {
	// Models is the name of a model, with its dated versions, or a pattern of names in which *
	// stands for any characters.
	Models string `json:"models"`
	Rate
}

// matches reports whether the price is that of a model.
func (o Own) matches(model string) bool {
	if strings.Contains(o.Models, "*") {
		return glob.Match(o.Models, model)
	}
	for name := range names(model) {
		if name == o.Models {
			return true
		}
	}
	return false
}

// most bounds a price, in millionths of a dollar: no counter of such sums overflows.
const most = 1e15

// A Use is what a use of a model costs.
type Use struct {
	MicroUSD int64 // in millionths of a US dollar, rounded up
	Known    bool  // there is a price
	Own      bool  // which is one of the user's own
}

// Of returns what a use of a model costs. Of the user's own prices the first that matches counts.
func Of(u cell.ModelUse, own []Own) Use {
	i := slices.IndexFunc(own, func(o Own) bool { return o.matches(u.Model) })
	var r Rate
	switch known := false; {
	case u.Tokens() == 0:
		return Use{Known: true}
	case i >= 0:
		r = own[i].Rate
	default:
		if r, known = rateOf(u.Model); !known {
			return Use{}
		}
	}
	sum := float64(u.Input)*r.Input + float64(u.Output)*r.Output + float64(u.CacheRead)*r.CacheRead + float64(u.CacheWrite)*r.CacheWrite
	return Use{MicroUSD: int64(math.Ceil(min(sum, most) - 1e-9)), Known: true, Own: i >= 0}
}

// rateOf finds the rate of a name in the table.
func rateOf(model string) (Rate, bool) {
	rates := table().Rates
	for name := range names(model) {
		if r, ok := rates[name]; ok {
			return r, true
		}
	}
	return Rate{}, false
}

// names yields the name of a model, and that before its date or "-latest".
func names(model string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(model) {
			return
		}
		for i := len(model) - 1; i > 0; i-- {
			if model[i] == '-' && version(model[i+1:]) && !yield(model[:i]) {
				return
			}
		}
	}
}

// version reports whether the end of a name is a date, such as 20250929 or 2025-08-07, or "latest".
func version(s string) bool {
	if s == "latest" {
		return true
	}
	digits := strings.ReplaceAll(s, "-", "")
	return len(digits) == 8 && strings.HasPrefix(digits, "20") && strings.Trim(digits, "0123456789") == ""
}
