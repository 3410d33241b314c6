package daemon

import (
	"bytes"
	"io"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/report"
)

// The forms of a report for people.
const (
	pageHTML     = "text/html"
	pageMarkdown = "text/markdown"
)

func (d *Daemon) report(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Report(r.Context(), id)
}

func (d *Daemon) reportHTML(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.drawn(w, r, pageHTML, report.HTML)
}

func (d *Daemon) reportMarkdown(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.drawn(w, r, pageMarkdown, report.Markdown)
}

// drawn answers with a report in a form for people. The page has its own content security policy, which is stricter than
// what a header could say without knowing its script.
func (d *Daemon) drawn(w http.ResponseWriter, r *http.Request, media string, draw func(io.Writer, *api.Report) error) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	rep, err := d.cfg.Engine.Report(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return page(w, media, func(b io.Writer) error { return draw(b, &rep) })
}

func (d *Daemon) cellReport(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.CellReport(r.Context(), id)
}

func (d *Daemon) cellReportHTML(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cellDrawn(w, r, pageHTML, report.CellHTML)
}

func (d *Daemon) cellReportMarkdown(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cellDrawn(w, r, pageMarkdown, report.CellMarkdown)
}

// cellDrawn is drawn, of a cell.
func (d *Daemon) cellDrawn(w http.ResponseWriter, r *http.Request, media string, draw func(io.Writer, *api.CellReport) error) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	rep, err := d.cfg.Engine.CellReport(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return page(w, media, func(b io.Writer) error { return draw(b, &rep) })
}

// page answers with what is drawn.
func page(w http.ResponseWriter, media string, draw func(io.Writer) error) (any, error) {
	var b bytes.Buffer
	if err := draw(&b); err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", media+"; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(b.Bytes())
	return done{}, nil
}

func (d *Daemon) compare(_ http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	return d.cfg.Engine.Compare(r.Context(), q["of"], q.Get("dir"))
}

func (d *Daemon) compareHTML(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.compared(w, r, pageHTML, report.CompareHTML)
}

func (d *Daemon) compareMarkdown(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.compared(w, r, pageMarkdown, report.CompareMarkdown)
}

func (d *Daemon) compared(w http.ResponseWriter, r *http.Request, media string, draw func(io.Writer, *api.Comparison) error) (any, error) {
	q := r.URL.Query()
	c, err := d.cfg.Engine.Compare(r.Context(), q["of"], q.Get("dir"))
	if err != nil {
		return nil, err
	}
	return page(w, media, func(b io.Writer) error { return draw(b, &c) })
}
