package gvisor

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/linux"
)

// images describes gVisor's memory images.
func (b *Backend) images() *guestkernel.Images {
	return &guestkernel.Images{
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

// buildOf identifies a build of gVisor: the digest of the program's file.
func buildOf(program string) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	d, err := cell.SumReader(f)
	return d.String(), err
}

// buildsOf returns buildOf for a program, cached until the file changes.
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

// open opens the files for a cell's driver: the runtime, and an image's files.
func (b *Backend) open(spec *cell.Spec) (o isolation.Opened, err error) {
	f, err := os.Open(b.cfg.Runsc)
	if err != nil {
		return o, cell.Errorf(cell.Unsupported, "gvisor.Create", "build or install it: `make` puts it beside pando", "cannot start a cell: %w", err)
	}
	o.Files = append(o.Files, f)
	return o, b.images().Given(spec, &o, nil)
}
