package report

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	_ "embed"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// How a file is in what is compared.
const (
	isSame    = "same"
	isDiffers = "differs"
	isOnly    = "only"
)

// SideBySide adds the files to a comparison, of which most at most are listed. changed has those of each subject.
func SideBySide(c *api.Comparison, changed [][]api.FileChange, most int) {
	rows, modes := map[string]*api.CompareFile{}, map[string][]string{}
	for i, files := range changed {
		for _, f := range files {
			r := rows[f.Path]
			if r == nil {
				r = &api.CompareFile{Path: f.Path, In: make([]api.CompareState, len(changed))}
				rows[f.Path], modes[f.Path] = r, make([]string, len(changed))
			}
			modes[f.Path][i] = f.NewMode
			r.In[i] = api.CompareState{Status: f.Status, Added: f.Added, Deleted: f.Deleted, Digest: f.NewDigest}
			if f.Status == "deleted" {
				r.In[i].Digest = ""
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(rows)) {
		r := rows[path]
		groups, with := map[string]int{}, 0
		for i := range r.In {
			if r.In[i].Status == "" {
				continue
			}
			with++
			key := r.In[i].Digest + " " + modes[path][i] // the same text with another mode is another file
			if groups[key] == 0 {
				groups[key] = len(groups) + 1
			}
			r.In[i].Group = groups[key]
		}
		switch {
		case with == len(changed) && len(groups) == 1:
			r.Is = isSame
			c.Same++
		case with == 1:
			r.Is = isOnly
			c.Only++
		default:
			r.Is = isDiffers
			c.Differ++
		}
		c.Files = append(c.Files, *r)
	}
	order := []string{isDiffers, isOnly, isSame}
	slices.SortStableFunc(c.Files, func(a, b api.CompareFile) int {
		return cmp.Compare(slices.Index(order, a.Is), slices.Index(order, b.Is))
	})
	if len(c.Files) > most {
		c.Notes = append(c.Notes, fmt.Sprintf("of %d changed files the first %d are listed", len(c.Files), most))
		c.Files = c.Files[:most]
	}
	bases := map[string]bool{}
	for _, s := range c.Subjects {
		if s.Base != "" {
			bases[s.Base] = true
		}
		if s.Problem != "" {
			c.Notes = append(c.Notes, s.Name+": "+s.Problem)
		}
	}
	if len(bases) > 1 {
		c.Notes = append(c.Notes, "they began with different files: a change of one may have been there in another from the beginning")
	}
}

//go:embed compare.html
var comparePage string

// comparison is what the page of a comparison is drawn from.
type comparison struct {
	*api.Comparison
	Style  template.CSS
	Policy template.HTMLAttr
	Rows   []compareRow
	Sum    string
}

// compareRow is a line of the table of subjects.
type compareRow struct {
	Name  string
	Cells []compareCell
}

type compareCell struct {
	Text string
	Kind string // of its chip: good, bad, warn; "": none
	Best bool   // it is the least of all
}

// compareRows are the lines of the table of subjects; one in which nothing is said is left out.
func compareRows(c *api.Comparison) (rows []compareRow) {
	add := func(name string, least bool, of func(*api.CompareSubject) (text, kind string, n float64)) {
		row, said := compareRow{Name: name}, false
		lowest, highest, counted := 0.0, 0.0, 0
		var numbers []float64
		for i := range c.Subjects {
			text, kind, n := of(&c.Subjects[i])
			row.Cells = append(row.Cells, compareCell{Text: text, Kind: kind})
			numbers = append(numbers, n)
			if text == "" {
				continue
			}
			said = true
			if counted == 0 || n < lowest {
				lowest = n
			}
			highest = max(highest, n)
			counted++
		}
		if !said {
			return
		}
		for i := range row.Cells {
			row.Cells[i].Best = least && counted > 1 && lowest < highest && row.Cells[i].Text != "" && numbers[i] == lowest
		}
		rows = append(rows, row)
	}
	ofRun := func(f func(*api.Run) (string, string, float64)) func(*api.CompareSubject) (string, string, float64) {
		return func(s *api.CompareSubject) (string, string, float64) {
			if s.Run == nil {
				return "", "", 0
			}
			return f(s.Run)
		}
	}
	add("command", false, func(s *api.CompareSubject) (string, string, float64) {
		kind := "bad"
		if s.Run == nil || s.Run.ExitCode == nil {
			kind = ""
		} else if *s.Run.ExitCode == 0 {
			kind = "good"
		}
		return s.Outcome, kind, 0
	})
	add("check", false, ofRun(func(r *api.Run) (string, string, float64) {
		switch {
		case r.Check == nil:
			return "", "", 0
		case r.Check.ExitCode == 0:
			return "passed", "good", 0
		}
		return fmt.Sprintf("failed, %d", r.Check.ExitCode), "bad", 0
	}))
	add("verdict", false, ofRun(func(r *api.Run) (string, string, float64) { return r.Verdict, "", 0 }))
	add("evidence", false, func(s *api.CompareSubject) (string, string, float64) {
		return s.Evidence, map[string]string{verified: "good", broken: "bad", unproven: "warn"}[s.Evidence], 0
	})
	for _, severity := range []string{api.SeverityHigh, api.SeverityMedium, api.SeverityLow} {
		add("findings, "+severity, true, func(s *api.CompareSubject) (string, string, float64) {
			if s.Run == nil {
				return "", "", 0
			}
			n := s.Findings[severity]
			if severity != api.SeverityHigh && !slices.ContainsFunc(c.Subjects, func(s api.CompareSubject) bool { return s.Findings[severity] > 0 }) {
				return "", "", 0 // none has one
			}
			return fmt.Sprint(n), "", float64(n)
		})
	}
	add("files", true, func(s *api.CompareSubject) (string, string, float64) {
		return fmt.Sprint(s.Files), "", float64(s.Files)
	})
	add("lines", true, func(s *api.CompareSubject) (string, string, float64) {
		return fmt.Sprintf("+%d −%d", s.Added, s.Deleted), "", float64(s.Added + s.Deleted)
	})
	add("time", true, ofRun(func(r *api.Run) (string, string, float64) { return Took(r), "", float64(r.Ended.Sub(r.Started)) }))
	add("processor", true, ofRun(func(r *api.Run) (string, string, float64) {
		return duration(float64(r.Usage.CPUMS)), "", float64(r.Usage.CPUMS)
	}))
	add("peak memory", true, ofRun(func(r *api.Run) (string, string, float64) {
		return policy.FormatSize(r.Usage.PeakMemory), "", float64(r.Usage.PeakMemory)
	}))
	add("requests", true, ofRun(func(r *api.Run) (string, string, float64) {
		if r.Network == nil {
			return "", "", 0
		}
		return fmt.Sprint(r.Network.Requests), "", float64(r.Network.Requests)
	}))
	add("denied", true, ofRun(func(r *api.Run) (string, string, float64) {
		if r.Network == nil {
			return "", "", 0
		}
		return fmt.Sprint(r.Network.Denied), "", float64(r.Network.Denied)
	}))
	add("tokens", true, func(s *api.CompareSubject) (string, string, float64) {
		if s.Tokens == 0 {
			return "", "", 0
		}
		return fmt.Sprint(s.Tokens), "", float64(s.Tokens)
	})
	add("cost", true, func(s *api.CompareSubject) (string, string, float64) {
		if s.USD == 0 {
			return "", "", 0
		}
		return fmt.Sprintf("$%.4f", s.USD), "", s.USD
	})
	add("backend", false, ofRun(func(r *api.Run) (string, string, float64) { return r.Backend, "", 0 }))
	add("changes since", false, func(s *api.CompareSubject) (string, string, float64) { return s.From, "", 0 })
	return rows
}

// sumWords says how the files are to each other.
func sumWords(c *api.Comparison) string {
	if c.Same+c.Differ+c.Only == 0 {
		return "None of them changed a file."
	}
	return fmt.Sprintf("%s the same in all, %d differ, %d in one alone.", count(c.Same, "file"), c.Differ, c.Only)
}

// CompareHTML draws a comparison as one page that needs nothing else.
func CompareHTML(w io.Writer, raw *api.Comparison) error {
	c, err := safe(raw)
	if err != nil {
		return err
	}
	t, err := template.New("compare").Funcs(functions).Parse(comparePage)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	err = t.Execute(&b, comparison{Comparison: c, Style: template.CSS(style), Policy: `content="default-src 'none'; style-src 'unsafe-inline'"`, Rows: compareRows(c), Sum: sumWords(c)})
	if err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// CompareMarkdown writes a comparison as Markdown.
func CompareMarkdown(w io.Writer, raw *api.Comparison) error {
	c, err := safe(raw)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# Comparison\n\n")
	for _, n := range c.Notes {
		fmt.Fprintf(&b, "Note: %s.\n\n", text(n))
	}
	head := []string{""}
	for _, s := range c.Subjects {
		head = append(head, code(s.Name))
	}
	rows := [][]string{head}
	for _, r := range compareRows(c) {
		row := []string{r.Name}
		for _, x := range r.Cells {
			text := cell(x.Text)
			if x.Best {
				text = "**" + text + "**"
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	aligned(&b, rows)
	fmt.Fprintf(&b, "\n## Files\n\n%s\n", sumWords(c))
	if len(c.Files) > 0 {
		const most = 200
		rows := [][]string{append([]string{"file", "is"}, head[1:]...)}
		for _, f := range c.Files[:min(most, len(c.Files))] {
			row := []string{cell(f.Path), f.Is}
			for _, s := range f.In {
				row = append(row, stateWords(s))
			}
			rows = append(rows, row)
		}
		b.WriteString("\n")
		aligned(&b, rows)
		if n := len(c.Files) - most; n > 0 {
			fmt.Fprintf(&b, "\nand %s\n", count(n, "more file"))
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// aligned writes a table of Markdown with its columns below each other as text, too. The first row is its head.
func aligned(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, x := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(x), 3)
		}
	}
	for n, r := range rows {
		for i, x := range r {
			b.WriteString("| " + x + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(x)+1))
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for _, w := range widths {
			b.WriteString("|" + strings.Repeat("-", w+2))
		}
		b.WriteString("|\n")
	}
}

// stateWords are a file in one subject. Equal letters mean equal files.
func stateWords(s api.CompareState) string {
	if s.Status == "" {
		return "–"
	}
	return fmt.Sprintf("%s %s +%d −%d", letter(s.Group), s.Status, s.Added, s.Deleted)
}

// letter names a group: A, B, … Z, then A26.
func letter(group int) string {
	if group < 1 {
		return ""
	}
	if group <= 26 {
		return string(rune('A' + group - 1))
	}
	return fmt.Sprintf("A%d", group-1)
}
