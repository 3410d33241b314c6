package engine

import (
	"context"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/finding"
	"github.com/pando-dev/pando/internal/report"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Bounds of a report.
const (
	reportEvents  = 500
	reportSamples = 4000
	reportCalls   = 2000
	reportOutput  = 64 << 10 // bytes of the end of each stream
)

// Report collects what the evidence of a run says, for a person. A part that can't be had is named in it; what is there is
// shown all the same.
func (v *View) Report(ctx context.Context, id cell.RunID) (api.Report, error) {
	run, err := v.Run(id)
	if err != nil {
		return api.Report{}, err
	}
	r := newReport(v.e.cfg.Version, run)
	e := &finding.Evidence{Run: &r.Run}
	r.lacks("events", v.reportEvents(ctx, id, &r.Report))
	v.witnesses(id, r, e)
	if run.Phase == string(cell.Ended) && run.ExitCode != nil {
		err := v.e.results.Examine(ctx, id, func(x *result.Examined) error {
			r.Files, r.More, r.Ignored, r.Held, r.Notes = x.Files, x.More, x.Ignored, x.Held, append(r.Notes, x.Notes...)
			e.Changed, e.Held, e.Before, e.After, e.Link = x.Changed, x.Held, x.Before, x.After, x.Link
			e.Size = x.Size
			r.Findings = finding.Find(e)
			return nil
		})
		if err != nil { // what needs no files is found all the same
			none := func(string, int64) ([]byte, error) {
				return nil, cell.Errorf(cell.NotFound, "engine.Report", "", "no files")
			}
			e.Changed, e.Held, e.Before, e.After, e.NoFiles = nil, nil, none, none, true
			r.Findings = finding.Find(e)
		}
		r.lacks("changes", err)
	}
	v.proofs(r)
	if ctx.Err() != nil {
		return r.Report, context.Cause(ctx)
	}
	report.Complete(&r.Report)
	return r.Report, nil
}

// collected is a report to which parts are added.
type collected struct{ api.Report }

func newReport(version string, run api.Run) *collected {
	return &collected{api.Report{Run: run, Drawn: time.Now().UTC(), Version: version, Findings: []api.RunFinding{}, Held: []api.Held{}, Files: []api.ReportFile{},
		Notes: []string{}, Output: []api.ReportOutput{}, Events: []api.Event{}, Samples: []api.Sample{}, Receipts: []api.Receipt{}, Problems: []string{}}}
}

// lacks notes a part that can't be had.
func (r *collected) lacks(what string, err error) {
	if err != nil {
		r.Problems = append(r.Problems, what+": "+err.Error())
	}
}

// witnesses adds what the rules look at beside files: policy, tool calls and output of a run.
func (v *View) witnesses(id cell.RunID, r *collected, e *finding.Evidence) {
	r.lacks("what its policy says of findings", v.reportPolicy(id, &r.Report, e))
	calls, err := v.e.callsOf(id)
	r.lacks("tool calls", err)
	r.ToolCalls = calls.API()
	e.Calls = r.ToolCalls
	for _, name := range []string{"stdout", "stderr"} {
		text, err := v.reportOutput(id, name, &r.Report)
		r.lacks(name, err)
		if name == "stdout" {
			e.Stdout = text
		} else {
			e.Stderr = text
		}
	}
}

// proofs adds a run's receipts, and whether they and its files verify.
func (v *View) proofs(r *collected) {
	for i := len(r.Run.Receipts) - 1; i >= 0; i-- {
		one, err := v.Receipt(r.Run.Receipts[i], "")
		r.lacks("receipt "+r.Run.Receipts[i], err)
		if err == nil {
			one.Statement, one.Envelope, one.Markdown = nil, nil, ""
			r.Receipts = append([]api.Receipt{one}, r.Receipts...)
		}
	}
	if len(r.Run.Receipts) > 0 {
		verification, err := v.Verify(r.Run.ID, "")
		r.lacks("verification", err)
		if err == nil {
			r.Verification = &verification
		}
	}
}

// reportPolicy has the rules of a run's policy, as it was before the run: what the run itself wrote is never asked.
func (v *View) reportPolicy(id cell.RunID, r *api.Report, e *finding.Evidence) error {
	run, err := v.e.reg.Run(id)
	if err != nil {
		return err
	}
	if run.Policy == "" {
		return nil // it did not begin
	}
	p, err := evidence.ManifestPolicy(&run)
	if err != nil {
		e.Unread = err.Error()
		return err
	}
	e.Policy, e.Origins = p.Findings, p.Origins.Lines
	for _, rule := range p.Findings.Off {
		r.Notes = append(r.Notes, "the rule "+rule+" is off, by "+p.Origins.Lines["off "+rule])
	}
	return nil
}

// reportEvents reads the events of a run, of which the first are shown, the processes, and the samples of its use.
func (v *View) reportEvents(ctx context.Context, id cell.RunID, r *api.Report) error {
	events, err := v.Events(ctx, id, evidence.EventQuery{})
	if cell.KindOf(err) == cell.NotFound && r.Run.ExitCode == nil {
		return nil
	}
	if err != nil {
		return err
	}
	var started processes
	defer func() { r.Processes = started.listed() }() // also what was whole of a stream that is not
	for line, err := range events {
		if err != nil {
			return err
		}
		var ev api.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			return err
		}
		if ev.Kind == "sample" {
			var s cell.Sample
			if json.Unmarshal(ev.Fields, &s) == nil && len(r.Samples) < reportSamples {
				r.Samples = append(r.Samples, api.Sample{At: ev.Time, CPUMS: s.CPU / 1000, Memory: s.Memory, Wrote: s.Written})
			}
			continue
		}
		if ev.Kind == "output" || started.add(ev) { // the page has the output itself, and the processes apart
			continue
		}
		if len(r.Events) == reportEvents {
			r.MoreEvents++
			continue
		}
		r.Events = append(r.Events, ev)
	}
	return nil
}

// colours are the control sequences that programs colour their output with.
var colours = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("\x1b\\[[0-9;:]*m") })

// reportOutput adds the end of an output stream. It returns that as it was written.
func (v *View) reportOutput(id cell.RunID, name string, r *api.Report) (string, error) {
	f, err := v.Log(id, name)
	if cell.KindOf(err) == cell.NotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return "", err
	}
	b := make([]byte, min(st.Size(), reportOutput))
	if _, err := f.ReadAt(b, st.Size()-int64(len(b))); err != nil && err != io.EOF {
		return "", err
	}
	raw := redactor.String(string(b))
	o := api.ReportOutput{Name: name, Bytes: r.Run.Output.Stdout.Bytes, Text: shownOutput(raw), Cut: st.Size() > int64(len(b))}
	if name == "stderr" {
		o.Bytes = r.Run.Output.Stderr.Bytes
	}
	r.Output = append(r.Output, o)
	return raw, nil
}

// shownOutput is output as text: without colours, with what a line had in the end, and other control characters escaped.
func shownOutput(raw string) string {
	var b strings.Builder
	for l := range strings.Lines(raw) {
		l = strings.TrimRight(l, "\r\n")
		if i := strings.LastIndexByte(l, '\r'); i >= 0 {
			l = l[i+1:]
		}
		b.WriteString(diff.Visible(colours().ReplaceAllString(l, "")) + "\n")
	}
	return b.String()
}
