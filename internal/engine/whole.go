package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A whole template is one on a backend that captures memory: not an interpreter
// that is forked, but an image of all that ran in a cell, in the cell's folder. The
// cell itself is at rest, and each fork is a copy. So any program can be kept warm,
// and the template is warm again after a restart of the host.

// imageFolder is where the image of a whole template is, in its cell's folder.
const imageFolder = "memory"

// wholeFile has what is known of it beside the image; it is written last.
const wholeFile = "template.json"

// wholeFacts is what it says.
type wholeFacts struct {
	Home  workspace.State            `json:"home"`
	Tmp   workspace.State            `json:"tmp"`
	Above map[string]workspace.State `json:"above,omitempty"`
	Files []state.Program            `json:"files"` // the image, as it was written
}

// program reports whether what is kept warm is a program that isn't asked anything:
// its readiness is what a command in its cell says.
func (p *templatePlan) program() bool {
	return p.whole && p.warm.Kind == cell.WarmCommand && p.warm.Ready != ""
}

// warmWhole warms what is to be captured, and captures it.
func (b *build) warmWhole(ctx context.Context, inst backend.Instance, proc cell.Process) (err error) {
	b.report("warming", b.p.req.Warm)
	spec := b.p.warm
	spec.ToFork = false
	spec.Process, b.paths = proc, proc.Path
	if b.p.program() {
		err = b.startProgram(ctx, inst, spec)
	} else {
		var w backend.Warmer
		if w, err = live.Warmer(inst); err != nil {
			return err
		}
		if spec.Kind == cell.WarmCommand {
			spec.Name = b.p.req.Warm
		}
		b.warmth, err = w.Warm(ctx, spec, live.OutputTo(b.out))
	}
	if err != nil {
		return err
	}
	if b.prog, err = programAt(b.x.c.Setup.Mounts, proc.Path); err != nil {
		return err
	}
	a := state.AssuranceOf(inst.Assurance())
	b.assurance = &a
	b.report("capturing", orElse(b.warmth.Version, b.p.req.Warm))
	return b.captureWhole(ctx, inst)
}

