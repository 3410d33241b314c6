package gvisor

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/backend/staged"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// images are what gVisor writes of a cell.
func (b *Backend) images() *staged.Images {
	return &staged.Images{
		Name:  Name,
		Files: imageFiles,
		Needs: func() (map[string]string, error) {
			build, err := b.build()
			return map[string]string{"build of gVisor": build}, err
		},
		Open: func(dir string) ([]*os.File, error) {
			f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			return []*os.File{f}, err
		},
	}
}

var imageFiles = []string{"checkpoint.img", "pages_meta.img", "pages.img"} // in gVisor's order

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

// buildsOf is buildOf of a program, which reads it again when it is another file.
func buildsOf(program string) func() (string, error) {
	var mu sync.Mutex
	stamp, build := "", ""
	return func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		is := linux.Stamp(program)
		if is == stamp {
			return build, nil
		}
		b, err := buildOf(program)
		if err != nil {
			return "", err
		}
		stamp, build = is, b
		return b, nil
	}
}

// open opens what a cell's driver gets: the runtime, and an image's directory.
func (b *Backend) open(spec *cell.Spec) (o namespace.Opened, err error) {
	f, err := os.Open(b.cfg.Runsc)
	if err != nil {
		return o, cell.Errorf(cell.Unsupported, "gvisor.Create", "build or install it: `make` puts it beside pando", "cannot start a cell: %w", err)
	}
	o.Files = append(o.Files, f)
	return o, b.images().Given(spec, &o, nil)
}
