package client

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
)

// Liveness is a held lock. A keeper holds a lock on "<cell>.lock" through the only descriptor
// of it. It is an open file description lock (F_OFD_SETLK): it is passed to the keeper with the
// descriptor, ends with the keeper, and can be tested without being taken.

func (h *Host) socket(id cell.ID) string { return string(id) + ".sock" }

func (h *Host) lockPath(id cell.ID) string { return filepath.Join(h.Dir, string(id)+".lock") }

func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }

// lock takes the lock of a cell, and fails with Exists if it is held. flag is os.O_CREATE, or 0
// for a lock file that must exist.
func (h *Host) lock(id cell.ID, flag int) (*os.File, error) {
	for {
		if flag != 0 {
			failpoint.Step("lock a cell")
		}
		f, err := os.OpenFile(h.lockPath(id), os.O_RDWR|flag, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, wholeFile()); err != nil {
			f.Close()
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
				return nil, cell.Errorf(cell.Exists, "keeper.lock", "", "cell %s is alive already", id)
			}
			return nil, os.NewSyscallError("fcntl", err)
		}
		if h.names(id, f) {
			return f, nil
		}
		f.Close() // its previous holder removed the file, so this lock proves nothing
	}
}

// names reports whether f is still the file at the lock's path.
func (h *Host) names(id cell.ID, f *os.File) bool {
	a, err := f.Stat()
	b, berr := os.Stat(h.lockPath(id))
	return err == nil && berr == nil && os.SameFile(a, b)
}

// Alive reports whether a keeper holds the cell. It is false only if the lock is free or does
// not exist. On other errors, such as a lack of descriptors, the keeper counts as alive,
// because a cell without a keeper is removed.
func (h *Host) Alive(id cell.ID) bool {
	f, err := os.Open(h.lockPath(id))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	l := wholeFile()
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, l) != nil || l.Type != unix.F_UNLCK
}

// going is how long a dismissed keeper may hold its lock.
const going = time.Second

// Release removes the files of a cell after its keeper has ended or is about to. Files that
// another keeper holds by now stay.
func (h *Host) Release(id cell.ID) {
	for began := time.Now(); !h.forget(id) && time.Since(began) < going; {
		time.Sleep(time.Millisecond)
	}
}

// forget removes the files of a cell without a keeper. It returns false if a keeper holds them.
func (h *Host) forget(id cell.ID) bool {
	f, err := h.lock(id, 0)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) // the lock is created first and removed last
	}
	defer f.Close()
	failpoint.Step("remove the socket of a keeper")
	os.Remove(filepath.Join(h.Dir, h.socket(id)))
	failpoint.Step("remove the lock of a keeper")
	os.Remove(h.lockPath(id))
	return true
}

// keepers lists the families with a living keeper, and those with leftover sockets or locks.
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

// Leftovers removes the files of keepers that have ended, and names them. With dry it removes
// nothing.
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
