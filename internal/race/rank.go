package race

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// Rank orders the attempts of a race that has ended: it sets their ranks, and returns the winner, nil for none, and why it
// won. Only an attempt that succeeded can win. Of these the best is, by the first thing in which two differ: one in which
// nothing of severity high was found, one that changed something, the higher score, the lower cost, the smaller change,
// the fewer tokens, the shorter time in seconds, the lower number.
func Rank(attempts []api.RaceAttempt, checked bool) (winner *api.RaceAttempt, why string) {
	var good []*api.RaceAttempt
	var rest []*api.RaceAttempt
	seen := map[string]bool{seenCost: true, seenTokens: true, "": true} // of all: what is not seen is not the lowest
	for i := range attempts {
		a := &attempts[i]
		switch a.State {
		case api.AttemptSucceeded:
			good = append(good, a)
			seen[seenCost], seen[seenTokens] = seen[seenCost] && a.USD > 0, seen[seenTokens] && a.Tokens > 0
		case api.AttemptFailed:
			rest = append(rest, a)
		}
	}
	slices.SortFunc(good, func(a, b *api.RaceAttempt) int {
		for _, c := range criteria {
			if !seen[c.needs] {
				continue
			}
			if n := c.compare(a, b); n != 0 {
				return n
			}
		}
		return cmp.Compare(a.Number, b.Number)
	})
	for i, a := range append(good, rest...) {
		a.Rank = i + 1
	}
	if len(good) == 0 {
		return nil, noWinner(attempts, checked)
	}
	return good[0], reason(good, len(attempts), checked, seen)
}

// What may not be seen of an attempt.
const (
	seenCost   = "cost"
	seenTokens = "tokens"
)

// criterion is something in which two attempts that succeeded may differ.
type criterion struct {
	needs   string                          // what must have been seen of all; "": nothing
	compare func(a, b *api.RaceAttempt) int // negative: a is better
	words   func(best, next *api.RaceAttempt) string
}

var criteria = []criterion{
	{compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(min(len(a.High), 1), min(len(b.High), 1)) },
		words: func(_, next *api.RaceAttempt) string {
			return "nothing of severity high was found in it, and in " + next.CellName + " " + strings.Join(next.High, ", ")
		}},
	{compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(min(b.Files, 1), min(a.Files, 1)) },
		words: func(_, next *api.RaceAttempt) string { return next.CellName + " changed nothing" }},
	{compare: compareScores, words: func(best, next *api.RaceAttempt) string {
		if next.Score == nil {
			return fmt.Sprintf("score %s, and %s has none", number(*best.Score), next.CellName)
		}
		return fmt.Sprintf("highest score: %s, %s has %s", number(*best.Score), next.CellName, number(*next.Score))
	}},
	{needs: seenCost, compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(a.USD, b.USD) },
		words: func(best, next *api.RaceAttempt) string {
			return fmt.Sprintf("lowest cost: $%.4f, %s $%.4f", best.USD, next.CellName, next.USD)
		}},
	{compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(a.Added+a.Deleted, b.Added+b.Deleted) },
		words: func(best, next *api.RaceAttempt) string {
			return fmt.Sprintf("smallest change: %s, %s has %d", lines(best.Added+best.Deleted), next.CellName, next.Added+next.Deleted)
		}},
	{compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(a.Files, b.Files) },
		words: func(best, next *api.RaceAttempt) string {
			return fmt.Sprintf("fewest files: %d, %s has %d", best.Files, next.CellName, next.Files)
		}},
	{needs: seenTokens, compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(a.Tokens, b.Tokens) },
		words: func(best, next *api.RaceAttempt) string {
			return fmt.Sprintf("fewest tokens: %d, %s has %d", best.Tokens, next.CellName, next.Tokens)
		}},
	{compare: func(a, b *api.RaceAttempt) int { return cmp.Compare(a.TookMS/1000, b.TookMS/1000) }, // less is chance
		words: func(best, next *api.RaceAttempt) string {
			return fmt.Sprintf("fastest: %s, %s took %s", took(best.TookMS), next.CellName, took(next.TookMS))
		}},
}

// compareScores has the higher score first, and one without a score last.
func compareScores(a, b *api.RaceAttempt) int {
	switch {
	case a.Score == nil && b.Score == nil:
		return 0
	case a.Score == nil:
		return 1
	case b.Score == nil:
		return -1
	}
	return cmp.Compare(*b.Score, *a.Score)
}

// reason says why the first of the attempts that succeeded is the winner.
func reason(good []*api.RaceAttempt, all int, checked bool, seen map[string]bool) string {
	did := "its command succeeded"
	if checked {
		did = "its check passed"
	}
	best := good[0]
	switch {
	case all == 1:
		did += "; it was the only attempt"
	case len(good) == 1:
		did += ", and no other's did"
	case len(good) == 2:
		did += ", as one other's did; " + decisive(best, good[1], seen)
	default:
		did += fmt.Sprintf(", as %d others' did; %s", len(good)-1, decisive(best, good[1], seen))
	}
	if best.Files == 0 {
		did += "; it changed nothing, so nothing shows that there was something to do"
	}
	if len(best.High) > 0 {
		did += "; look at what was found in it first: " + strings.Join(best.High, ", ")
	}
	return did
}

// decisive says in what the best first differs from the next.
func decisive(best, next *api.RaceAttempt, seen map[string]bool) string {
	for _, c := range criteria {
		if seen[c.needs] && c.compare(best, next) != 0 {
			return c.words(best, next)
		}
	}
	return "nothing tells it from " + next.CellName + " but its lower number"
}

// noWinner says why no attempt won.
func noWinner(attempts []api.RaceAttempt, checked bool) string {
	counts := map[string]int{}
	for i := range attempts {
		a := &attempts[i]
		switch {
		case a.State != api.AttemptFailed:
			counts[a.State]++
		case checked && a.Check != nil && a.ExitCode != nil && *a.ExitCode == 0:
			counts["failed the check"]++
		default:
			counts[api.AttemptFailed]++
		}
	}
	var parts []string
	for _, s := range []string{"failed the check", api.AttemptFailed, api.AttemptStopped, api.AttemptLost} {
		if n := counts[s]; n > 0 && s == "failed the check" {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		} else if n > 0 && s == api.AttemptFailed {
			parts = append(parts, fmt.Sprintf("%d failed", n))
		} else if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, was(n)+s))
		}
	}
	return fmt.Sprintf("no attempt of %d succeeded: %s", len(attempts), strings.Join(parts, ", "))
}

func was(n int) string {
	if n == 1 {
		return "was "
	}
	return "were "
}

func lines(n int) string {
	if n == 1 {
		return "1 line"
	}
	return strconv.Itoa(n) + " lines"
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func took(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).String()
}

// Enough reports whether a race with so many attempts that succeeded ends, as its request's until says.
func Enough(until string, succeeded int) bool {
	n, err := Wanted(until)
	return err == nil && n > 0 && succeeded >= n
}
