package spawn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A template on a backend that captures memory is an image of all that ran in a cell,
// in the cell's folder, and not an interpreter that is forked. The
// cell itself is at rest, and each fork is a copy. So any program can be kept warm,
// and the template is warm again after a restart of the host.

// imageFolder is where the image of a template that is an image is, in its cell's folder.
const imageFolder = "memory"

// imageFile has what is known of it beside the image; it is written last.
const imageFile = "template.json"

// imageFacts is what it says.
type imageFacts struct {
	Home  workspace.State            `json:"home"`
	Tmp   workspace.State            `json:"tmp"`
	Above map[string]workspace.State `json:"above,omitempty"`
	Files []state.Program            `json:"files"` // the image, as it was written
}

// program reports whether what is kept warm is a program that isn't asked anything:
// its readiness is what a command in its cell says.
func (p *templatePlan) program() bool {
	return p.image && p.warm.Kind == cell.WarmCommand && p.warm.Ready != ""
}

// warmImage warms what is to be captured, and captures it.
func (b *build) warmImage(ctx context.Context, inst backend.Instance, proc cell.Process) (err error) {
	b.report("warming", b.p.req.Warm)
	spec := b.p.warm
	spec.ToFork = false
	spec.Process, b.paths = proc, proc.Path
	if b.p.program() {
		err = b.startProgram(ctx, inst, spec)
	} else {
		var w backend.Warmer
		if w, err = backend.WarmerOf(inst); err != nil {
			return err
		}
		if spec.Kind == cell.WarmCommand {
			spec.Name = b.p.req.Warm
		}
		b.warmth, err = w.Warm(ctx, spec, b.m.cfg.OutputTo(b.out))
	}
	if err != nil {
		return err
	}
	if b.prog, err = b.m.programAt(b.c.Setup.Mounts, proc.Path); err != nil {
		return err
	}
	a := state.AssuranceOf(inst.Assurance())
	b.assurance = &a
	b.report("capturing", cmp.Or(b.warmth.Version, b.p.req.Warm))
	return b.captureImage(ctx, inst)
}

