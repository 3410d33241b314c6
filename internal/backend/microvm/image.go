package microvm

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/backend/staged"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
)

// The files of an image, in the order in which the driver gets them.
const (
	imageDevices = iota // what processors and devices know
	imageMemory
	imageFiles // what the gofer knows
	imagesKept
)

var imageNames = []string{imageDevices: "devices", imageMemory: "memory", imageFiles: "files"}

// images are what is kept of a machine.
func (b *Backend) images() *staged.Images {
	return &staged.Images{Name: Name, Files: imageNames, Needs: b.needs, Open: b.openImage}
}

// needs is what a machine's devices and processors mean something to: they are loaded by the
// QEMU that saved them, with the same accelerator, and by no other.
func (b *Backend) needs() (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.base(context.Background())
	if err != nil {
		return nil, err
	}
	needs := map[string]string{"QEMU": r.program.Version, "accelerator": string(r.accel)}
	if r.accel == vmm.KVM {
		needs["processor"] = kvm.Processor() // the machine has all its features
	}
	return needs, nil
}

// openImage opens an image's files for a copy.
func (b *Backend) openImage(dir string) (files []*os.File, err error) {
	for i, name := range imageNames {
		var f *os.File
		if i == imageMemory {
			f, err = b.memories.open(filepath.Join(dir, name))
		} else {
			f, err = os.Open(filepath.Join(dir, name))
		}
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// memories are the memories of images, each in a file of memory that nobody can
// change any more: QEMU opens the file that it maps for writing, and what runs it may
// be a guest that has broken out.
type memories struct {
	mu  sync.Mutex // guards what follows; held while one is read
	all map[string]*warm
}

// warm is one of them.
type warm struct {
	file *os.File
	id   [2]uint64 // of the file that it was read from
	used time.Time
}

// coolAfter is how long a memory stays that nobody opens.
const coolAfter = 10 * time.Minute

// lookAfter is how often it is looked which of them nobody needs any more: a branch's
// is needed for a moment.
const lookAfter = 5 * time.Second

func newMemories() *memories { return &memories{all: map[string]*warm{}} }

// open returns the memory that a file has.
func (m *memories) open(path string) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	id := [2]uint64{st.Dev, st.Ino}
	w := m.all[path]
	if w == nil || w.id != id {
		if w != nil {
			w.file.Close()
		}
		f, err := load(path)
		if err != nil {
			return nil, err
		}
		w = &warm{file: f, id: id}
		if len(m.all) == 0 {
			time.AfterFunc(lookAfter, m.look)
		}
		m.all[path] = w
	}
	w.used = time.Now()
	fd, err := unix.FcntlInt(w.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), "memory"), nil
}

// look cools, for as long as there are any.
func (m *memories) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cool(time.Now()); len(m.all) > 0 {
		time.AfterFunc(lookAfter, m.look)
	}
}

// cool lets go of what nobody needs. Machines that have it mapped keep it.
func (m *memories) cool(now time.Time) {
	for path, w := range m.all {
		_, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || now.Sub(w.used) > coolAfter {
			w.file.Close()
			delete(m.all, path)
		}
	}
}

// load reads a file into memory, without its holes, and seals that.
func load(path string) (_ *os.File, err error) {
	from, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("pando-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	to := os.NewFile(uintptr(fd), "memory")
	defer func() {
		if err != nil {
			to.Close()
		}
	}()
	if err := to.Truncate(st.Size()); err != nil {
		return nil, err
	}
	if err := copySparse(from, to); err != nil {
		return nil, err
	}
	_, err = unix.FcntlInt(to.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	return to, os.NewSyscallError("seal", err)
}

// copySparse copies what a file has that is no hole, to the same places.
func copySparse(from, to *os.File) error {
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		end, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		for at = begin; at < end; {
			n, err := from.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if n == 0 && err != nil {
				return err
			}
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
	}
}

// open opens what a cell's machine is started with.
func (b *Backend) open(spec *cell.Spec) (o namespace.Opened, err error) {
	k, err := b.tools(context.Background(), spec.Kernel)
	if err != nil {
		return o, err
	}
	for _, path := range []string{fileKernel: k.image, fileInitramfs: k.initramfs, fileGofer: b.cfg.Guest} {
		f, err := os.Open(path)
		if err != nil {
			return o, cell.Errorf(cell.Unsupported, "microvm.Create", "", "cannot start a machine: %w", err)
		}
		o.Files = append(o.Files, f)
	}
	device, err := openDevice(k.accel)
	if err != nil {
		return o, cell.Errorf(cell.Unsupported, "microvm.Create", "`pando doctor` says what works on this machine", "cannot start a machine: %w", err)
	}
	o.Files, o.Isolation = append(o.Files, device), []string{k.isolation()}
	return o, b.images().Given(spec, &o, k.made)
}

// openDevice opens what executes a machine's instructions, so that a cell's program,
// which is no user of the host when pando runs as root, may open it once more by its
// descriptor: as root through a node of our own, which nobody else sees.
func openDevice(accel vmm.Accel) (*os.File, error) {
	switch {
	case accel != vmm.KVM:
		return os.Open(os.DevNull)
	case os.Geteuid() == 0:
		return linux.OpenNode(kvm.Device)
	}
	return os.OpenFile(kvm.Device, os.O_RDWR, 0)
}
