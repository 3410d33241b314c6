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

// memories caches the memories of images, each in a sealed file in memory. QEMU opens the file
// that it maps for writing, and a compromised QEMU must not change it.
type memories struct {
	mu  sync.Mutex // guards all; held while a memory is read
	all map[string]*warm

	host func() (available, total int64, err error) // memory in bytes
}

// warm is a cached memory.
type warm struct {
	file   *os.File
	id     [2]uint64 // device and inode of the file that it was read from, or its own
	sealed bool
	brief  bool // it exists only in memory, and lives as long as its link
	used   time.Time
}

// coolAfter is how long an unused memory stays cached.
const coolAfter = 10 * time.Minute

// lookAfter is the interval of the checks for unused memories. A branch needs its memory only
// for a moment.
const lookAfter = 5 * time.Second

func newMemories() *memories { return &memories{all: map[string]*warm{}, host: linux.Memory} }

// briefRest is the memory in bytes that a brief memory leaves to the host.
const briefRest = 256 << 20

// brief prepares a memory that exists only in memory: path becomes a link to it. If the host
// does not have twice the machine's memory, it reports false, and path will be a file.
func (m *memories) brief(path string, has int64) (bool, error) {
	available, _, err := m.host()
	if err != nil || available < 2*has+briefRest {
		return false, err
	}
	f, err := linux.MemoryFile("pando-memory", false)
	if err != nil {
		return false, err
	}
	return true, m.link(path, f, false)
}

// lend makes path a link to a memory, which it seals. It takes ownership of f.
func (m *memories) lend(path string, f *os.File) error {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&linux.AllSeals != linux.AllSeals {
		f.Close()
		return cell.Errorf(cell.Internal, "microvm.Capture", "", "cannot copy the machine: the file of its memory can be changed (%v)", err)
	}
	return m.link(path, f, true)
}

// link makes path a link to a file in memory, which lives as long as the link.
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

// add adds a memory. The caller holds m.mu.
func (m *memories) add(path string, w *warm) {
	if len(m.all) == 0 {
		time.AfterFunc(lookAfter, m.look)
	}
	m.all[path] = w
}

// open returns the memory of an image file.
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
		if err := linux.Seal(w.file); err != nil {
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

// look drops unused memories periodically, until none is left.
func (m *memories) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cool(time.Now()); len(m.all) > 0 {
		time.AfterFunc(lookAfter, m.look)
	}
}

// cool drops unused memories. Machines that have mapped one keep it.
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
	to, err := linux.MemoryFile("pando-memory", false)
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

// copySparse copies the data of a file, without its holes, to the same offsets.
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
