// Benchchart draws the measurements of `pando bench`: it reads the documents in
// bench/results, writes a chart for each axis into bench/charts and the tables into
// bench/README.md, between its marks. No number there is typed by hand; a test fails when
// they are not those of the results.
//
//	go run ./tools/benchchart
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/pando-dev/pando/bench"
)

func main() {
	if len(os.Args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./tools/benchchart")
		os.Exit(2)
	}
	if err := write("bench"); err != nil {
		fmt.Fprintln(os.Stderr, "cannot draw the charts:", err)
		os.Exit(1)
	}
}

// found is one axis as it was measured last.
type found struct {
	bench.AxisResult
	of   *bench.Result
	file string
}

// write writes everything that is drawn from the results in dir.
func write(dir string) error {
	files, err := draw(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "charts"), 0o755); err != nil {
		return err
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw returns the files that belong in dir, by name.
func draw(dir string) (map[string][]byte, error) {
	axes, err := read(filepath.Join(dir, "results"))
	if err != nil {
		return nil, err
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, name := range bench.Keys() {
		block := "Not measured yet.\n"
		if a, ok := axes[name]; ok {
			chart := filepath.Join("charts", name+".svg")
			files[chart] = []byte(svg(a))
			block = markdown(a, filepath.ToSlash(chart))
		}
		if page, err = put(page, name, block); err != nil {
			return nil, err
		}
	}
	files["README.md"] = page
	return files, nil
}

// read reads all results and keeps of each axis the newest that did not fail.
func read(dir string) (map[string]found, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	out := map[string]found{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r := &bench.Result{}
		if err := json.Unmarshal(b, r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if r.Schema != bench.Schema {
			return nil, fmt.Errorf("%s has schema %d, not %d", name, r.Schema, bench.Schema)
		}
		for _, a := range r.Axes {
			old, ok := out[a.Key()]
			if a.Error == "" && (!ok || r.Started.After(old.of.Started)) {
				out[a.Key()] = found{a, r, filepath.Base(name)}
			}
		}
	}
	return out, nil
}

// put replaces what stands between the marks of an axis.
func put(page []byte, axis, block string) ([]byte, error) {
	begin, end := "<!-- benchchart "+axis+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(page), begin)
	if !ok {
		return nil, fmt.Errorf("README.md has no place for %s: %q is missing", axis, strings.TrimSpace(begin))
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return nil, fmt.Errorf("README.md has no %q after the mark of %s", end, axis)
	}
	return []byte(before + begin + "\n" + block + "\n" + end + after), nil
}

// markdown is the block of one axis.
func markdown(a found, chart string) string {
	var b strings.Builder
	r := a.of
	if why := r.Publishable(); why != "" {
		fmt.Fprintf(&b, "> Not for publishing: %s.\n\n", why)
	}
	fmt.Fprintf(&b, "![%s: %s](%s)\n\n", a.Title(), a.About, chart)
	fmt.Fprintf(&b, "Measured %s with pando %s on %s, %d cores, %s, kernel %s, %s, as %s; %d rounds after %d that did not count; load %.2f before, %.2f after; %.1f %% of the processors' time stolen. Samples: [results/%s](results/%s).\n\n",
		r.Started.Format("2006-01-02"), r.Versions["pando"], r.Machine.CPU, r.Machine.Cores, memory(r.Machine.Memory), r.Machine.Kernel, r.Machine.FileSystem, user(r.Machine.Root),
		r.Settings.Runs, r.Settings.Warmup, a.LoadBefore[0], a.LoadAfter[0], a.StealPercent, a.file, a.file)
	fmt.Fprint(&b, "| case | | median | p90 | against ours | goal |\n|---|---|---:|---:|---:|---|\n")
	for _, c := range a.Cases {
		for i, s := range c.Series {
			title := ""
			if i == 0 {
				title = c.Name
			}
			name := s.Name
			if s.Ours {
				name = "**" + name + "**"
			}
			ratio, p90 := "", bench.Number(s.P90, c.Unit)
			if s.Ratio > 0 {
				ratio = fmt.Sprintf("%.3g ×", s.Ratio)
			}
			if len(s.Samples) == 0 {
				p90 = ""
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", title, name, bench.Number(s.Median, c.Unit), p90, ratio, goals(&c, s.Name))
		}
	}
	b.WriteString("\n")
	writeParts(&b, a)
	for _, x := range a.Absent {
		fmt.Fprintf(&b, "- absent: %s: %s\n", x.Peer, x.Why)
	}
	said := []string{}
	for _, c := range a.Cases {
		for _, s := range c.Series {
			if len(s.Lacks) > 0 && !slices.Contains(said, s.Name) {
				said = append(said, s.Name)
				fmt.Fprintf(&b, "- %s lacks: %s\n", s.Name, strings.Join(s.Lacks, "; "))
			}
		}
	}
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// writeParts says where the time of ours goes.
func writeParts(b *strings.Builder, a found) {
	for _, c := range a.Cases {
		for _, s := range c.Series {
			var parts []string
			for _, p := range s.Parts {
				parts = append(parts, p.Name+" "+bench.Number(p.Median, c.Unit))
			}
			if len(parts) > 0 {
				fmt.Fprintf(b, "- %s, %s, of which: %s\n", c.Name, s.Name, strings.Join(parts, ", "))
			}
		}
	}
}

func goals(c *bench.Case, series string) string {
	var out []string
	for _, g := range c.Goals {
		if g.Series != series {
			continue
		}
		verdict := "undecided"
		if g.Met != nil && *g.Met {
			verdict = "met"
		} else if g.Met != nil {
			verdict = "**not met**"
		}
		out = append(out, g.Text(c.Unit)+": "+verdict)
	}
	return strings.Join(out, ", ")
}

func memory(n int64) string { return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30)) }

func user(root bool) string {
	if root {
		return "root"
	}
	return "an ordinary user"
}
