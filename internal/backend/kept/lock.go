package kept

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
)

// Liveness is a held lock: a keeper holds a lock on "<cell>.lock" through the
// only descriptor there is of it. It is a lock of the open file (F_OFD_SETLK),
// which goes to the keeper with the descriptor, ends with the keeper, and can be
// asked about without being taken.

func (h *Host) socket(id cell.ID) string { return string(id) + ".sock" }

func (h *Host) lockPath(id cell.ID) string { return filepath.Join(h.Dir, string(id)+".lock") }

func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }

// lock takes the lock of a cell; Exists when somebody holds it. flag is
// os.O_CREATE, or 0 for a lock that must be there.
func (h *Host) lock(id cell.ID, flag int) (*os.File, error) {
	for {
		if flag != 0 {
			fault.Step("lock a cell")
		}
		f, err := os.OpenFile(h.lockPath(id), os.O_RDWR|flag, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, wholeFile()); err != nil {
			f.Close()
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
				return nil, cell.Errorf(cell.Exists, "kept.lock", "", "cell %s is alive already", id)
			}
			return nil, os.NewSyscallError("fcntl", err)
		}
		if h.names(id, f) {
			return f, nil
		}
		f.Close() // whoever had it before removed it; this one proves nothing
	}
}

// names reports whether f is the file that has the lock's name now.
func (h *Host) names(id cell.ID, f *os.File) bool {
	a, err := f.Stat()
	b, berr := os.Stat(h.lockPath(id))
	return err == nil && berr == nil && os.SameFile(a, b)
}

// Alive reports whether a keeper holds the cell. It is false only when the lock was
// looked at and is free, or is not there: with no descriptor left to open it, say, the
// keeper counts as alive, since a cell without a keeper is taken down.
func (h *Host) Alive(id cell.ID) bool {
	f, err := os.Open(h.lockPath(id))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	l := wholeFile()
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, l) != nil || l.Type != unix.F_UNLCK
}

// going is how long a keeper that was sent away may hold its lock.
const going = time.Second

// Release removes the files of a cell whose keeper is gone, or going. Files
// that another keeper holds by now stay.
func (h *Host) Release(id cell.ID) {
	for began := time.Now(); !h.forget(id) && time.Since(began) < going; {
		time.Sleep(time.Millisecond)
	}
}

// forget removes the files of a cell that nobody holds. It is false when
// somebody does.
func (h *Host) forget(id cell.ID) bool {
	f, err := h.lock(id, 0)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) // the lock is made first and removed last
	}
	defer f.Close()
	fault.Step("remove the socket of a keeper")
	os.Remove(filepath.Join(h.Dir, h.socket(id)))
	fault.Step("remove the lock of a keeper")
	os.Remove(h.lockPath(id))
	return true
}

// keepers lists the families whose keepers live, and those whose sockets or locks
// were left by keepers that are gone.
func (h *Host) keepers() (living, dead []cell.ID, err error) {
	names, err := filepath.Glob(filepath.Join(h.Dir, "c-*.lock"))
	for _, n := range names {
		if id := cell.ID(strings.TrimSuffix(filepath.Base(n), ".lock")); h.Alive(id) {
			living = append(living, id)
		} else {
			dead = append(dead, id)
		}
	}
	return living, dead, err
}

// Leftovers removes the files of keepers that are gone, and says whose; with
// dry it only says.
func (h *Host) Leftovers(dry bool) ([]string, error) {
	_, dead, err := h.keepers()
	var found []string
	for _, id := range dead {
		if dry || h.forget(id) {
			found = append(found, "keeper files of "+string(id))
		}
	}
	return found, err
}
