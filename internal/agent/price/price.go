// Package price is a table of what models cost, with its date.
//
// It has the list prices of ordinary requests in US dollars; where they depend on the length of a
// prompt, the higher ones. It promises no price for a model that it does not know: a name stands for
// itself and its dated versions, and not for what begins like it. The sum that a service charges may
// be another one.
package price

import (
	_ "embed"
	"encoding/json"
	"math"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

//go:embed prices.json
var text []byte

// rate is in dollars for a million tokens, which is millionths of a dollar for a token.
type rate struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read"`
	CacheWrite float64 `json:"cache_write"`
}

var table = sync.OnceValue(func() (t struct {
	Date  string          `json:"date"`
	Rates map[string]rate `json:"usd_per_million_tokens"`
}) {
	if err := json.Unmarshal(text, &t); err != nil {
		panic(err) // its test reads it
	}
	return t
})

// Date is the day of the table, YYYY-MM-DD.
func Date() string { return table().Date }

// Of returns what a use of a model costs, in millionths of a US dollar, rounded up. It is false for a
// model without a price.
func Of(u cell.ModelUse) (int64, bool) {
	if u.Tokens() == 0 {
		return 0, true
	}
	r, ok := rateOf(u.Model)
	if !ok {
		return 0, false
	}
	sum := float64(u.Input)*r.Input + float64(u.Output)*r.Output + float64(u.CacheRead)*r.CacheRead + float64(u.CacheWrite)*r.CacheWrite
	return int64(math.Ceil(sum - 1e-9)), true
}

// rateOf finds the rate of a name: its own, or that of the name before its date or "-latest".
func rateOf(model string) (rate, bool) {
	rates := table().Rates
	if r, ok := rates[model]; ok {
		return r, true
	}
	for i := len(model) - 1; i > 0; i-- {
		if model[i] == '-' && version(model[i+1:]) {
			if r, ok := rates[model[:i]]; ok {
				return r, true
			}
		}
	}
	return rate{}, false
}

// version reports whether the end of a name is a date, such as 20250929 or 2025-08-07, or "latest".
func version(s string) bool {
	if s == "latest" {
		return true
	}
	digits := strings.ReplaceAll(s, "-", "")
	return len(digits) == 8 && strings.HasPrefix(digits, "20") && strings.Trim(digits, "0123456789") == ""
}
