package race

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func rows(list ...map[string]string) []map[string]string { return list }

func TestFill(t *testing.T) {
	t.Parallel()
	words, unused, err := Fill([]string{"agent", "--hint={{.hint}}", "{{ .n }}/{{.hint}}", `{{"{{.hint}}"}}`, "plain }}"},
		rows(map[string]string{"hint": "a b; {{.n}}", "why": "x"}, map[string]string{"hint": "two", "why": ""}), 3)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"agent", "--hint=a b; {{.n}}", "1/a b; {{.n}}", "{{.hint}}", "plain }}"}, // a value is never read as a template
		{"agent", "--hint=two", "2/two", "{{.hint}}", "plain }}"},
		{"agent", "--hint=a b; {{.n}}", "3/a b; {{.n}}", "{{.hint}}", "plain }}"}, // rows repeat
	}
	for i := range want {
		if !slices.Equal(words[i], want[i]) {
			t.Errorf("attempt %d: %q, not %q", i+1, words[i], want[i])
		}
	}
	if !slices.Equal(unused, []string{"why"}) {
		t.Errorf("unused: %q", unused)
	}
}

func TestFillRefuses(t *testing.T) {
	t.Parallel()
	hint := rows(map[string]string{"hint": "x"})
	for name, c := range map[string]struct {
		words []string
		rows  []map[string]string
		says  string
	}{
		"an unknown field":         {[]string{"{{.hnt}}"}, hint, `no field "hnt"`},
		"a field of some rows":     {[]string{"{{.b}}"}, rows(map[string]string{"b": "1"}, map[string]string{"c": "1"}), "row 2 of the variations"},
		"a function":               {[]string{`{{printf "%99999999d" 1}}`}, hint, "neither a field nor text"},
		"a pipe":                   {[]string{"{{.hint | html}}"}, hint, "neither a field nor text"},
		"a loop":                   {[]string{"{{range 1000000000}}x{{end}}"}, hint, "neither a field nor text"},
		"a field of a field":       {[]string{"{{.hint.x}}"}, hint, "neither a field nor text"},
		"a definition":             {[]string{`{{$x := .hint}}`}, hint, "neither a field nor text"},
		"half a template":          {[]string{"{{.hint"}, hint, "cannot read"},
		"a name that is none":      {[]string{"x"}, rows(map[string]string{"a b": "1"}), "no name of a field"},
		"the name of the number":   {[]string{"x"}, rows(map[string]string{"n": "1"}), "number of the attempt"},
		"a row without fields":     {[]string{"x"}, rows(map[string]string{}), "has no fields"},
		"too many rows":            {[]string{"x"}, slices.Repeat(hint, maxRows+1), "too many"},
		"more text than it can be": {[]string{"x"}, rows(map[string]string{"hint": strings.Repeat("x", maxRowsBytes+1)}), "too many"},
	} {
		_, _, err := Fill(c.words, c.rows, 3)
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParse: what is text as it stands is not changed, and what is made of a template is its text and values alone.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"x", "{{.hint}}", `{{"}}"}}`, "{{- .hint -}}", "{{/* x */}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		out, err := p.with(map[string]string{"hint": "v"})
		if err == nil && !strings.Contains(s, "{{") && out != s {
			t.Errorf("%q became %q", s, out)
		}
		if len(out) > len(s)+len(p.parts) {
			t.Errorf("%q became %q", s, out)
		}
	})
}

func score(f float64) *float64 { return &f }

func exit(n int) *int { return &n }