// startProgram runs the set-up as a command, starts the program, and asks the probe
// until it says yes.
func (b *build) startProgram(ctx context.Context, inst backend.Instance, w cell.Warm) error {
	const opName = "engine.BuildTemplate"
	name := b.p.req.Name
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	shell := func(id, code string) (backend.Done, error) {
		p := w.Process
		p.Args, p.Path, p.TTY = []string{"sh", "-c", code}, []string{"/bin/sh", "/usr/bin/sh"}, false
		return inst.Do(ctx, id, cell.Start{Process: p, LogLimit: forkOutput, Timeout: w.Timeout})
	}
	said, program := "was not asked", "was not started"
	late := func(err error) error {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return err
		}
		return cell.Errorf(cell.Timeout, opName, "give it more time with --timeout, or mend the set-up or its probe",
			"cannot build template %s: it was not ready within %v; its probe %s; the program %s", name, w.Timeout, said, program)
	}
	if w.Setup != "" {
		d, err := shell("setup", w.Setup)
		if err != nil {
			return late(err)
		}
		if b.out != nil {
			b.out(api.StreamLine{Stdout: d.Stdout})
			b.out(api.StreamLine{Stderr: d.Stderr})
		}
		if exit := d.Status.Exit; exit == nil || exit.Code != 0 {
			return cell.Errorf(cell.Invalid, opName, "mend the set-up", "cannot build template %s: its set-up failed: %s", name, endOf(d))
		}
	}
	log, err := os.OpenFile(filepath.Join(b.e.private(b.x.c.ID), "program.log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	proc, err := inst.Start(ctx, "program", cell.Start{Process: w.Process, LogLimit: forkOutput}, [3]*os.File{log, log, nil})
	if err != nil {
		return late(err)
	}
	alive := func() error {
		program = "says: " + orElse(tail(log), "nothing")
		st, err := proc.Status(ctx)
		if err != nil || st.Exit == nil {
			return err
		}
		return cell.Errorf(cell.Invalid, opName, "see what it says", "cannot build template %s: %s ended (%d) before it was ready: %s", name, b.p.req.Warm, st.Exit.Code, tail(log))
	}
	for wait, n := 50*time.Millisecond, 0; ; wait, n = min(2*wait, time.Second), n+1 {
		if err := alive(); err != nil {
			return late(err)
		}
		d, err := shell(fmt.Sprintf("ready-%d", n), w.Ready)
		if err != nil {
			return late(err)
		}
		if exit := d.Status.Exit; exit != nil && exit.Code == 0 {
			b.warmth = cell.Warmth{Kind: cell.WarmCommand, Version: b.p.req.Warm, Started: time.Now().UTC()}
			return alive()
		}
		said = "ended with " + endOf(d)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// endOf is how a command ended that was to succeed, in words.
func endOf(d backend.Done) string {
	code, cause := -1, ""
	if d.Status.Exit != nil {
		code = d.Status.Exit.Code
		if cause = d.Status.Exit.Cause; cause != "" {
			cause = " (" + cause + ")"
		}
	}
	text := redactor.String(string(d.Stderr))
	if text == "" {
		text = redactor.String(string(d.Stdout))
	}
	return fmt.Sprintf("exit %d%s %s", code, cause, clip(text))
}

// captureWhole captures the template's cell, and ends it where it stands: what it
// wrote until then is what its forks begin on.
func (b *build) captureWhole(ctx context.Context, inst backend.Instance) error {
	e, c := b.e, &b.x.c
	src, ok := inst.(backend.Capturer)
	if !ok {
		return cell.Errorf(cell.Internal, "engine.BuildTemplate", "", "cannot capture template %s: its backend says that it can, and doesn't", c.Template)
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return err
	}
	t := &instant{e: e, provider: p, above: map[string]workspace.State{}, dir: filepath.Join(e.private(c.ID), imageFolder)}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return full(err)
	}
	if err := src.Freeze(ctx); err != nil {
		return err
	}
	failpoint.Step("capture a template")
	if _, err := src.Capture(ctx, t.dir); err != nil {
		return full(err)
	}
	e.alive.Take(c.ID)
	if err := e.alive.RemoveFrozen(ctx, inst, "it was captured"); err != nil {
		return err
	}
	if err := b.seal(ctx); err != nil {
		return err
	}
	caches := map[string]string{}
	for i := range c.Setup.Mounts {
		if m := &c.Setup.Mounts[i]; m.Kind == cell.Cache {
			caches[m.Target] = e.uppers(c)[m.Target]
		}
	}
	if err := t.takeAbove(ctx, caches); err != nil {
		return err
	}
	x := wholeFacts{Home: frozen(p, c.Home), Tmp: frozen(p, c.Tmp), Above: t.above}
	names, err := os.ReadDir(t.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		f, err := fileAt(filepath.Join(t.dir, n.Name()))
		if err != nil {
			return err
		}
		x.Files = append(x.Files, f)
	}
	facts, err := json.Marshal(x)
	if err != nil {
		return err
	}
	return full(os.WriteFile(filepath.Join(t.dir, wholeFile), facts, 0o600))
}

// wholeOf is the instant that a whole template's forks begin at. An image that is not
// what was captured is refused.
func (e *Engine) wholeOf(t *state.Template, c *state.Cell, at *state.Checkpoint) (*instant, error) {
	f, err := e.readWhole(c.ID)
	if err != nil {
		return nil, cell.Errorf(cell.Corrupt, "engine.template", "build it anew: pando template build "+c.Template, "cannot read the image of template %s: %w", c.Template, err)
	}
	for _, x := range f.Files {
		if now, changed := changedSince(&x); changed {
			return nil, changedParent(t, "the image of its memory ("+filepath.Base(x.Path)+")", x.Sum, now)
		}
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return nil, err
	}
	return &instant{e: e, provider: p, state: at.State, home: f.Home, tmp: f.Tmp, above: f.Above, dir: filepath.Join(e.private(c.ID), imageFolder)}, nil
}

// damagedImage says what of a whole template's image is not what was captured; "" for
// nothing, and for other templates.
func (e *Engine) damagedImage(t *state.Template) string {
	c, err := e.reg.Cell(t.Cell)
	if err != nil || !e.hasImage(&c) {
		return ""
	}
	then := "; build it anew: pando template build " + t.Name
	f, err := e.readWhole(c.ID)
	if err != nil {
		return "the image of its memory cannot be read: " + err.Error() + then
	}
	for _, x := range f.Files {
		if _, changed := changedSince(&x); changed {
			return "the image of its memory (" + filepath.Base(x.Path) + ") is not what was captured" + then
		}
	}
	return ""
}

// imageSize is how many bytes the image of a whole template takes; 0 for other templates.
func (e *Engine) imageSize(t *state.Template) int64 {
	c, err := e.reg.Cell(t.Cell)
	if err != nil || !e.hasImage(&c) {
		return 0
	}
	n, _ := workspace.DiskUse(filepath.Join(e.private(c.ID), imageFolder))
	return n
}

// readWhole reads what is known of a whole template beside its image.
func (e *Engine) readWhole(id cell.ID) (f wholeFacts, err error) {
	b, err := readState(filepath.Join(e.private(id), imageFolder, wholeFile))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	return f, err
}

// above is what the image of a template's cell needs beside the cell's record.
func (e *Engine) above(id cell.ID) []workspace.State {
	f, err := e.readWhole(id)
	if err != nil {
		return nil
	}
	return slices.Collect(maps.Values(f.Above))
}

// recoverWhole makes the templates known that are images.
func (e *Engine) recoverWhole() {
	for _, t := range e.reg.Templates() {
		c, err := e.reg.Cell(t.Cell)
		if err != nil || !e.hasImage(&c) {
			continue
		}
		e.alive.PutInterp(c.ID, live.Interp{Template: t.Name, Keeper: c.Keeper(), Sealed: true, Image: true, Used: time.Now()})
		e.mu.Lock()
		e.poolOf(t.Name, c.ID)
		e.mu.Unlock()
	}
}

// isWhole reports whether a template is a whole one.
func (e *Engine) isWhole(name string) bool {
	t, err := e.reg.Template(name)
	if err != nil {
		return false
	}
	c, err := e.reg.Cell(t.Cell)
	return err == nil && e.hasImage(&c)
}

// hasImage reports whether a cell is a whole template's, complete.
func (e *Engine) hasImage(c *state.Cell) bool {
	if c.Template == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(e.private(c.ID), imageFolder, wholeFile))
	return err == nil
}

// makeCopy makes a fork of a whole template that is complete but for its identity.
func (par *warmParent) makeCopy(ctx context.Context, c *state.Cell, ahead bool) (backend.Warmer, error) {
	e := par.whole.e
	if err := par.whole.begin(ctx, c, par.root); err != nil {
		return nil, err
	}
	mounts, err := e.forkMounts(c, par.p)
	if err != nil {
		return nil, err
	}
	n, err := e.govern.ForkGovernance(c)
	if err != nil {
		return nil, err
	}
	return par.whole.copy(ctx, c, mounts, n, ahead)
}
