package linux

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A Dir is an open directory below which paths of any length are resolved, as
// long as nothing but their caller renames what is below it. Its methods are
// safe for concurrent use.
//
// The kernel follows a path component by component, and takes none longer than
// LongestPath. So a Dir keeps some of the folders on the way to long paths open,
// one every anchorStep bytes: the next path, most often beside the last one, is
// resolved from the nearest of them. What a walk costs then grows with the
// number of folders, whatever their depth.
type Dir struct {
	*os.File

	mu      sync.Mutex         // guards what follows
	anchors map[string]*anchor // by path
	clock   int                // grows with each use of an anchor
}

const (
	anchorStep  = 512 // bytes of path between two anchors
	anchorsMost = 64  // of one Dir
)

// anchor is an open folder on the way to long paths.
type anchor struct {
	fd   int
	uses int // callers that resolve from it now
	last int // value of the Dir's clock when it was last used
}

// OpenDir opens a directory, with further flags.
func OpenDir(path string, flags int) (*Dir, error) {
	f, err := os.OpenFile(path, flags|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Dir{File: f}, nil
}

// Close closes the directory and what was kept open below it.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.anchors {
		unix.Close(a.fd)
	}
	d.anchors = nil
	return d.File.Close()
}

// Open opens path below the directory, following no symlink on the way there.
func (d *Dir) Open(path string, flags int) (int, error) {
	fd, err := -1, error(nil)
	err = d.from(path, func(at int, rest string) error {
		fd, err = openAt(at, rest, beneath(flags))
		return err
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: Abridged(path), Err: err}
	}
	return fd, nil
}

// At calls f with a name for what lies at path below the directory that is short
// enough for any system call. The name is followed as far as its last component;
// what becomes of that one if it is a symlink is up to f.
func (d *Dir) At(path string, f func(at string) error) error {
	if len(path) < anchorStep {
		if at := filepath.Join(d.Name(), path); len(at) <= LongestPath {
			return f(at)
		}
	}
	parent, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	fd, err := d.Open(parent, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f("/proc/self/fd/" + strconv.Itoa(fd) + "/" + name)
}

func beneath(flags int) *unix.OpenHow {
	return &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
}

// from calls f with the nearest folder on the way to path that is kept open, and
// what of the path is left from there.
func (d *Dir) from(path string, f func(at int, rest string) error) error {
	at, rest, a, err := d.anchor(path)
	if err != nil {
		return err
	}
	if rest == "" {
		rest = "."
	}
	if a != nil {
		defer d.release(a)
	}
	return f(at, rest)
}

// anchor finds the anchors on the way to path, or opens them. It returns the last
// one, in use, or the directory itself and no anchor.
func (d *Dir) anchor(path string) (at int, rest string, a *anchor, err error) {
	at = int(d.Fd())
	if len(path) < anchorStep {
		return at, path, nil, nil
	}
	var ends []int // of the anchors' paths
	for end := 0; end+anchorStep < len(path); {
		i := strings.IndexByte(path[end+anchorStep:], '/')
		if i < 0 {
			break
		}
		end += anchorStep + i
		ends = append(ends, end)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	have := len(ends)
	for ; have > 0; have-- {
		if a = d.anchors[path[:ends[have-1]]]; a != nil {
			d.use(a)
			at = a.fd
			break
		}
	}
	done := 0
	if have > 0 {
		done = ends[have-1] + 1
	}
	for _, end := range ends[have:] {
		fd, err := openAt(at, path[done:end], beneath(unix.O_PATH|unix.O_DIRECTORY))
		if a != nil {
			a.uses--
		}
		if err != nil {
			return -1, "", nil, err
		}
		at, done, a = fd, end+1, &anchor{fd: fd}
		d.use(a)
		d.keep(strings.Clone(path[:end]), a)
	}
	return at, path[done:], a, nil
}

func (d *Dir) use(a *anchor) {
	d.clock++
	a.uses++
	a.last = d.clock
}

func (d *Dir) release(a *anchor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a.uses--
}

// keep adds an anchor, and closes the one that was not used for longest if there
// are too many.
func (d *Dir) keep(path string, a *anchor) {
	if d.anchors == nil {
		d.anchors = map[string]*anchor{}
	}
	d.anchors[path] = a
	if len(d.anchors) <= anchorsMost {
		return
	}
	oldest := ""
	for p, o := range d.anchors {
		if o.uses == 0 && (oldest == "" || o.last < d.anchors[oldest].last) {
			oldest = p
		}
	}
	if oldest != "" {
		unix.Close(d.anchors[oldest].fd)
		delete(d.anchors, oldest)
	}
}

// Forget closes what is kept open below the directory: the caller is about to
// remove or rename some of it.
func (d *Dir) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p, a := range d.anchors {
		if a.uses == 0 {
			unix.Close(a.fd)
			delete(d.anchors, p)
		}
	}
}
