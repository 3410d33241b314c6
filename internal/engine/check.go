package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
)

// checkTail is how much of a check's output the record keeps, in bytes.
const checkTail = 4 << 10

// check runs the --check command in a fork of the result, which is thrown
// away afterwards: a check sees the result and changes nothing of it. What a
// crash leaves of it, the next daemon ends, and checks again.
func (x *execution) check(ctx context.Context, after *state.Checkpoint) error {
	x.l.report(api.Progress{Step: "checking", Note: x.run.In.Check})
	c := x.c
	c.ID, c.Name, c.Gen, c.Volume, c.Home, c.Tmp, c.Family = cell.NewID(), "", nil, 0, nil, nil, ""
	c.Setup.Mounts = x.e.stackedOf(&x.c)
	return x.checkIn(ctx, &c, after)
}

func (x *execution) checkIn(ctx context.Context, c *state.Cell, after *state.Checkpoint) (err error) {
	e := x.e
	p, err := e.providerOf(after.State.Provider)
	if err != nil {
		return err
	}
	if err := e.begin(ctx, c, p, after); err != nil {
		return errors.Join(err, e.gc.RemoveFolder(c.ID))
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, e.alive.Deactivate(ctx, c.ID, "the check ended"), e.alive.AwaitGone(ctx, c.ID), p.Drop(c.Gen.Layer), e.gc.RemoveFolder(c.ID))
	}()
	if err := e.refit(c, p, after); err != nil {
		return err
	}
	inst, err := e.alive.Activate(ctx, c)
	if err != nil {
		return err
	}
	failpoint.Step("make the output of a check")
	out, err := evidence.CreateRecord(x.run.Folder, "check")
	if err != nil {
		return err
	}
	defer out.Close()
	st, err := e.runCheck(x.l.ctx, inst, x, c, out)
	if err != nil {
		return err
	}
	x.run.Check = &state.Check{Command: x.run.In.Check, ExitCode: st.Exit.Code, Cause: st.Exit.Cause, Output: tail(out)}
	return nil
}

func (e *Engine) runCheck(ctx context.Context, inst backend.Instance, x *execution, c *state.Cell, out *os.File) (cell.Status, error) {
	env := cell.CommandEnv(c.Setup.Env, x.p.policy.Env, c.Setup.User, false, "")
	proc, err := inst.Start(ctx, "check", cell.Start{
		Process: cell.Process{Args: []string{"sh", "-c", x.p.req.Check}, Env: env, Path: []string{"/bin/sh", "/usr/bin/sh"}, Workdir: c.Source},
		Timeout: x.run.In.Timeout, EndsCell: true, LogLimit: logLimit,
	}, [3]*os.File{out, out, nil})
	if err != nil {
		return cell.Status{}, err
	}
	st, err := e.alive.WaitFor(ctx, inst, proc)
	if err != nil || st.Exit == nil {
		st.Exit = &cell.Exit{Code: 255, Cause: "keeper lost"}
	}
	return st, nil
}

func tail(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	off := max(0, st.Size()-checkTail)
	b, _ := io.ReadAll(io.NewSectionReader(f, off, checkTail))
	return redactor.String(strings.ToValidUTF8(string(bytes.TrimSpace(b)), "�"))
}

// sumFile returns the digest of a file's content.
func sumFile(path string) (cell.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return cell.Digest{}, err
	}
	defer f.Close()
	return cell.SumReader(f)
}
