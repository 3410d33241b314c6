package report

import (
	_ "embed"
	"html/template"
	"io"
	"time"

	"github.com/pando-dev/pando/api"
)

// Bounds of what the page of a cell has: the document has more.
const (
	htmlSteps = 500
	htmlRuns  = 200
)

//go:embed cell.html
var cellPage string

// cellView is what the page of a cell is drawn from.
type cellView struct {
	*api.CellReport
	Style        template.CSS
	Script       template.JS
	Policy       template.HTMLAttr
	Name         string
	AllRuns      int
	AllFiles     int
	Failed, Open int
	Severities   []severity
	Looks        []api.ReportFile
	Shown        []api.Step
	Before       int // steps before those
	Last         []api.CellRun
	Earlier      int // runs before those
	Time         time.Duration
}

// CellHTML draws the report of a cell as one page that needs nothing else: no network, no files.
func CellHTML(w io.Writer, raw *api.CellReport) error {
	r, err := safe(raw)
	if err != nil {
		return err
	}
	v := &cellView{CellReport: r, Style: template.CSS(style), Script: template.JS(script), Policy: ownScript(), Name: r.Cell.Name, AllRuns: len(r.Runs) + r.MoreRuns,
		AllFiles: len(r.Files) + r.More, Severities: severities(r.Findings), Looks: looks(r.Files), Time: time.Duration(r.Usage.WallMS) * time.Millisecond}
	v.Failed, v.Open = ends(r.Runs)
	v.Shown, v.Last = r.Steps[max(0, len(r.Steps)-htmlSteps):], r.Runs[max(0, len(r.Runs)-htmlRuns):]
	v.Before, v.Earlier = len(r.Steps)-len(v.Shown)+r.MoreSteps, len(r.Runs)-len(v.Last)+r.MoreRuns
	return drawPage(w, cellPage, v)
}
