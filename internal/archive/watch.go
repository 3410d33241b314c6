package archive

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

const watched = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_ONLYDIR

// maxWatched bounds the directories of one watch.
const maxWatched = 8192

// watcher watches directories until its file is closed.
type watcher struct {
	root  *os.File
	f     *os.File // of inotify
	all   bool     // also directories below
	paths map[int]string
	to    *json.Encoder
}

// watch sends the changes in a directory until stop is closed.
func watch(root *os.File, p string, all bool, to *json.Encoder, stop <-chan struct{}) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	w := &watcher{root: root, f: os.NewFile(uintptr(fd), "inotify"), all: all, paths: map[int]string{}, to: to}
	closing := sync.OnceFunc(func() { w.f.Close() })
	defer closing()
	if err := w.add(p, 0); err != nil {
		return err
	}
	if err := to.Encode(cell.FileEvent{Path: p}); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-stop:
			closing()
		case <-ended:
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.f.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.events(buf[:n]); err != nil {
			return err
		}
	}
}

// add watches a directory and, with all, those below it. Only the first may be a symlink.
func (w *watcher) add(p string, flags int) error {
	d, err := Open(w.root, p, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	if flags == 0 && errors.Is(err, unix.ENOTDIR) { // one below it was replaced meanwhile
		return cell.Errorf(cell.Invalid, "archive.watch", "", "cannot watch %s: it is no directory", p)
	}
	if err != nil {
		return notInCell(err)
	}
	defer d.Close()
	if len(w.paths) >= maxWatched {
		return cell.Errorf(cell.Invalid, "archive.watch", "watch a smaller part", "cannot watch %s: more than %d directories", p, maxWatched)
	}
	c, err := w.f.SyscallConn() // Fd would make it blocking
	if err != nil {
		return err
	}
	wd := -1
	if cerr := c.Control(func(fd uintptr) {
		wd, err = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", d.Fd()), watched)
	}); err == nil {
		err = cerr
	}
	if err != nil {
		return &os.PathError{Op: "inotify_add_watch", Path: p, Err: err}
	}
	w.paths[wd] = p
	if !w.all {
		return nil
	}
	names, err := d.Readdirnames(maxListed)
	if len(names) == 0 {
		return nil
	}
	for _, n := range names {
		if info, serr := stat(w.root, path.Join(p, n)); serr == nil && info.Type == cell.TypeDirectory {
			if err := w.add(info.Path, unix.O_NOFOLLOW); cell.KindOf(err) == cell.Invalid {
				return err
			}
		}
	}
	return err
}

// events sends the events of one read of the inotify file.
func (w *watcher) events(b []byte) error {
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask, size := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00"))
		b = b[unix.SizeofInotifyEvent+size:]
		dir, ok := w.paths[wd]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			if err := w.to.Encode(cell.FileEvent{What: "overflow"}); err != nil {
				return err
			}
			continue
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(w.paths, wd)
			continue
		}
		if !ok || name == "" {
			continue
		}
		at := path.Join(dir, name)
		if err := w.to.Encode(cell.FileEvent{Path: at, What: whatOf(mask)}); err != nil {
			return err
		}
		if mask&unix.IN_ISDIR == 0 || !w.all {
			continue
		}
		switch {
		case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			if err := w.add(at, unix.O_NOFOLLOW); cell.KindOf(err) == cell.Invalid {
				return err
			}
		case mask&unix.IN_MOVED_FROM != 0:
			w.forget(at)
		}
	}
	return nil
}

// forget ends the watches of a directory that was moved away.
func (w *watcher) forget(dir string) {
	for wd, p := range w.paths {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			if c, err := w.f.SyscallConn(); err == nil {
				c.Control(func(fd uintptr) { unix.InotifyRmWatch(int(fd), uint32(wd)) })
			}
			delete(w.paths, wd)
		}
	}
}

func whatOf(mask uint32) string {
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return "create"
	case mask&unix.IN_MODIFY != 0:
		return "write"
	case mask&unix.IN_DELETE != 0:
		return "remove"
	case mask&unix.IN_MOVED_FROM != 0:
		return "rename"
	}
	return "chmod"
}