func TestRank(t *testing.T) {
	t.Parallel()
	ok := func(name string, with ...func(*api.RaceAttempt)) api.RaceAttempt {
		a := api.RaceAttempt{CellName: name, State: api.AttemptSucceeded, ExitCode: exit(0), Files: 2, Added: 5, Deleted: 5, TookMS: 5000}
		for _, f := range with {
			f(&a)
		}
		return a
	}
	for name, c := range map[string]struct {
		attempts []api.RaceAttempt
		winner   string
		why      string
		ranks    []int
	}{
		"the check decides, whatever else is said for one that fails it": {
			[]api.RaceAttempt{
				ok("a", func(a *api.RaceAttempt) {
					a.State, a.Score, a.Added, a.Check = api.AttemptFailed, score(99), 0, &api.Check{ExitCode: 1}
				}),
				ok("b"),
			}, "b", "its check passed, and no other's did", []int{2, 1}},
		"a finding": {[]api.RaceAttempt{ok("a", func(a *api.RaceAttempt) { a.High, a.Added, a.Score = []string{"test-deleted"}, 0, score(9) }), ok("b", func(a *api.RaceAttempt) { a.Score = score(1) })},
			"b", "as one other's did; nothing of severity high was found in it, and in a test-deleted", []int{2, 1}},
		"nothing changed": {[]api.RaceAttempt{ok("a", func(a *api.RaceAttempt) { a.Files, a.Added, a.Deleted = 0, 0, 0 }), ok("b")}, "b", "a changed nothing", []int{2, 1}},
		"a score before cost": {[]api.RaceAttempt{ok("a", func(a *api.RaceAttempt) { a.Score, a.USD = score(1), 0.1 }), ok("b", func(a *api.RaceAttempt) { a.Score, a.USD = score(1.5), 9 })},
			"b", "highest score: 1.5, a has 1", []int{2, 1}},
		"no score": {[]api.RaceAttempt{ok("a"), ok("b", func(a *api.RaceAttempt) { a.Score = score(-3) })}, "b", "score -3, and a has none", []int{2, 1}},
		"cost before size": {[]api.RaceAttempt{ok("a", func(a *api.RaceAttempt) { a.USD, a.Added = 0.2, 0 }), ok("b", func(a *api.RaceAttempt) { a.USD = 0.1 })},
			"b", "lowest cost: $0.1000, a $0.2000", []int{2, 1}},
		"a cost that was not seen is not the lowest": {[]api.RaceAttempt{ok("a"), ok("b", func(a *api.RaceAttempt) { a.USD, a.Added = 0.1, 4 })},
			"b", "smallest change: 9 lines, a has 10", []int{2, 1}},
		"size before tokens, tokens before time": {[]api.RaceAttempt{ok("a", func(a *api.RaceAttempt) { a.Tokens, a.TookMS = 60, 1000 }), ok("b", func(a *api.RaceAttempt) { a.Tokens = 30 }),
			ok("c", func(a *api.RaceAttempt) { a.Tokens, a.Added = 1, a.Added+1 })}, "b", "fewest tokens: 30, a has 60", []int{2, 1, 3}},
		"tokens that were not seen are not the fewest": {[]api.RaceAttempt{ok("a"), ok("b", func(a *api.RaceAttempt) { a.Tokens = 30 })}, "a", "nothing tells it from b but its lower number", []int{1, 2}},
		"size before time": {[]api.RaceAttempt{ok("a", func(a *api.RaceAttempt) { a.TookMS = 1000 }), ok("b", func(a *api.RaceAttempt) { a.Deleted = 0 }), ok("c")},
			"b", "as 2 others' did; smallest change: 5 lines, a has 10", []int{2, 1, 3}},
		"files":                    {[]api.RaceAttempt{ok("a"), ok("b", func(a *api.RaceAttempt) { a.Files = 1 })}, "b", "fewest files: 1, a has 2", []int{2, 1}},
		"time":                     {[]api.RaceAttempt{ok("a"), ok("b", func(a *api.RaceAttempt) { a.TookMS = 3999 })}, "b", "fastest: 3.999s, a took 5s", []int{2, 1}},
		"a time that says nothing": {[]api.RaceAttempt{ok("a"), ok("b", func(a *api.RaceAttempt) { a.TookMS = 5001 })}, "a", "nothing tells it from b but its lower number", []int{1, 2}},
		"one alone":                {[]api.RaceAttempt{ok("a")}, "a", "it was the only attempt", []int{1}},
		"none": {[]api.RaceAttempt{
			ok("a", func(a *api.RaceAttempt) { a.State, a.Check = api.AttemptFailed, &api.Check{ExitCode: 1} }),
			ok("b", func(a *api.RaceAttempt) { a.State, a.ExitCode = api.AttemptFailed, exit(3) }),
			ok("c", func(a *api.RaceAttempt) { a.State = api.AttemptStopped }), ok("d", func(a *api.RaceAttempt) { a.State = api.AttemptLost }),
		}, "", "no attempt of 4 succeeded: 1 failed the check, 1 failed, 1 was stopped, 1 was lost", []int{1, 2, 0, 0}},
	} {
		for i := range c.attempts {
			c.attempts[i].Number = i + 1
		}
		best, why := Rank(c.attempts, true)
		got := ""
		if best != nil {
			got = best.CellName
		}
		var ranks []int
		for _, a := range c.attempts {
			ranks = append(ranks, a.Rank)
		}
		if got != c.winner || !strings.Contains(why, c.why) || !slices.Equal(ranks, c.ranks) {
			t.Errorf("%s: %q wins, since %s; ranks %v", name, got, why, ranks)
		}
	}
}

// TestRankSaysWhatIsDoubtful: a winner is named with what speaks against it.
func TestRankSaysWhatIsDoubtful(t *testing.T) {
	t.Parallel()
	one := []api.RaceAttempt{{Number: 1, CellName: "a", State: api.AttemptSucceeded, ExitCode: exit(0), High: []string{"test-deleted"}}}
	_, why := Rank(one, false)
	if !strings.Contains(why, "its command succeeded") || !strings.Contains(why, "it changed nothing") || !strings.Contains(why, "test-deleted") {
		t.Error(why)
	}
}

func TestUntil(t *testing.T) {
	t.Parallel()
	for until, want := range map[string]int{"": 0, "all": 0, "first": 1, "3": 3} {
		if n, err := Wanted(until); n != want || err != nil {
			t.Errorf("%q: %d, %v", until, n, err)
		}
	}
	for _, until := range []string{"0", "-1", "257", "last"} {
		if _, err := Wanted(until); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q: %v", until, err)
		}
	}
	if Enough("all", 9) || Enough("2", 1) || !Enough("2", 2) || !Enough("first", 1) {
		t.Error("when a race ends")
	}
}

func TestScore(t *testing.T) {
	t.Parallel()
	if f, err := Score("-1.5e3"); f != -1500 || err != nil {
		t.Error(f, err)
	}
	for _, s := range []string{"", "NaN", "inf", "-Inf", "1e999", "7 points"} {
		if _, err := Score(s); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q: %v", s, err)
		}
	}
}
