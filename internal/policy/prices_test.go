package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/cell"
)

// pricesOf merges prices of policies, each in its layer.
func pricesOf(t *testing.T, layers ...[2]string) (Result, error) {
	t.Helper()
	var list []Layer
	for _, l := range layers {
		f, err := ParseFile(l[0]+".yaml", []byte("version: 1\nprices: "+l[1]+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Layer{l[0], f})
	}
	return MergeLayers(Defaults(Host{}), list, Flags{})
}

// Names come before patterns, long patterns before short ones, and an upper layer's before a lower's.
func TestPricesOfLayers(t *testing.T) {
	r, err := pricesOf(t, [2]string{LayerUser, `{"claude-*": {input: 1, output: 2}, "*": {input: 9, output: 9.5}, gpt-5: {input: 0.25, output: 4, cache_read: 0.1, cache_write: 0.3}, "claude-opus-*": {input: 5, output: 6}}`},
		[2]string{LayerRun, `{"claude-*": {input: 7, output: 7}, o3: {input: 0, output: 0}}`})
	if err != nil {
		t.Fatal(err)
	}
	want := []price.Own{
		{Models: "gpt-5", Rate: price.Rate{Input: 0.25, Output: 4, CacheRead: 0.1, CacheWrite: 0.3}},
		{Models: "claude-opus-*", Rate: price.Rate{Input: 5, Output: 6, CacheRead: 5, CacheWrite: 5}},
		{Models: "claude-*", Rate: price.Rate{Input: 1, Output: 2, CacheRead: 1, CacheWrite: 1}},
		{Models: "*", Rate: price.Rate{Input: 9, Output: 9.5, CacheRead: 9, CacheWrite: 9}},
		{Models: "o3"},
	}
	if !slices.Equal(r.Prices, want) {
		t.Errorf("%+v", r.Prices)
	}
	var shown []string
	for _, s := range r.Show(r.Origins) {
		if s.Section == "prices" {
			shown = append(shown, s.Text+" ("+s.Origin+")")
		}
	}
	if len(shown) != 5 || shown[0] != "gpt-5 costs $0.25 in, $4 out, $0.1 from and $0.3 to a cache, for a million tokens (user.yaml:2)" || shown[4] != "o3 costs nothing (run.yaml:2)" {
		t.Errorf("%q", shown)
	}
	other, err := pricesOf(t, [2]string{LayerUser, `{gpt-5: {input: 1, output: 2}}`})
	if err != nil || other.Digest() == r.Digest() || strings.Contains(string(Defaults(Host{}).Canonical()), "prices") {
		t.Errorf("prices are no part of the digest (%v)", err)
	}
}

// A repository could widen the budgets of its cells by low prices.
func TestPricesOfARepository(t *testing.T) {
	_, err := pricesOf(t, [2]string{LayerProject, `{gpt-5: {input: 0, output: 0}}`})
	if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "project.yaml:2") {
		t.Error(err)
	}
	_, err = pricesOf(t, [2]string{LayerUser, "{gpt-5: {input: 1, output: 1}}\nlimits: {budget: usd=5}"}, [2]string{LayerRun, "{o3: {input: 0, output: 0}}"})
	if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "the budget of usd at user.yaml:3") {
		t.Error(err)
	}
}

// Each error has its place.
func TestPricesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"prices:\n  gpt-5: {input: 1}\n":                                    "[3:10] prices.gpt-5 needs output",
		"prices:\n  gpt-5: {input: -1, output: 1}\n":                        "[3:18] prices.gpt-5.input",
		"prices:\n  gpt-5: {input: 1, output: 1e9}\n":                       "[3:29] prices.gpt-5.output",
		"prices:\n  gpt-5: {input: 1, output: 1000001}\n":                   "[3:29] prices.gpt-5.output",
		"prices:\n  gpt-5: {input: 1, output: 1, cached: 1}\n":              `[3:32] "cached" is no word of prices.gpt-5`,
		"prices:\n  gpt-5: 3\n":                                             "[3:10] prices.gpt-5 must be a mapping",
		"prices:\n  \"gpt 5\": {input: 1, output: 1}\n":                     "[3:3] \"gpt 5\" is no name of a model",
		"prices:\n  a: {input: 1, output: 1}\n  a: {input: 1, output: 2}\n": "[4:3] prices.a is there twice",
		"prices: {}\n": "[2:9] prices is empty",
		"prices:\n  gpt-5: {input: ., output: 1}\n": "[3:18] prices.gpt-5.input",
	} {
		_, err := ParseFile("p.yaml", []byte("version: 1\n"+text))
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a cell keeps of a policy has its prices.
func TestPricesAreKept(t *testing.T) {
	text := "version: 1\nenvironment: {set: {A: b}}\nprices:\n  \"*\": {input: 1, output: 2.5}\n"
	rules, _, err := Bare([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := ParseFile("p", rules); err != nil || len(f.Prices) != 1 || f.Prices[0].Models != "*" || f.Prices[0].Output != 2.5 {
		t.Errorf("%s: %v", rules, err)
	}
}
