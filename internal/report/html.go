package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

//go:embed report.html
var page string

//go:embed parts.html
var parts string

//go:embed report.css
var style string

//go:embed report.js
var script string

// view is what the page is drawn from: the report, and what is only drawn.
type view struct {
	*api.Report
	Style      template.CSS
	Script     template.JS
	Policy     template.HTMLAttr // of content: nothing is fetched, and the page's own script alone runs
	Name       string
	Command    string
	Outcome    string
	Took       string
	Good, Bad  bool // the command's end
	Severities []severity
	Phases     []phase
	Looks      []api.ReportFile
	Verify     []string
	Chart      *chart
}

type severity struct {
	Name string
	N    int
}

// phase is a part of the bar of times, in per cent of all.
type phase struct {
	Name   string
	MS     float64
	X, W   float64
	Number int
}

var functions = template.FuncMap{
	"size":   policy.FormatSize,
	"count":  count,
	"letter": letter,
	"runs":   func(list []string) string { return first(list, 3) },
	"number": stepNumber, "stepKind": stepKind, "stepText": stepText, "stepEnd": stepEnd, "stepBad": stepBad, "stepEffect": stepEffect, "stepTime": stepTime, "evidence": func(is string) string { return evidenceWords[is] },
	"counted":  func(n int64, noun string) string { return count(int(n), noun) },
	"signoff":  SignOffLine,
	"recorded": func(r *api.Recording) string { return r.Words(policy.FormatSize) },
	"clock":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"after": func(start, t time.Time) string {
		if start.IsZero() {
			return t.UTC().Format("15:04:05.000")
		}
		return fmt.Sprintf("%+.3f s", t.Sub(start).Seconds())
	},
	"ext":  func(p string) string { return strings.TrimPrefix(path.Ext(p), ".") },
	"join": strings.Join, "processNumbers": processNumbers, "processGaps": processGaps, "processWords": processWords, "processFailed": processFailed, "processEnd": processEnd, "toolCounts": toolCounts, "callEnd": callEnd, "seenCalls": seenCalls, "callProblems": callProblems,
	"firstCalls": func(t *api.ToolCalls) []api.ToolCall { return t.Calls[:min(len(t.Calls), htmlCalls)] },
	"moreCalls":  func(t *api.ToolCalls) int { return t.More + max(0, len(t.Calls)-htmlCalls) },
	"allCalls":   func(t *api.ToolCalls) string { return count(len(t.Calls)+t.More, "call") },
	"sign": func(kind string) string {
		switch kind {
		case "+":
			return "a"
		case "-":
			return "d"
		case "@":
			return "h"
		case `\`:
			return "e"
		}
		return "c"
	},
	"many":  func(lines []api.DiffLine) bool { return len(lines) > 200 },
	"ms":    duration,
	"cpu":   func(ms int64) string { return duration(float64(ms)) },
	"words": commandLine, "sentence": sentence, "groups": groups,
	"cents": func(v float64) string { return fmt.Sprintf("%.2f", v) },
}

// HTML draws a report as one page that needs nothing else: no network, no files.
func HTML(w io.Writer, raw *api.Report) error {
	r, err := safe(raw)
	if err != nil {
		return err
	}
	v := &view{Report: r, Style: template.CSS(style), Script: template.JS(script),
		Policy:  ownScript(),
		Name:    r.Run.ID,
		Command: commandLine(r.Run.Command), Outcome: Outcome(&r.Run), Took: Took(&r.Run), Phases: phases(r.Run.Timings)}
	v.Good = r.Run.ExitCode != nil && *r.Run.ExitCode == 0
	v.Bad = !v.Good && (r.Run.ExitCode != nil || r.Run.Error != nil)
	v.Severities, v.Looks = severities(r.Findings), looks(r.Files)
	v.Verify = []string{"pando receipt verify " + r.Run.ID, "pando receipt export -o receipts.json; pando receipt key > pando.pub", "pando receipt verify receipts.json --key pando.pub", "pando replay " + r.Run.ID, "pando replay " + r.Run.ID + " --verify"}
	v.Chart = chartOf(r)
	return drawPage(w, page, v)
}

// ownScript is a policy of content by which nothing is fetched and the page's own script alone runs.
func ownScript() template.HTMLAttr {
	sum := sha256.Sum256([]byte(script))
	return template.HTMLAttr(`content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'"`)
}

// drawPage draws a page with the parts that pages share.
func drawPage(w io.Writer, page string, v any) error {
	t, err := template.New("report").Funcs(functions).Parse(parts)
	if err == nil {
		t, err = t.New("page").Parse(page)
	}
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, v); err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// severities are how many findings there are of each, the highest first.
func severities(findings []api.RunFinding) (list []severity) {
	for _, name := range slices.Backward(api.Severities()) {
		n := 0
		for _, f := range findings {
			if f.Severity == name {
				n++
			}
		}
		if n > 0 {
			list = append(list, severity{name, n})
		}
	}
	return list
}

// looks are the files to look at first.
func looks(files []api.ReportFile) (list []api.ReportFile) {
	for _, f := range files {
		if f.First != "" || f.Held != "" {
			list = append(list, f)
		}
	}
	return list
}

// phases are the parts of a run's time that took something.
func phases(t api.Timings) (list []phase) {
	all := t.Total
	if all <= 0 {
		return nil
	}
	x := 0.0
	for i, p := range []struct {
		name string
		ms   float64
	}{{"import", t.Import}, {"checkpoint", t.Checkpoint}, {"start", t.Start}, {"command", t.Run}, {"freeze", t.Freeze}, {"digest", t.Digest}, {"restore", t.Restore}} {
		w := min(p.ms/all*100, 100-x)
		if p.ms < 0.05 || w <= 0 {
			continue
		}
		list = append(list, phase{Name: p.name, MS: p.ms, X: x, W: w, Number: i})
		x += w
	}
	if rest := 100 - x; rest >= 1 { // without it the bar would end before the time does
		list = append(list, phase{Name: "check, verdict, receipt", MS: rest * all / 100, X: x, W: rest, Number: 7})
	}
	return list
}
