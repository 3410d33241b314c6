package diff

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Stat writes one line for each file, like "git diff --stat", then the sums, then one line for
// ignored files.
func (d *Diff) Stat(ctx context.Context, w io.Writer, opt TextOptions) error {
	if err := d.Count(ctx); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	s := newStatTable(d.Files, opt)
	for i := range d.Files {
		out.WriteString(s.line(&d.Files[i]))
	}
	if len(d.Files) > 0 {
		fmt.Fprintf(out, " %s\n", d.Summary())
	}
	if line := d.Ignored.String(); line != "" {
		fmt.Fprintf(out, " + %s\n", line)
	}
	return out.Flush()
}

// Summary returns git's line of sums: "3 files changed, 5 insertions(+), 1
// deletion(-)". Call Count before.
func (d *Diff) Summary() string {
	var added, deleted int
	for _, c := range d.Files {
		added += c.Added
		deleted += c.Deleted
	}
	plural := func(n int, one, many string) string {
		if n == 1 {
			return "1 " + one
		}
		return strconv.Itoa(n) + " " + many
	}
	s := plural(len(d.Files), "file changed", "files changed")
	if added > 0 || deleted == 0 {
		s += ", " + plural(added, "insertion(+)", "insertions(+)")
	}
	if deleted > 0 || added == 0 {
		s += ", " + plural(deleted, "deletion(-)", "deletions(-)")
	}
	return s
}

// statTable holds the widths of the columns: name, number, graph.
type statTable struct {
	colour              bool
	name, number, graph int
	most                int // lines changed in the file that changed most
}

// newStatTable divides the width as git's show_stats does: the graph gets three eighths, or what
// it needs, and the names the rest.
func newStatTable(files []FileChange, opt TextOptions) *statTable {
	t := &statTable{colour: opt.Colour}
	bytes := 0 // width of "Bin X -> Y bytes"
	for i := range files {
		c := &files[i]
		t.name = max(t.name, columns(statName(c)))
		if c.Binary {
			old, new := statSizes(c)
			bytes = max(bytes, 14+len(strconv.FormatInt(old, 10))+len(strconv.FormatInt(new, 10)))
			t.number = 3
			continue
		}
		t.most = max(t.most, c.Added+c.Deleted)
	}
	t.number = max(t.number, len(strconv.Itoa(t.most)))
	width := opt.Width
	if width <= 0 {
		width = 80
	}
	width = max(width, 16+6+t.number)
	t.graph = max(t.most, bytes-4)
	if t.name+t.number+6+t.graph > width {
		if most := width*3/8 - t.number - 6; t.graph > most {
			t.graph = max(most, 6)
		}
		if left := width - t.number - 6 - t.graph; t.name > left {
			t.name = left
		} else {
			t.graph = width - t.number - 6 - t.name
		}
	}
	return t
}

func (t *statTable) line(c *FileChange) string {
	name := shorten(statName(c), t.name)
	head := fmt.Sprintf(" %s%s | ", name, strings.Repeat(" ", max(0, t.name-columns(name))))
	if c.Binary {
		old, new := statSizes(c)
		return head + fmt.Sprintf("%*s %s -> %s bytes\n", t.number, "Bin",
			t.paint(colourRed, strconv.FormatInt(old, 10)), t.paint(colourGreen, strconv.FormatInt(new, 10)))
	}
	head += fmt.Sprintf("%*d", t.number, c.Added+c.Deleted)
	if c.Added+c.Deleted == 0 {
		return head + "\n"
	}
	plus, minus := t.scale(c.Added, c.Deleted)
	return head + " " + t.paint(colourGreen, strings.Repeat("+", plus)) + t.paint(colourRed, strings.Repeat("-", minus)) + "\n"
}

func (t *statTable) paint(colour, s string) string {
	if !t.colour || s == "" {
		return s
	}
	return colour + s + colourReset
}

// scale fits both counts into the graph: a count above zero never vanishes.
func (t *statTable) scale(added, deleted int) (plus, minus int) {
	if t.graph > t.most {
		return added, deleted
	}
	linear := func(n int) int {
		if n == 0 {
			return 0
		}
		return 1 + n*(t.graph-1)/t.most
	}
	total := linear(added + deleted)
	if total < 2 && added > 0 && deleted > 0 {
		total = 2
	}
	if added < deleted {
		plus = linear(added)
		return plus, total - plus
	}
	minus = linear(deleted)
	return total - minus, minus
}

// statSizes returns a binary file's sizes.
func statSizes(c *FileChange) (old, new int64) {
	if c.old != nil {
		old = gitSize(*c.old)
	}
	if c.new != nil {
		new = gitSize(*c.new)
	}
	return old, new
}

// statName returns the first column: the path, "{old => new}" for a rename, and a change of the
// mode, which has no line of its own.
func statName(c *FileChange) string {
	name := quoteName(c.Path, false)
	if c.OldPath != "" {
		name = renameName(c.OldPath, c.Path)
	}
	switch {
	case c.old == nil || c.new == nil || c.OldMode == c.NewMode:
	case c.NewMode == 0o120000:
		name += " (mode +l)"
	case c.OldMode == 0o120000:
		name += " (mode -l)"
	case c.NewMode == 0o100755:
		name += " (mode +x)"
	default:
		name += " (mode -x)"
	}
	return name
}

// renameName writes the common parts of two paths once: "a/{b => c}/d".
func renameName(old, new string) string {
	if quoteName(old, false) != old || quoteName(new, false) != new {
		return quoteName(old, false) + " => " + quoteName(new, false)
	}
	pre := 0
	for i := 0; i < min(len(old), len(new)) && old[i] == new[i]; i++ {
		if old[i] == '/' {
			pre = i + 1
		}
	}
	// The common end may begin with the slash that ends the common start:
	// "a/b/c" to "a/c" is "a/{b => }/c".
	suf := 0
	for n := 1; n <= min(len(old), len(new))-max(pre-1, 0) && old[len(old)-n] == new[len(new)-n]; n++ {
		if old[len(old)-n] == '/' {
			suf = n
		}
	}
	if pre+suf == 0 {
		return old + " => " + new
	}
	mid := func(s string) string { return s[pre:max(pre, len(s)-suf)] }
	return old[:pre] + "{" + mid(old) + " => " + mid(new) + "}" + old[len(old)-suf:]
}

// columns counts characters. Wide ones are counted once: the graph may then
// be out of line.
func columns(s string) int { return utf8.RuneCountInString(s) }

// shorten cuts a name at its start, at a slash if there is one.
func shorten(name string, width int) string {
	if columns(name) <= width {
		return name
	}
	rest := []rune(name)
	rest = rest[len(rest)-max(0, width-3):]
	for i, r := range rest {
		if r == '/' {
			rest = rest[i:]
			break
		}
	}
	return "..." + string(rest)
}
