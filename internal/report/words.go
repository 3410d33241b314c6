package report

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// duration is a number of milliseconds for people: three digits of it matter at most.
func duration(ms float64) string {
	switch {
	case ms < 999.5: // not "1e+03"
		return fmt.Sprintf("%.3g ms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.2f s", ms/1000)
	}
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Second).String()
}

// commandLine is a command as a shell would take it: where its words begin and end is seen.
func commandLine(words []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%"
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; w == "" || strings.Trim(w, plain) != "" {
			quoted[i] = diff.ShellWord(w)
		}
	}
	return strings.Join(quoted, " ")
}

// sentence is text with a capital at its beginning.
func sentence(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 || r == utf8.RuneError {
		return s
	}
	return string(unicode.ToUpper(r)) + s[n:]
}

// group has findings that say the same of several places.
type group struct {
	Severity, Rule, Title, Why string
	Places                     []api.RunFinding
	Times                      int // 0 for once
}

// groups puts findings together that follow on each other and differ in their places alone, so that a page says once why it matters.
// Where there are several, the command to see one is left out at the others.
func groups(findings []api.RunFinding) (list []group) {
	for _, f := range findings {
		n := len(list)
		if n == 0 || list[n-1].Rule != f.Rule || list[n-1].Severity != f.Severity || list[n-1].Title != f.Title || list[n-1].Why != f.Why {
			list = append(list, group{Severity: f.Severity, Rule: f.Rule, Title: f.Title, Why: f.Why, Places: []api.RunFinding{f}})
			continue
		}
		f.See = ""
		g := &list[n-1]
		g.Places = append(g.Places, f)
		g.Times = len(g.Places)
	}
	return list
}
