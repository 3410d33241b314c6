package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Budget is what a cell and its forks may use together before they are paused; 0: any amount.
type Budget struct {
	Time     int64 `json:"time_ms,omitempty"`        // in which commands run, of all cells together
	Requests int64 `json:"requests,omitempty"`       // to models
	Tokens   int64 `json:"tokens,omitempty"`         // that models read and wrote, of caches, too
	MicroUSD int64 `json:"usd_millionths,omitempty"` // by the table of prices
}

// Bounds of a budget.
const (
	maxBudgetTime  = 10 * 365 * 24 * time.Hour
	maxBudgetCount = int64(1e15)
)

// budgetNames are the parts of a budget, in order.
func budgetNames() []string { return []string{"time", "requests", "tokens", "usd"} }

// part is a part of a budget by its name; nil for another name.
func (b *Budget) part(name string) *int64 {
	switch name {
	case "time":
		return &b.Time
	case "requests":
		return &b.Requests
	case "tokens":
		return &b.Tokens
	case "usd":
		return &b.MicroUSD
	}
	return nil
}

// limit is a part of a budget by its name among limits: "budget.time".
func (b *Budget) limit(name string) *int64 {
	part, ok := strings.CutPrefix(name, "budget.")
	if !ok {
		return nil
	}
	return b.part(part)
}

// ParseBudget reads "time=2h,requests=500,tokens=200k,usd=5": one of them at least, and each once.
// Nothing, zero, less, and what overflows are errors.
func ParseBudget(s string) (b Budget, err error) {
	bad := func(format string, args ...any) (Budget, error) {
		return Budget{}, cell.Errorf(cell.Invalid, "policy.ParseBudget", "write it as time=2h,requests=500,tokens=200k,usd=5, or some of these", "%s is no budget: %w", Quoted(s), fmt.Errorf(format, args...))
	}
	for item := range strings.SplitSeq(s, ",") {
		name, text, _ := strings.Cut(item, "=")
		name, text = strings.TrimSpace(name), strings.TrimSpace(text)
		to := b.part(name)
		switch {
		case to == nil && name == "":
			return bad("something is missing")
		case to == nil:
			return bad("it has time, requests, tokens and usd, and no %s", Quoted(name))
		case *to != 0:
			return bad("it has %s twice", name)
		}
		ok := false
		if name == "time" {
			var d time.Duration
			d, err = time.ParseDuration(text)
			ok = err == nil && d >= time.Second && d <= maxBudgetTime
			*to = d.Milliseconds()
		} else {
			*to, ok = parseAmount(text, map[bool]float64{true: 1e6, false: 1}[name == "usd"], name != "requests")
		}
		if !ok {
			return bad("%s is no amount of %s above zero", Quoted(text), name)
		}
	}
	return b, nil
}

// parseAmount reads a positive decimal number, times unit; with suffixes, k and M stand for a thousand
// and a million. What is left of it must be whole.
func parseAmount(s string, unit float64, suffixes bool) (int64, bool) {
	if suffixes && s != "" {
		switch s[len(s)-1] {
		case 'k', 'K':
			s, unit = s[:len(s)-1], unit*1e3
		case 'm', 'M':
			s, unit = s[:len(s)-1], unit*1e6
		}
	}
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	n *= unit
	if err != nil || n < 1 || n > float64(maxBudgetCount) || math.Abs(n-math.Round(n)) > 1e-6*n {
		return 0, false
	}
	return int64(math.Round(n)), true
}

// Amount is an amount of a budget for people: "2h0m0s", "500 requests", "200000 tokens", "$5.00".
func Amount(name string, n int64) string {
	switch name {
	case "time":
		return (time.Duration(n) * time.Millisecond).String()
	case "usd":
		if n%10_000 == 0 {
			return fmt.Sprintf("$%.2f", float64(n)/1e6)
		}
		return fmt.Sprintf("$%.4f", float64(n)/1e6)
	}
	return strconv.FormatInt(n, 10) + " " + name
}

// Each yields the parts of the budget that bind, in order.
func (b Budget) Each(yield func(name string, n int64) bool) {
	for _, name := range budgetNames() {
		if n := *b.part(name); n > 0 && !yield(name, n) {
			return
		}
	}
}

// Part is a part of a budget by its name.
func (b Budget) Part(name string) int64 { return *b.part(name) }

// AddPart adds to a part.
func (b *Budget) AddPart(name string, n int64) { *b.part(name) += n }
