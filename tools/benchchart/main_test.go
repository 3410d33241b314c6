package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/bench"
)

const root = "../../bench"

// TestPagesSayTheResults fails when a number in bench was typed, or a result
// was not drawn.
func TestPagesSayTheResults(t *testing.T) {
	files, err := draw(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != string(want) {
			t.Errorf("bench/%s is not what the results say: run go run ./tools/benchchart", name)
		}
	}
	charts, err := filepath.Glob(filepath.Join(root, "charts", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range charts {
		if _, ok := files[filepath.Join("charts", filepath.Base(c))]; !ok {
			t.Errorf("bench/charts/%s belongs to no result", filepath.Base(c))
		}
	}
}

// sample is the document that package bench holds its own shape by.
func sample(t *testing.T) *bench.Result {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "testdata", "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := &bench.Result{}
	if err := json.Unmarshal(b, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChart(t *testing.T) {
	r := sample(t)
	r.Axes[0].Cases[0].Series[1].Name = `crun <&"run`
	s := svg(found{r.Axes[0], r, "run.json"})
	for d := xml.NewDecoder(strings.NewReader(s)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("not XML: %v\n%s", err, s)
		}
	}
	for _, want := range []string{"prefers-color-scheme: dark", "20.6 ms", "29.6 ms", "goal 25 ms", "crun &lt;&amp;", "1.49 ×", `class="whisker"`, "10 rounds"} {
		if !strings.Contains(s, want) {
			t.Errorf("the chart has no %q", want)
		}
	}
	if strings.Contains(s, "Not for publishing") {
		t.Error("ten rounds may be published")
	}
	r.Settings.Quick = true
	if !strings.Contains(svg(found{r.Axes[0], r, "run.json"}), "Not for publishing") {
		t.Error("the chart of a quick result does not say so")
	}
}

func TestNewestResultCounts(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"b.json", "a.json", "c.json"} {
		r := sample(t)
		r.Started = r.Started.AddDate(0, 0, -i)
		r.Versions["pando"] = name
		if name == "b.json" { // the newest, but it failed
			r.Axes[0].Error = "broken"
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	axes, err := read(dir)
	if err != nil || axes["run"].file != "a.json" {
		t.Errorf("got %s, %v", axes["run"].file, err)
	}
	page := markdown(axes["run"], "charts/run.svg")
	for _, want := range []string{"pando a.json", "| run | **pando** | 20.6 ms | 20.9 ms |", "≤ 25 ms: met", "≤ 25 ms: **not met**", "absent: runsc: not installed", "crun lacks: no receipt", "undecided"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}

func TestPut(t *testing.T) {
	page := "# x\n<!-- benchchart run -->\nold 17 ms\n<!-- end -->\nafter\n"
	got, err := put([]byte(page), "run", "new\n")
	if err != nil || string(got) != "# x\n<!-- benchchart run -->\n\nnew\n\n<!-- end -->\nafter\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if again, err := put(got, "run", "new\n"); err != nil || string(again) != string(got) {
		t.Errorf("not the same again: %q, %v", again, err)
	}
	if _, err := put([]byte("# x\n"), "run", ""); err == nil {
		t.Error("a page without a place for the axis was taken")
	}
}
