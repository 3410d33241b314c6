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
	c := j.Cell
	c.ID, c.Name, c.Gen, c.Volume, c.Home, c.Tmp, c.Family = cell.NewID(), "", nil, 0, nil, nil, ""
	c.Setup.Mounts = e.stackedOf(&j.Cell)
	for i := range c.Setup.Mounts { // caches are as they were before the run, and what the check writes is kept nowhere
		c.Setup.Mounts[i].Kept = ""
	}
	return e.checkIn(ctx, j, &c, after)
}

func (e *Engine) checkIn(ctx context.Context, j *run.Job, c *state.Cell, after *state.Checkpoint) (err error) {
	p, err := e.providerOf(after.State.Provider)
	if err != nil {
		return err
	}
	if err := e.begin(ctx, c, p, after); err != nil {
		return errors.Join(err, e.gc.RemoveFolder(c.ID))
	}
	copied, err := e.copyForCheck(j, c, after)
	defer func() {
		ctx := context.WithoutCancel(ctx)
		e.services.Follow(&j.Cell) // which the check has used, if there are no copies
		err = errors.Join(err, e.alive.Deactivate(ctx, c.ID, "the check ended"), e.alive.AwaitGone(ctx, c.ID), p.Drop(c.Gen.Layer), e.gc.RemoveFolder(c.ID))
		for _, s := range copied {
			_, rerr := e.Remove(ctx, s.Cell, false)
			err = errors.Join(err, rerr)
		}
	}()
	if err != nil {
		return err
	}
	if err := e.refit(c, p, after); err != nil {
		return err
	}
	inst, err := e.alive.Activate(ctx, c)
	if err != nil {
		return err
	}
	failpoint.Step("make the output of a check")
	out, err := evidence.CreateRecord(j.Run.Folder, "check")
	if err != nil {
		return err
	}
	defer out.Close()
	st, err := e.runCheck(j.Live.Context(), inst, j, c, out)
	if err != nil {
		return err
	}
	j.Run.Check = &state.Check{Command: j.Run.In.Check, ExitCode: st.Exit.Code, Cause: st.Exit.Cause, Output: tail(out)}
	return nil
}

// copyForCheck gives the cell of a check copies of the services of the run's cell, as the run left them. Where that is not known
// it has these services themselves, which the run's notes say.
func (e *Engine) copyForCheck(j *run.Job, c *state.Cell, after *state.Checkpoint) ([]state.Service, error) {
	c.Created = time.Now().UTC()
	objects, err := e.copyServices(&j.Cell, after, c, &state.Checkpoint{})
	if cell.KindOf(err) == cell.Conflict {
		c.Services = j.Cell.Services
		j.Run.Notes = append(j.Run.Notes, "the check worked with the services of the cell itself: what they kept at the end of the run was not kept")
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

func (e *Engine) runCheck(ctx context.Context, inst backend.Instance, j *run.Job, c *state.Cell, out *os.File) (cell.Status, error) {
	env := cell.CommandEnv(c.Setup.Env, j.Env, c.Setup.User, false, "")
	proc, err := inst.Start(ctx, "check", cell.Start{
		Process: cell.Process{Args: []string{"sh", "-c", j.Check}, Env: env, Path: []string{"/bin/sh", "/usr/bin/sh"}, Workdir: c.Source},
		Timeout: j.Run.In.Timeout, EndsCell: true, LogLimit: logLimit,
	}, [3]*os.File{out, out, nil})
	if err != nil {
		return cell.Status{}, err
	}
	st, err := e.alive.WaitFor(ctx, inst, proc)
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
