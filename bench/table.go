package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// number is a value for people.
func number(v float64, unit string) string {
	switch {
	case unit == "×":
		return fmt.Sprintf("%.3g ×", v)
	case unit != "ms" && v >= 1000:
		return fmt.Sprintf("%.0f %s", v, unit)
	case unit != "ms":
		return fmt.Sprintf("%.3g %s", v, unit)
	case v == math.Trunc(v) && v < 1000:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10_000:
		return fmt.Sprintf("%.1f s", v/1000)
	case v >= 1000:
		return fmt.Sprintf("%.2f s", v/1000)
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10:
		return fmt.Sprintf("%.1f ms", v)
	case v >= 1:
		return fmt.Sprintf("%.2f ms", v)
	}
	return fmt.Sprintf("%.3f ms", v)
}

// Number is a value for people: "3.41 ms", "12.3 s", "1.2 ×".
func Number(v float64, unit string) string { return number(v, unit) }

func bytesWord(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", (n+1023)/1024)
}

// Publishable says why the result must not be published, "" if it may.
func (r *Result) Publishable() string {
	switch {
	case r.Settings.Quick:
		return "quick: small trees, few rounds; shows that it works, not how fast it is"
	case r.Settings.Runs < Enough:
		return fmt.Sprintf("%d rounds are too few to publish: at least %d", r.Settings.Runs, Enough)
	}
	return ""
}

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, %s, kernel %s, %s\n", m.CPU, m.Cores, bytesWord(m.Memory), m.Kernel, m.FileSystem)
	fmt.Fprintf(w, "pando %s; %d rounds, one more before them thrown away; medians; load %.2f before\n", r.Versions["pando"], r.Settings.Runs, m.Load[0])
	if why := r.Publishable(); why != "" {
		fmt.Fprintf(w, "NOT FOR PUBLISHING: %s\n", why)
	}
	for i := range r.Axes {
		r.Axes[i].writeTable(w)
	}
}

func (a *AxisResult) writeTable(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s\n", a.Title(), a.About)
	if a.Error != "" {
		fmt.Fprintf(w, "  FAILED: %s\n", a.Error)
	}
	rows := [][]string{}
	for i := range a.Cases {
		rows = append(rows, a.Cases[i].rows()...)
	}
	wide := make([]int, 6)
	for _, r := range rows {
		if len(r) == 1 {
			continue
		}
		for i, c := range r {
			wide[i] = max(wide[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		if len(r) == 1 {
			fmt.Fprintf(w, "\n  %s\n", r[0])
			continue
		}
		var b strings.Builder
		for i, c := range r {
			gap := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(c))
			if i == 0 || i == len(r)-1 {
				b.WriteString(c + gap + "  ")
			} else {
				b.WriteString(gap + c + "  ")
			}
		}
		fmt.Fprintln(w, "    "+strings.TrimRight(b.String(), " "))
	}
	a.writeNotes(w)
}

// rows are a title, then a line for each series.
func (c *Case) rows() [][]string {
	rows := [][]string{{c.Name + ": " + c.What}, {"", "median", "p90", "vs ours", "", "goal"}}
	if c.Unit == "×" {
		rows = rows[:1]
	}
	for _, s := range c.Series {
		ratio := ""
		if s.Ratio > 0 {
			ratio = fmt.Sprintf("%.3g ×", s.Ratio)
		}
		var goals []string
		for _, g := range c.Goals {
			if g.Series == s.Name {
				goals = append(goals, g.Text(c.Unit)+" "+g.verdict())
			}
		}
		mark := ""
		if s.Ours {
			mark = "◂"
		}
		p90 := number(s.P90, c.Unit)
		if len(s.Samples) == 0 {
			p90 = ""
		}
		rows = append(rows, []string{s.Name, number(s.Median, c.Unit), p90, ratio, mark, strings.Join(goals, ", ")})
		for _, p := range s.Parts {
			rows = append(rows, []string{"  " + p.Name, number(p.Median, c.Unit), number(p.P90, c.Unit), "", "", ""})
		}
	}
	return rows
}

func (g Goal) verdict() string {
	switch {
	case g.Met == nil:
		return "(undecided: it was not measured)"
	case *g.Met:
		return "met"
	}
	return "NOT MET"
}

func (a *AxisResult) writeNotes(w io.Writer) {
	fmt.Fprintln(w)
	for _, x := range a.Absent {
		fmt.Fprintf(w, "  absent: %s: %s\n", x.Peer, x.Why)
	}
	said := map[string]bool{}
	for _, c := range a.Cases {
		for _, s := range c.Series {
			if len(s.Lacks) > 0 && !said[s.Name] {
				said[s.Name] = true
				fmt.Fprintf(w, "  %s lacks: %s\n", s.Name, strings.Join(s.Lacks, "; "))
			}
		}
	}
	for _, n := range a.Notes {
		fmt.Fprintf(w, "  note: %s\n", n)
	}
	fmt.Fprintf(w, "  load %.2f before, %.2f after; %.1f%% of the processors' time stolen; %.0f s\n", a.LoadBefore[0], a.LoadAfter[0], a.StealPercent, a.TookS)
}