// startProgram runs the set-up as a command, starts the program, and asks the probe
// until it says yes.
func (b *build) startProgram(ctx context.Context, inst backend.Instance, w cell.Warm) error {
	const opName = "spawn.BuildTemplate"
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
			return cell.Errorf(cell.Invalid, opName, "mend the set-up", "cannot build template %s: its set-up failed: %s", name, b.endOf(d))
		}
	}
	log, err := os.OpenFile(filepath.Join(b.m.private(b.c.ID), "program.log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	proc, err := inst.Start(ctx, "program", cell.Start{Process: w.Process, LogLimit: forkOutput}, [3]*os.File{log, log, nil})
	if err != nil {
		return late(err)
	}
	alive := func() error {
		program = "says: " + cmp.Or(b.tail(log), "nothing")
		st, err := proc.Status(ctx)
		if err != nil || st.Exit == nil {
			return err
		}
		return cell.Errorf(cell.Invalid, opName, "see what it says", "cannot build template %s: %s ended (%d) before it was ready: %s", name, b.p.req.Warm, st.Exit.Code, b.tail(log))
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
		said = "ended with " + b.endOf(d)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// endOf is how a command ended that was to succeed, in words.
func (b *build) endOf(d backend.Done) string {
	code, cause := -1, ""
	if d.Status.Exit != nil {
		code = d.Status.Exit.Code
		if cause = d.Status.Exit.Cause; cause != "" {
			cause = " (" + cause + ")"
		}
	}
	text := b.m.cfg.Redactor.String(string(d.Stderr))
	if text == "" {
		text = b.m.cfg.Redactor.String(string(d.Stdout))
	}
	return fmt.Sprintf("exit %d%s %s", code, cause, cell.Clip(text))
}

// tail is the end of what a program has written.
func (b *build) tail(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	off := max(0, st.Size()-programTail)
	text, _ := io.ReadAll(io.NewSectionReader(f, off, programTail))
	return b.m.cfg.Redactor.String(strings.ToValidUTF8(string(bytes.TrimSpace(text)), "\ufffd"))
}

// programTail is how much of a program's output is in the error when it ends early, in bytes.
const programTail = 4 << 10

// captureImage captures the template's cell, and ends it where it stands: what it
// wrote until then is what its forks begin on.
func (b *build) captureImage(ctx context.Context, inst backend.Instance) error {
	m, c := b.m, &b.c
	src, ok := inst.(backend.Capturer)
	if !ok {
		return cell.Errorf(cell.Internal, "spawn.BuildTemplate", "build it with another --backend", "cannot capture template %s: its backend says that it captures memory, and returned none", c.Template)
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	t := &snapshot{m: m, provider: p, above: map[string]workspace.State{}, dir: filepath.Join(m.private(c.ID), imageFolder)}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return durable.Full(err)
	}
	if err := src.Freeze(ctx); err != nil {
		return err
	}
	failpoint.Step("capture a template")
	if _, err := src.Capture(ctx, t.dir); err != nil {
		return durable.Full(err)
	}
	m.live.Take(c.ID)
	if err := m.live.RemoveFrozen(ctx, inst, "it was captured"); err != nil {
		return err
	}
	if err := b.seal(ctx); err != nil {
		return err
	}
	caches := m.cfg.Overlays(c)
	for i := range c.Setup.Mounts {
		if at := &c.Setup.Mounts[i]; at.Kind != cell.Cache {
			delete(caches, at.Target)
		}
	}
	if err := t.takeAbove(ctx, caches); err != nil {
		return err
	}
	x := imageFacts{Home: frozen(p, c.Home), Tmp: frozen(p, c.Tmp), Above: t.above}
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
	return durable.Full(os.WriteFile(filepath.Join(t.dir, imageFile), facts, 0o600))
}

// imageOf is the snapshot that a template's forks begin at. An image that is not
// what was captured is refused.
func (m *Manager) imageOf(t *state.Template, c *state.Cell, at *state.Checkpoint) (*snapshot, error) {
	f, err := m.readImage(c.ID)
	if err != nil {
		return nil, cell.Errorf(cell.Corrupt, "spawn.template", "build it anew: pando template build "+c.Template, "cannot read the image of template %s: %w", c.Template, err)
	}
	for _, x := range f.Files {
		if now, changed := changedSince(&x); changed {
			return nil, changedParent(t, "the image of its memory ("+filepath.Base(x.Path)+")", x.Sum, now)
		}
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return nil, err
	}
	return &snapshot{m: m, provider: p, state: at.State, home: f.Home, tmp: f.Tmp, above: f.Above, dir: filepath.Join(m.private(c.ID), imageFolder)}, nil
}

// damagedImage says what of a template's image is not what was captured; "" for
// nothing, and for other templates.
func (m *Manager) damagedImage(t *state.Template) string {
	c, err := m.reg.Cell(t.Cell)
	if err != nil || !m.hasImage(&c) {
		return ""
	}
	then := "; build it anew: pando template build " + t.Name
	f, err := m.readImage(c.ID)
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

// imageSize is how many bytes the image of a template that is an image takes; 0 for other templates.
func (m *Manager) imageSize(t *state.Template) int64 {
	c, err := m.reg.Cell(t.Cell)
	if err != nil || !m.hasImage(&c) {
		return 0
	}
	n, _ := workspace.DiskUse(filepath.Join(m.private(c.ID), imageFolder))
	return n
}

// readImage reads what is known of a template that is an image beside its image.
func (m *Manager) readImage(id cell.ID) (f imageFacts, err error) {
	b, err := durable.ReadFile(durable.Disk(filepath.Join(m.private(id), imageFolder)), imageFile)
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	return f, err
}

// Above is what the image of a template's cell needs beside the cell's record.
func (m *Manager) Above(id cell.ID) []workspace.State {
	f, err := m.readImage(id)
	if err != nil {
		return nil
	}
	return slices.Collect(maps.Values(f.Above))
}

// recoverImages makes the templates known that are images.
func (m *Manager) recoverImages() {
	for _, t := range m.reg.Templates() {
		c, err := m.reg.Cell(t.Cell)
		if err != nil || !m.hasImage(&c) {
			continue
		}
		m.live.PutSealed(&c, true)
		m.mu.Lock()
		m.poolOf(t.Name, c.ID)
		m.mu.Unlock()
	}
}

// isImage reports whether a template is an image.
func (m *Manager) isImage(name string) bool {
	t, err := m.reg.Template(name)
	if err != nil {
		return false
	}
	c, err := m.reg.Cell(t.Cell)
	return err == nil && m.hasImage(&c)
}

// hasImage reports whether a cell is a template's, complete.
func (m *Manager) hasImage(c *state.Cell) bool {
	if c.Template == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(m.private(c.ID), imageFolder, imageFile))
	return err == nil
}
