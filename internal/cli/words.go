package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// printable makes text from a cell safe for a terminal: control characters become visible.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if unicode.IsControl(r) || r == utf8.RuneError || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "s") || strings.HasSuffix(noun, "ss") {
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// size formats a number of bytes for people.
func size(n int64) string {
	f := float64(n)
	for _, u := range []string{"B", "KiB", "MiB", "GiB"} {
		if f < 1024 {
			if u == "B" {
				return fmt.Sprintf("%.0f B", f)
			}
			return fmt.Sprintf("%.1f %s", f, u)
		}
		f /= 1024
	}
	return fmt.Sprintf("%.1f TiB", f)
}

func limitValue(name, v string) string {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && (name == "memory" || name == "disk") {
		return size(n)
	}
	return v
}

// cut shortens a line to n columns.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// ago formats a time for people.
func ago(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	d := time.Since(t)
	switch {
	case d < 10*time.Second:
		return "just now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

func short(digest string) string {
	s := strings.TrimPrefix(digest, "sha256:")
	if len(s) > 12 {
		return s[:12]
	}
	return s
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ")
}

func section(w io.Writer, title string, n int, line func(int) string) {
	if n == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for i := range n {
		fmt.Fprintf(w, "  %s\n", line(i))
	}
}

// table aligns columns. On a terminal the last column is cut to the width; output for programs
// is never cut.
type table struct {
	w    io.Writer
	cut  int // columns of the terminal; 0 is no terminal
	rows [][]string
}

func (a *app) newTable(w io.Writer) *table {
	t := &table{w: w}
	if a.terminalOut {
		t.cut = a.width
	}
	return t
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	t.rows = append(t.rows, cells)
}

func (t *table) flush() {
	var wide []int
	for _, r := range t.rows {
		for i, c := range r {
			if i == len(wide) {
				wide = append(wide, 0)
			}
			wide[i] = max(wide[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range t.rows {
		var b strings.Builder
		for i, c := range r {
			b.WriteString(c)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", wide[i]-utf8.RuneCountInString(c)+2))
			}
		}
		line := strings.TrimRight(b.String(), " ")
		if t.cut > 0 {
			line = cut(line, t.cut)
		}
		fmt.Fprintln(t.w, line)
	}
}

// apiError turns an error of ours into an error of the API.
func apiError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*api.Error); ok {
		return err
	}
	return &api.Error{Kind: api.Kind(cell.KindOf(err)), Message: err.Error(), Hint: cell.HintOf(err)}
}

// arg returns the only argument, or "" for the latest from here.
func arg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
