package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
)

// check runs the --check command in a fork of the result, which is thrown
// away afterwards: a check sees the result and changes nothing of it. What a
// crash leaves of it, the next daemon ends, and checks again.
func (e *Engine) check(ctx context.Context, j *run.Job, after *state.Checkpoint) error {
	var out *os.File
	defer func() {
		if out != nil {
			out.Close()
		}
	}()
	st, err := e.inFork(ctx, &aside{
		of: &j.Cell, at: after, command: j.Check, env: j.Env, timeout: j.Run.In.Timeout, life: j.Live.Context(),
		note: func(text string) { j.Run.Notes = append(j.Run.Notes, text) },
		output: func() (files [3]*os.File, err error) {
			failpoint.Step("make the output of a check")
			out, err = evidence.CreateRecord(j.Run.Folder, "check")
			return [3]*os.File{out, out, nil}, err
		},
	})
	if err != nil {
		return err
	}
	j.Run.Check = &state.Check{Command: j.Run.In.Check, ExitCode: st.Exit.Code, Cause: st.Exit.Cause, Output: tail(out)}
	return nil
}

// aside is a shell command that looks at a result, and changes nothing of it.
type aside struct {
	of      *state.Cell
	at      *state.Checkpoint // of that
	command string
	env     []string
	timeout time.Duration               // 0: none
	life    context.Context             // of the command
	note    func(text string)           // takes what is to be known of it
	output  func() ([3]*os.File, error) // the files of its output
}

// inFork runs a command in a fork of a checkpoint, which is thrown away afterwards.
func (e *Engine) inFork(ctx context.Context, a *aside) (cell.Status, error) {
	c := *a.of
	c.ID, c.Name, c.Gen, c.Volume, c.Home, c.Tmp, c.Family = cell.NewID(), "", nil, 0, nil, nil, ""
	c.Setup.Mounts = e.stackedOf(a.of)
	for i := range c.Setup.Mounts { // caches are as they were before the run, and what the command writes is kept nowhere
		c.Setup.Mounts[i].Kept = ""
	}
	return e.inCopy(ctx, a, &c)
}

func (e *Engine) inCopy(ctx context.Context, a *aside, c *state.Cell) (st cell.Status, err error) {
	p, err := e.providerOf(a.at.State.Provider)
	if err != nil {
		return st, err
	}
	if err := e.begin(ctx, c, p, a.at); err != nil {
		return st, errors.Join(err, e.gc.RemoveFolder(c.ID))
	}
	copied, err := e.copyForCheck(a, c)
	defer func() {
		ctx := context.WithoutCancel(ctx)
		e.services.Follow(a.of) // which the command has used, if there are no copies
		err = errors.Join(err, e.alive.Deactivate(ctx, c.ID, "the check ended"), e.alive.AwaitGone(ctx, c.ID), p.Drop(c.Gen.Layer), e.gc.RemoveFolder(c.ID))
		for _, s := range copied {
			_, rerr := e.Remove(ctx, s.Cell, false)
			err = errors.Join(err, rerr)
		}
	}()
	if err != nil {
		return st, err
	}
	if err := e.refit(c, p, a.at); err != nil {
		return st, err
	}
	inst, err := e.alive.Activate(ctx, c)
	if err != nil {
		return st, err
	}
	out, err := a.output()
	if err != nil {
		return st, err
	}
	return e.runAside(inst, a, c, out)
}

// copyForCheck gives the cell of a check copies of the services of the run's cell, as the run left them. Where that is not known
// it has these services themselves, which the run's notes say.
func (e *Engine) copyForCheck(a *aside, c *state.Cell) ([]state.Service, error) {
	c.Created = time.Now().UTC()
	objects, err := e.copyServices(a.of, a.at, c, &state.Checkpoint{})
	if cell.KindOf(err) == cell.Conflict {
		c.Services = a.of.Services
		a.note("the check worked with the services of the cell itself: what they kept at the end of the run was not kept")
		return nil, nil
	}
	if err != nil || len(objects) == 0 {
		return nil, err
	}
	if err := e.reg.Commit(objects...); err != nil {
		return nil, err
	}
	return c.Services, nil
}

func (e *Engine) runAside(inst backend.Instance, a *aside, c *state.Cell, out [3]*os.File) (cell.Status, error) {
	env := cell.CommandEnv(c.Setup.Env, a.env, c.Setup.User, false, "")
	proc, err := inst.Start(a.life, "check", cell.Start{
		Process: cell.Process{Args: []string{"sh", "-c", a.command}, Env: env, Path: []string{"/bin/sh", "/usr/bin/sh"}, Workdir: c.Source},
		Timeout: a.timeout, EndsCell: true, LogLimit: logLimit,
	}, out)
	if err != nil {
		return cell.Status{}, err
	}
	st, err := e.alive.WaitFor(a.life, inst, proc)
	if errors.Is(err, live.ErrClosing) { // the next daemon checks again
		return st, err
	}
	if err != nil || st.Exit == nil {
		st.Exit = &cell.Exit{Code: 255, Cause: cell.CauseKeeperLost}
	}
	return st, nil
}

func tail(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	off := max(0, st.Size()-run.CheckTail)
	b, _ := io.ReadAll(io.NewSectionReader(f, off, run.CheckTail))
	return redactor.String(strings.ToValidUTF8(string(bytes.TrimSpace(b)), "�"))
}
