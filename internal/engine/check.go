package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/result"
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
	a := &aside{
		of: &j.Cell, at: after, before: &j.Before, pins: j.Run.In.Pins, command: j.Check, env: j.Env, timeout: j.Run.In.Timeout, life: j.Live.Context(),
		note: func(text string) { j.Run.Notes = append(j.Run.Notes, text) },
		output: func() (files [3]*os.File, err error) {
			failpoint.Step("make the output of a check")
			out, err = evidence.CreateRecord(j.Run.Folder, "check")
			return [3]*os.File{out, out, nil}, err
		},
	}
	st, err := e.inFork(ctx, a)
	if err != nil {
		return err
	}
	j.Run.Check = a.outcome(j.Run.In.Check, st, tail(out))
	return nil
}

// outcome is what a record has of a check.
func (a *aside) outcome(command string, st cell.Status, output string) *state.Check {
	c := &state.Check{Command: command, ExitCode: st.Exit.Code, Cause: st.Exit.Cause, Output: output, Pins: a.pins, Restored: a.restored, Changed: a.judges}
	if a.problem != "" {
		c.Output = a.problem
	}
	if more := len(c.Restored) - maxRestored; more > 0 {
		c.Restored, c.RestoredMore = c.Restored[:maxRestored], more
	}
	return c
}

// maxRestored bounds the pinned paths that a record names.
const maxRestored = 100

// aside is a shell command that looks at a result, and changes nothing of it.
type aside struct {
	of      *state.Cell
	at      *state.Checkpoint // of that
	before  *state.Checkpoint // of the run
	pins    []string          // paths that are as they were then
	command string
	env     []string
	timeout time.Duration               // 0: none
	life    context.Context             // of the command
	note    func(text string)           // takes what is to be known of it
	output  func() ([3]*os.File, error) // the files of its output

	restored []string // paths of pins that the run had changed
	judges   []string // programs that the command runs, and the run changed
	problem  string   // why the command was not run: what is pinned could not be brought back
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
	if err := e.pin(ctx, inst, a, c); err != nil {
		if ctx.Err() != nil || a.life.Err() != nil || cell.KindOf(err) == cell.Corrupt {
			return st, err
		}
		// A result that keeps its judge from being brought back is not judged by another one.
		a.problem = redactor.String("pando: what is pinned could not be brought back, so the check was not run: " + err.Error())
		return cell.Status{Exit: &cell.Exit{Code: 255}}, nil
	}
	return e.runAside(inst, a, c, out)
}

// pin gives a fork in which a result is checked what is pinned, as it was before the run, and notes what the run had changed of it and
// of the programs of the check.
func (e *Engine) pin(ctx context.Context, inst backend.Instance, a *aside, c *state.Cell) error {
	if a.at.Tree == a.before.Tree {
		return nil
	}
	after, err := e.side(ctx, a.at)
	if err != nil {
		return err
	}
	before, err := e.side(ctx, a.before)
	if err != nil {
		return err
	}
	judged := after.Tree
	if len(a.pins) > 0 {
		p, err := result.Pin(before.Tree, after.Tree, a.pins)
		if err != nil {
			return err
		}
		if err := p.BringBack(ctx, inst, c, before, after); err != nil {
			return err
		}
		a.restored, judged = p.Changed, p.To
	}
	a.judges, err = result.Judges(before.Tree, judged, a.command, c.Top(), c.Parts()[0].At)
	return err
}

// Bounds of the pins of a request.
const (
	maxPins = 100
	maxPin  = 1000 // bytes
)

// errNoJudge refuses pins for which there is no check.
var errNoJudge = cell.Errorf(cell.Invalid, "engine.StartRun", "say what is to judge the result: --check COMMAND", "cannot pin files: they are for a check, and there is none")

// checkPins refuses pins that name nothing in a workspace.
func checkPins(pins []string) error {
	const opName = "engine.StartRun"
	if len(pins) > maxPins {
		return cell.Errorf(cell.Invalid, opName, "pin a folder, or a pattern", "cannot pin %d paths: at most %d", len(pins), maxPins)
	}
	for _, p := range pins {
		if c := path.Clean(p); !filepath.IsLocal(p) || c == "." || len(p) > maxPin || strings.ContainsFunc(p, unicode.IsControl) || !utf8.ValidString(p) {
			return cell.Errorf(cell.Invalid, opName, "name a file or folder of the workspace, such as check.sh, tests or tests/*.sh", "cannot pin %q: it is no path in the workspace", cell.Clip(p))
		}
	}
	return nil
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
