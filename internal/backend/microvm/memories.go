package microvm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// memories are the memories of images, each in a file of memory that nobody can
// change any more: QEMU opens the file that it maps for writing, and what runs it may
// be a guest that has broken out.
type memories struct {
	mu  sync.Mutex // guards what follows; held while one is read
	all map[string]*warm

	host func() (available, total int64, err error) // bytes of memory
}

// warm is one of them.
type warm struct {
	file   *os.File
	id     [2]uint64 // of the file that it was read from, or its own
	sealed bool
	brief  bool // it was never anywhere else, and stays as long as the link to it
	used   time.Time
}

// coolAfter is how long a memory stays that nobody opens.
const coolAfter = 10 * time.Minute

// lookAfter is how often it is looked which of them nobody needs any more: a branch's
// is needed for a moment.
const lookAfter = 5 * time.Second

func newMemories() *memories { return &memories{all: map[string]*warm{}, host: linux.Memory} }

// briefRest is what a memory that is taken for a moment leaves to the host, in bytes.
const briefRest = 256 << 20

// brief has the memory of a machine that is taken for a moment lie where copies map it,
// and nowhere else: path becomes a link to it. Where the host hasn't twice what the
// machine has, it does nothing, reports false, and path will be a file.
func (m *memories) brief(path string, has int64) (bool, error) {
	available, _, err := m.host()
	if err != nil || available < 2*has+briefRest {
		return false, err
	}
	f, err := sealable()
	if err != nil {
		return false, err
	}
	return true, m.link(path, f, false)
}

// lend has path be a link to a memory that nobody can change or cut any more, or fails. It
// takes the file.
func (m *memories) lend(path string, f *os.File) error {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&allSeals != allSeals {
		f.Close()
		return cell.Errorf(cell.Internal, "microvm.Capture", "", "cannot copy a machine whose memory's file can be changed (%v)", err)
	}
	return m.link(path, f, true)
}

// link makes path a link to a file in memory, which stays as long as that.
func (m *memories) link(path string, f *os.File, sealed bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil {
		err = os.Symlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), path)
	}
	if err != nil {
		f.Close()
		return err
	}
	m.add(path, &warm{file: f, id: [2]uint64{st.Dev, st.Ino}, sealed: sealed, brief: true, used: time.Now()})
	return nil
}

// add adds one. The caller holds m.mu.
func (m *memories) add(path string, w *warm) {
	if len(m.all) == 0 {
		time.AfterFunc(lookAfter, m.look)
	}
	m.all[path] = w
}

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
		m.add(path, w)
	}
	if !w.sealed {
		if err := seal(w.file); err != nil {
			return nil, err
		}
		w.sealed = true
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
		if errors.Is(err, fs.ErrNotExist) || !w.brief && now.Sub(w.used) > coolAfter {
			w.file.Close()
			delete(m.all, path)
		}
	}
}

// load reads a file into memory, without its holes.
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
	to, err := sealable()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			to.Close()
		}
	}()
	if err := to.Truncate(st.Size()); err != nil {
		return nil, err
	}
	return to, copySparse(from, to)
}

// sealable makes a file in memory.
func sealable() (*os.File, error) {
	fd, err := unix.MemfdCreate("pando-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "memory"), nil
}

const allSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// seal has nobody change a file in memory any more.
func seal(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, allSeals)
	return os.NewSyscallError("seal", err)
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
