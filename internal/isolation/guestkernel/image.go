package guestkernel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/client"
)

// Images is the daemon's side of memory images: directories with the files that a kernel wrote,
// and pando's metadata. The files are readable by all users,
// because the runtime that opens them may have no user ID on the host; the directory above is
// private.
type Images struct {
	Name  string   // backend name
	Files []string // in the order that Kernel.Capture gets them
	// Needs returns the properties of this host that a copy depends on. An image with other
	// values is refused.
	Needs func() (map[string]string, error)
	// Brief may replace a file of a short-lived image by a link to a file in memory. has is the
	// cell's memory in bytes. Brief may be nil.
	Brief func(path string, has int64) error
	// Base records the base file that a brief image depends on, and closes it. nil: images
	// depend on none.
	Base func(dir string, base *os.File) error
	// Open opens an image for the kernel of a copy.
	Open func(dir string) ([]*os.File, error)
}

// factsFile contains the metadata of an image.
const factsFile = "cell.json"

// facts is the content of factsFile.
type facts struct {
	Needs  map[string]string `json:"needs"`
	Guest  json.RawMessage   `json:"guest"` // of the keeper that captured it
	Warmth *cell.Warmth      `json:"interpreter,omitempty"`
}

// More is the backend's data for its driver.
type More struct {
	Kernel json.RawMessage `json:"kernel,omitempty"` // how to make the kernel, defined by the backend
	Image  json.RawMessage `json:"image,omitempty"`  // metadata of the image from which the cell continues
}

// Given adds the image from which a cell continues, if any, and the kernel's data to o.
func (x *Images) Given(spec *cell.Spec, o *isolation.Opened, kernel json.RawMessage) error {
	m := More{Kernel: kernel}
	if spec.Memory != "" {
		f, err := x.read(spec.Memory)
		if err != nil {
			return err
		}
		files, err := x.Open(spec.Memory)
		if err != nil {
			return cell.Errorf(cmp.Or(cell.KindOf(err), cell.Corrupt), x.Name+".Create", cell.HintOf(err), "cannot read the image of the cell's memory: %w", err)
		}
		o.Files, o.Warm, m.Image = append(o.Files, files...), f.Warmth, f.Guest
	}
	var err error
	o.More, err = json.Marshal(m)
	return err
}

// read returns the facts of an image. It fails if this host cannot continue it.
func (x *Images) read(dir string) (f facts, err error) {
	text, err := os.ReadFile(filepath.Join(dir, factsFile))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return f, cell.Errorf(cell.Corrupt, x.Name+".Create", "", "cannot read the image of the cell's memory: %w", err)
	}
	now, err := x.Needs()
	if err != nil {
		return f, err
	}
	all := maps.Clone(now)
	maps.Copy(all, f.Needs) // it may need what this host has no name for
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if f.Needs[name] != now[name] {
			return f, cell.Errorf(cell.Unsupported, x.Name+".Create", "fork its files, or build the template anew",
				"cannot go on with what was captured by another %s: expected %q, found %q", name, f.Needs[name], now[name])
		}
	}
	return f, nil
}

// Hook has an instance capture its memory into such images.
func (x *Images) Hook(i *client.Instance) { i.CaptureImage, i.PrepareImage = x.capture, x.prepare }

// prepare is client.Instance.PrepareImage.
func (x *Images) prepare(ctx context.Context, of *client.Instance, dir string, brief bool) error {
	if x.Brief != nil {
		st, err := of.Stats(ctx)
		if err != nil {
			return err
		}
		for _, name := range x.Files {
			if err := x.Brief(filepath.Join(dir, name), st.Memory); err != nil {
				return err
			}
		}
	}
	return x.into(dir, func(files []*os.File) error {
		base, err := of.PrepareTo(ctx, files, brief && x.Base != nil)
		if err != nil || base == nil {
			return err
		}
		return x.Base(dir, base)
	})
}

// into opens the files of an image and calls f.
func (x *Images) into(dir string, f func([]*os.File) error) (err error) {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = cmp.Or(err, f.Close())
		}
	}()
	for _, name := range x.Files {
		path := filepath.Join(dir, name)
		f, err := os.OpenFile(path, os.O_RDWR, 0) // it was prepared
		if errors.Is(err, fs.ErrNotExist) {
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644); err == nil {
				err = f.Chmod(0o644)
			}
		}
		if f != nil {
			files = append(files, f)
		}
		if err != nil {
			return err
		}
	}
	return f(files)
}

// capture is client.Instance.CaptureImage.
func (x *Images) capture(ctx context.Context, of *client.Instance, dir string) (taken string, err error) {
	var f facts
	err = x.into(dir, func(files []*os.File) (err error) {
		f.Guest, f.Warmth, err = of.CaptureTo(ctx, files)
		return err
	})
	if err != nil {
		return "", err
	}
	if f.Needs, err = x.Needs(); err != nil {
		return "", err
	}
	var guest known
	if err := json.Unmarshal(f.Guest, &guest); err != nil {
		return "", cell.Errorf(cell.Internal, x.Name+".Capture", "", "cannot read the keeper's data about the cell's memory: %w", err)
	}
	text, err := json.Marshal(f)
	if err != nil {
		return "", err
	}
	return guest.Taken, os.WriteFile(filepath.Join(dir, factsFile), text, 0o600)
}
