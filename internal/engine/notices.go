package engine

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/notice"
	"github.com/pando-dev/pando/internal/state"
)

// noticed is how long a run takes of which the end is told although a client of it is there.
const noticed = 10 * time.Second

// noticeOfEnd gives notice that a run has ended.
func (e *Engine) noticeOfEnd(_ context.Context, r *state.Run) {
	if len(r.In.Notify) == 0 || r.In.Attach && r.Ended.Sub(r.Created) < noticed {
		return
	}
	n := api.Notice{What: "ended", Run: r.ID, Cell: r.Cell, CellName: r.CellName, Source: r.Source, Verdict: string(r.Verdict), ExitCode: r.ExitCode, Next: "pando show " + r.ID}
	switch {
	case r.NeverStarted():
		n.Title = "did not start"
		if r.Error != nil {
			n.Text = r.Error.Message
		}
	case r.Verdict == cell.Pending:
		n.Title, n.Next = "a result waits for you", "pando diff "+r.ID
		n.Text = fmt.Sprintf("%d file(s) changed", r.Changes.Files)
	case r.Verdict == cell.Accepted:
		n.Title = "accepted"
		n.Text = cmp.Or(r.Reason, n.Title)
	default:
		n.Title, n.Next = "failed", "pando logs "+r.ID
		n.Text = cmp.Or(r.Cause, "its changes were taken back")
	}
	if r.ExitCode != nil && *r.ExitCode != 0 {
		n.Text += fmt.Sprintf(" (exit code %d)", *r.ExitCode)
	}
	n.Text += ": " + strings.Join(r.Command, " ")
	e.notify(r, n)
}

// noticeOfAsk gives notice that something in a run waits for an answer.
func (e *Engine) noticeOfAsk(_ context.Context, a *state.Approval) {
	r, err := e.reg.Run(a.Ask.Run)
	if err != nil { // of a command without a run, which has no way
		return
	}
	e.notify(&r, api.Notice{What: "asks", Run: r.ID, Cell: r.Cell, CellName: r.CellName, Source: r.Source, Approval: a.Ask.ID, Title: "waits for an answer",
		Text: cmp.Or(a.Ask.Want, a.Ask.Access.Want()) + ": " + a.Ask.Reason, Next: "pando approvals approve " + a.Ask.ID})
}

// notify gives a notice by the ways that a run has, in the background.
func (e *Engine) notify(r *state.Run, n api.Notice) {
	n.Title = fmt.Sprintf("pando: %s (%s): %s", cmp.Or(r.CellName, r.ID), filepath.Base(r.Source), n.Title)
	if n.Text = redactor.String(n.Text); len(n.Text) > 300 {
		n.Text = n.Text[:300] + "…"
	}
	for _, way := range r.In.Notify {
		e.background(func(ctx context.Context) {
			if err := notice.Send(ctx, way, n); err != nil {
				e.log.Warn("cannot give notice", "run", r.ID, "what", n.What, "error", redactor.String(err.Error()))
			}
		})
	}
}
