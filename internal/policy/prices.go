package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/cell"
)

// maxPrice bounds a price, in dollars for a million tokens.
const maxPrice = 1e6

// FilePrice is one entry of prices.
type FilePrice struct {
	price.Own
	Line int
}

// pricesShape is a mapping of names and patterns of models to their prices.
type pricesShape struct{ f *File }

func (s pricesShape) read(r *reader, n ast.Node, path string) {
	for _, p := range r.pairs(n, path) {
		models := keyText(p.Key)
		at := join(path, Printable(models))
		line, _ := place(p.Key)
		switch {
		case models == "" || len(models) > 200 || strings.ContainsFunc(models, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
			r.fail(p.Key, "%s is no name of a model, or a pattern of names", Quoted(models))
		case slices.ContainsFunc(s.f.Prices, func(o FilePrice) bool { return o.Models == models }):
			r.fail(p.Key, "%s is there twice", at)
		}
		own := FilePrice{Own: price.Own{Models: models}, Line: line}
		given := map[string]bool{}
		priceWords(&own.Rate, func(name string) { given[name] = true }).read(r, p.Value, at)
		if r.err != nil {
			return
		}
		if !given["cache_read"] {
			own.CacheRead = own.Input
		}
		if !given["cache_write"] {
			own.CacheWrite = own.Input
		}
		s.f.Prices = append(s.f.Prices, own)
	}
}

func (s pricesShape) schema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": priceWords(&price.Rate{}, nil).schema(), "minProperties": 1}
}

// priceWords are the words of a price. given is told the name of each that is there.
func priceWords(to *price.Rate, given func(name string)) section {
	amount := func(name, about string, dst *float64, must bool) word {
		return word{name: name, about: about, must: must, shape: text{numbers: true, set: func(s string) (err error) {
			given(name)
			*dst, err = parsePrice(s)
			return err
		}}}
	}
	return section{words: []word{
		amount("input", "US dollars for a million tokens of input; 0 for a model that costs nothing.", &to.Input, true),
		amount("output", "US dollars for a million tokens of output.", &to.Output, true),
		amount("cache_read", "Likewise, of input that was read from a cache. Without, as input.", &to.CacheRead, false),
		amount("cache_write", "Likewise, of input that was written to a cache. Without, as input.", &to.CacheWrite, false),
	}}
}

func parsePrice(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || s == "" || strings.Trim(s, "0123456789.") != "" || n > maxPrice {
		return 0, cell.Errorf(cell.Invalid, "policy.ParseFile", "write US dollars for a million tokens, such as 2.50", "%s is no price", Quoted(s))
	}
	return n, nil
}

// prices adds the prices of a layer after those of the layers above it, which keep theirs. In a layer
// names come before patterns, and long patterns before short ones, in whatever order they are written. A low
// price is a wider budget: a repository says none, and no layer below one that has a budget of usd.
func (m *merger) prices(l Layer) error {
	list := slices.Clone(l.File.Prices)
	if len(list) > 0 && l.Name == LayerProject {
		return cell.Errorf(cell.Denied, "policy.Merge", "write them into your own policy, or a file for --policy",
			"cannot use prices (%s): a policy of a repository says no prices", l.File.at(list[0].Line))
	}
	if at := m.asked["budget.usd"]; len(list) > 0 && at != "" { // of a layer above: that of this one comes later
		return cell.Errorf(cell.Denied, "policy.Merge", "take prices out at "+l.File.at(list[0].Line)+", or write them where the budget is",
			"cannot use prices (%s): the budget of usd at %s goes without them", l.File.at(list[0].Line), at)
	}
	slices.SortFunc(list, func(a, b FilePrice) int {
		if x, y := strings.Contains(a.Models, "*"), strings.Contains(b.Models, "*"); x != y {
			return map[bool]int{true: 1, false: -1}[x]
		}
		if len(a.Models) != len(b.Models) {
			return len(b.Models) - len(a.Models)
		}
		return strings.Compare(a.Models, b.Models)
	})
	for _, p := range list {
		if slices.ContainsFunc(m.r.Prices, func(o price.Own) bool { return o.Models == p.Models }) {
			continue
		}
		m.r.Prices = append(slices.Clone(m.r.Prices), p.Own)
		m.origin("price "+p.Models, l.File.at(p.Line))
	}
	return nil
}

// priceText is a price in words.
func priceText(p price.Own) string {
	usd := func(n float64) string { return "$" + strconv.FormatFloat(n, 'f', -1, 64) }
	if p.Rate == (price.Rate{}) {
		return p.Models + " costs nothing"
	}
	return p.Models + " costs " + usd(p.Input) + " in, " + usd(p.Output) + " out, " + usd(p.CacheRead) + " from and " + usd(p.CacheWrite) + " to a cache, for a million tokens"
}
