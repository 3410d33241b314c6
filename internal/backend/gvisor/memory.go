package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/cell"
)

// An image of a cell's memory is a directory with what gVisor writes, and what
// pando must know to go on with it. Its files can be read by everybody, because
// the runtime that opens them is nobody on the host; the directory above is closed.
var imageFiles = []string{"checkpoint.img", "pages_meta.img", "pages.img"} // in gVisor's order

// factsFile is the image's own part.
const factsFile = "cell.json"

// facts is what it says.
type facts struct {
	GVisor string          `json:"gvisor"` // the build that captured it; no other is let go on with it
	Guest  json.RawMessage `json:"guest"`  // of package staged
	Warmth *cell.Warmth    `json:"interpreter,omitempty"`
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
		o.More = x.Guest
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
	x.Guest, x.Warmth, err = of.CaptureTo(ctx, files)
	if err != nil {
		return err
	}
	if x.GVisor, err = b.build(); err != nil {
		return err
	}
	text, err := json.Marshal(x)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, factsFile), text, 0o600)
}
