package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/keeper"
)

// An image of a cell's memory is a directory with what gVisor writes, and what
// pando must know to go on with it. Its files can be read by everybody, because
// the runtime that opens them is nobody on the host; the directory above is closed.
var imageFiles = []string{"checkpoint.img", "pages_meta.img", "pages.img"} // in gVisor's order

// factsFile is the image's own part.
const factsFile = "cell.json"

// facts is what it says.
type facts struct {
	GVisor string       `json:"gvisor"` // the build that captured it; no other is let go on with it
	Guest  known        `json:"guest"`
	Warmth *cell.Warmth `json:"interpreter,omitempty"`
}

// buildOf tells builds of gVisor apart: the digest of the program's file.
func buildOf(program string) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	d, err := cell.SumReader(f)
	return d.String(), err
}

// known is what a keeper must know to talk to a guest that another had.
type known struct {
	Token []byte `json:"token"`
	Procs int64  `json:"procs"` // started so far: each has a number
}

// open opens what a cell's driver gets: the runtime, and an image's directory.
func (b *Backend) open(spec *cell.Spec) (o namespace.Opened, err error) {
	f, err := os.Open(b.cfg.Runsc)
	if err != nil {
		return o, cell.Errorf(cell.Unsupported, "gvisor.Create", "build or install it: `make` puts it beside pando", "cannot start a cell: %w", err)
	}
	o.Files = append(o.Files, f)
	if spec.Memory == "" {
		return o, nil
	}
	text, err := os.ReadFile(filepath.Join(spec.Memory, factsFile))
	var x facts
	if err == nil {
		err = json.Unmarshal(text, &x)
	}
	if err == nil {
		now, berr := b.build()
		if berr != nil {
			return o, berr
		}
		if x.GVisor != now {
			return o, cell.Errorf(cell.Unsupported, "gvisor.Create", "fork its files, or build the template anew",
				"cannot go on with what another build of gVisor has captured: expected %s, found %s", x.GVisor, now)
		}
		o.More, err = json.Marshal(x.Guest)
	}
	if err != nil {
		return o, cell.Errorf(cell.Corrupt, "gvisor.Create", "", "cannot read the image of the cell's memory: %w", err)
	}
	dir, err := os.OpenFile(spec.Memory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return o, err
	}
	o.Files, o.Warm = append(o.Files, dir), x.Warmth
	return o, nil
}

// Capture implements kept.Capturing.
func (b *Backend) Capture(ctx context.Context, of *kept.Instance, dir string) (err error) {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = cmp.Or(err, f.Close())
		}
	}()
	for _, name := range imageFiles {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		files = append(files, f)
		if err := f.Chmod(0o644); err != nil {
			return err
		}
	}
	var x facts
	more, warmth, err := of.CaptureTo(ctx, files)
	if err == nil {
		err = json.Unmarshal(more, &x.Guest)
	}
	if err != nil {
		return err
	}
	if x.GVisor, err = b.build(); err != nil {
		return err
	}
	x.Warmth = warmth
	text, err := json.Marshal(x)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, factsFile), text, 0o600)
}

// Capture implements keeper.Capturer.
func (d *Driver) Capture(id cell.ID, files []*os.File) (json.RawMessage, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if !s.frozen || s.guest() == nil {
		return nil, cell.Errorf(cell.Conflict, "gvisor.Capture", "", "cannot capture the memory of cell %s: it does not stand still", id)
	}
	if len(files) != len(imageFiles) {
		return nil, cell.Errorf(cell.Invalid, "gvisor.Capture", "", "cannot capture the memory of cell %s: there are %d files for it", id, len(files))
	}
	arg := map[string]any{"metadata": map[string]string{"compression": "none"}, "have_pages_file": true, "Resume": true}
	if err := s.control("Checkpoint", arg, files...); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return nil, cell.Errorf(cell.Unavailable, "gvisor.Capture", "free some space (`pando gc` shows what pando can free), then try again", "cannot capture the memory of cell %s: %w", id, unix.ENOSPC)
		}
		return nil, cell.Errorf(cell.Unsupported, "gvisor.Capture", "its files can be had: pando fork", "cannot capture the memory of cell %s: %w", id, err)
	}
	return json.Marshal(known{s.token[:], s.procs.Load()})
}

// stop lets everything in the sandbox stand still: the guest between two frames,
// then all tasks.
func (s *sandbox) stop(g *guest.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	if err := g.Hold(ctx, false); err != nil {
		return err
	}
	if err := s.control("Pause", nil); err != nil {
		return errors.Join(err, g.GoOn(ctx))
	}
	return nil
}

// holdGrace is how long a guest may take to come to the border of a frame.
const holdGrace = 10 * time.Second

// goOn ends stop.
func (s *sandbox) goOn(g *guest.Client) error {
	if err := s.control("Resume", nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	return g.GoOn(ctx)
}

// Adopt implements keeper.Adopter.
func (d *Driver) Adopt(id cell.ID, a cell.Adoption) (c cell.Certificate, err error) {
	s, err := d.sandbox(id)
	if err != nil {
		return c, err
	}
	g := s.guest()
	if g == nil || !s.copied.CompareAndSwap(true, false) {
		return c, cell.Errorf(cell.Conflict, "gvisor.Adopt", "", "cell %s is no copy that waits to be adopted", id)
	}
	if a.Hostname != "" && a.Hostname != s.spec.Hostname {
		if err := s.stage.Identify(a.Hostname); err != nil {
			return c, err
		}
	}
	fresh := newToken()
	c = cell.Certificate{Cell: id, At: time.Now().UTC()}
	if c.Hazards, err = g.Adopt(context.Background(), guest.Adoption{Hostname: a.Hostname, Token: fresh[:]}); err != nil {
		return c, fmt.Errorf("cannot adopt cell %s: %w", id, err)
	}
	s.token = fresh
	if s.in == nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	got, err := s.in.Conn.Adopt(ctx, interp.Adoption{Env: a.Env, UID: -1, GID: -1, Name: a.Hostname})
	c.Hazards, c.Dropped = append(c.Hazards, got.Hazards...), got.Dropped
	return c, err
}

// adoptGrace is how long a copy's interpreter may take to renew what it must not
// have in common with others, with the hooks of its code.
const adoptGrace = 60 * time.Second

// disown takes over what the source's keeper had started, but for its interpreter:
// nobody waits for it here, nor reads what it writes.
func (s *sandbox) disown(g *guest.Client) error {
	list, err := g.Processes(context.Background())
	if err != nil {
		return err
	}
	for _, k := range list {
		if k.Control && !k.Ended {
			s.interpreter = k
			continue
		}
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		p, err := g.Reattach(context.Background(), k, [3]*os.File{nil, null, null}, nil)
		null.Close()
		if err != nil {
			return err
		}
		go func() {
			p.Wait(func() {})
			p.Release()
		}()
	}
	return nil
}

// Resume implements keeper.Capturer.
func (d *Driver) Resume(id cell.ID, i *keeper.Interpreter, stdio [3]*os.File, control *os.File) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	g := s.guest()
	if g == nil || s.interpreter.ID == "" {
		return cell.Errorf(cell.NotFound, "gvisor.Resume", "", "cell %s came without its interpreter", id)
	}
	before, _ := s.counted()
	p, err := g.Reattach(context.Background(), s.interpreter, [3]*os.File{nil, stdio[1], stdio[2]}, control)
	if err != nil {
		return err
	}
	i.Process, i.Layer = &process{p, s.counted, before}, s.spec.Layer
	s.in = i
	return nil
}
