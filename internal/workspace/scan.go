package workspace

import (
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Stat identifies a version of a file without reading it. The kernel sets the change time, which
// can't be set back, so equal Stats mean equal content, except for writes in the same tick of
// the clock as the reading (see RacySlack), one long write in place that had begun before the
// reading, and through memory mappings, which change it when written back.
type Stat struct {
	Ino   uint64
	Dev   uint64
	Size  int64
	MTime int64 // nanoseconds since 1970
	CTime int64
	Mode  uint32 // with the type bits
	Nlink uint32
}

// RacySlack is the age in nanoseconds that a change time must have at the stat to prove that
// nothing changed since: file times are as coarse as the kernel's tick.
const RacySlack = int64(20e6)

// Found is one entry of a walk.
type Found struct {
	Path string
	Stat Stat
	Rdev uint64
	// Blocks is the space it takes, in units of 512 bytes.
	Blocks int64
	UID    uint32 // not part of a state's identity, but copies keep it
	GID    uint32
}

// Type returns the kind of entry, 0 for kinds that have no place in a workspace.
func (f *Found) Type() Type {
	switch f.Stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFDIR:
		return Folder
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return Fifo
	case unix.S_IFSOCK:
		return Socket
	case unix.S_IFCHR:
		return CharDev
	case unix.S_IFBLK:
		return Block
	}
	return 0
}

// StatOf keeps what identifies a version of a file.
func StatOf(st *unix.Stat_t) Stat {
	return Stat{Ino: st.Ino, Dev: uint64(st.Dev), Size: st.Size, Mode: st.Mode, Nlink: uint32(st.Nlink),
		MTime: unix.TimespecToNsec(st.Mtim), CTime: unix.TimespecToNsec(st.Ctim)}
}

// ReadOwnDir lists a directory below a root of ours, whatever its mode, sorted by name. buf is room for what
// the kernel lists.
func ReadOwnDir(root *linux.Dir, dir string, buf []byte) (found []Found, err error) {
	err = WithRights(root, dir, func() (err error) {
		found, err = readDirAt(root, dir, buf)
		return err
	})
	return found, err
}

// WalkAll visits every readable directory below root in turn. It passes errors of reading to
// visit and continues. It ends with an error of visit or of ctx.
func WalkAll(ctx context.Context, root *linux.Dir, visit func(dir string, found []Found, err error) (skip map[string]bool, _ error)) error {
	var deep depth
	buf := make([]byte, 64<<10)
	for todo := []string{""}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		found, err := readDirAt(root, dir, buf)
		if err == nil {
			if err = deep.add(found); err != nil {
				found = nil
			}
		}
		skip, err := visit(dir, found, err)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for i := len(found) - 1; i >= 0; i-- {
			if f := &found[i]; f.Type() == Folder && !skip[f.Path] {
				todo = append(todo, f.Path)
			}
		}
	}
	return nil
}

// walkDir visits every directory below root with several readers at once, each of which lists a
// directory with list. It calls visit for each directory with its entries, sorted by name, from
// several goroutines; visit returns the names of subdirectories to skip.
func walkDir(ctx context.Context, root *linux.Dir, list func(*linux.Dir, string, *Stat, []byte) ([]Found, error), visit func(string, []Found) (map[string]bool, error)) error {
	type job struct {
		path   string
		looked *Stat // nil: the root
	}
	var (
		mu     sync.Mutex
		cond   = sync.NewCond(&mu)
		queue  = []job{{"", nil}}
		active int
		first  error
		deep   depth
	)
	worker := func() {
		buf := make([]byte, 64<<10)
		mu.Lock()
		defer mu.Unlock()
		for {
			for len(queue) == 0 && active > 0 && first == nil {
				cond.Wait()
			}
			if first != nil || len(queue) == 0 {
				cond.Broadcast()
				return
			}
			j := queue[len(queue)-1]
			queue = queue[:len(queue)-1]
			active++
			mu.Unlock()
			found, err := list(root, j.path, j.looked, buf)
			var skip map[string]bool
			if err == nil {
				err = deep.add(found)
			}
			if err == nil {
				skip, err = visit(j.path, found)
			}
			if err == nil {
				err = ctx.Err()
			}
			mu.Lock()
			active--
			if err != nil && first == nil {
				first = err
			}
			for i := len(found) - 1; i >= 0; i-- {
				if f := &found[i]; f.Stat.Mode&unix.S_IFMT == unix.S_IFDIR && !skip[f.Path] {
					queue = append(queue, job{f.Path, &f.Stat})
				}
			}
			cond.Broadcast()
		}
	}
	var wg sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		wg.Go(worker)
	}
	wg.Wait()
	return first
}

// deepMost bounds the bytes of the paths longer than linux.LongestPath in one tree: a chain of
// some 11,000 folders with names of one letter. A cell can make deeper ones at no cost, and the
// cost of a path grows with the depth.
const deepMost = 128 << 20

// depth adds up the deep paths of one tree.
type depth struct{ bytes atomic.Int64 }

// add counts the entries of one folder; a walk ends with its error.
func (d *depth) add(found []Found) error {
	var n int64
	for i := range found {
		if l := len(found[i].Path); l > linux.LongestPath {
			n += int64(l)
		}
	}
	if n == 0 || d.bytes.Add(n) <= deepMost {
		return nil
	}
	return tooDeep(found[0].Path)
}

func tooDeep(path string) error {
	return cell.Errorf(cell.TooLarge, "workspace.WalkDir", "remove the deepest folders; at most some 10,000 nested ones are read",
		"the tree is too deep to be read: a path in it has %d bytes, and those above %d have more than %d MiB in all: %s",
		len(path), linux.LongestPath, deepMost>>20, linux.Abridged(path))
}

// OpenBeneath opens path below root without following any symlink.
func OpenBeneath(root *linux.Dir, path string, flags int) (int, error) {
	return root.Open(path, flags)
}

// readDirAt lists a directory with the stat of each entry.
func readDirAt(root *linux.Dir, dir string, buf []byte) ([]Found, error) {
	return readSameDirAt(root, dir, nil, buf)
}

// readSameDirAt is readDirAt, and ESTALE when the directory is another than the one that was looked at.
func readSameDirAt(root *linux.Dir, dir string, looked *Stat, buf []byte) ([]Found, error) {
	fd, err := OpenBeneath(root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if looked != nil {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, os.NewSyscallError("fstat", err)
		}
		if st.Ino != looked.Ino || uint64(st.Dev) != looked.Dev {
			return nil, &os.PathError{Op: "readdir", Path: linux.Abridged(dir), Err: unix.ESTALE}
		}
	}
	var found []Found
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return nil, &os.PathError{Op: "readdir", Path: linux.Abridged(dir), Err: err}
		}
		if n == 0 {
			break
		}
		for b := buf[:n]; len(b) > 19; {
			s := linux.DirentName(b)
			b = b[binary.NativeEndian.Uint16(b[16:]):]
			if s == "" || s == "." || s == ".." {
				continue
			}
			var st unix.Stat_t
			if err := unix.Fstatat(fd, s, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if err == unix.ENOENT {
					continue // removed meanwhile
				}
				return nil, &os.PathError{Op: "stat", Path: linux.Abridged(join(dir, s)), Err: err}
			}
			found = append(found, Found{Path: join(dir, s), Stat: StatOf(&st), Rdev: uint64(st.Rdev), Blocks: st.Blocks, UID: st.Uid, GID: st.Gid})
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Path < found[j].Path })
	return found, nil
}

// Parallel calls f for 0..n-1 on as many goroutines as there are processors, and returns the
// first error.
func Parallel(ctx context.Context, n int, f func(i int) error) error {
	workers := min(n, max(1, runtime.GOMAXPROCS(0)))
	if workers <= 1 {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
	var (
		mu    sync.Mutex
		next  int
		first error
		wg    sync.WaitGroup
	)
	for range workers {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := first != nil || i >= n
				mu.Unlock()
				if stop {
					return
				}
				err := f(i)
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// LinkKey identifies a file whatever its path, for Editor.Link.
func LinkKey(s *Stat) string {
	return strconv.FormatUint(s.Dev, 16) + ":" + strconv.FormatUint(s.Ino, 16)
}

// Collect lists everything below a root of ours, parents before children.
func Collect(ctx context.Context, root *linux.Dir) ([]Found, error) {
	return collect(ctx, root, readOwn)
}

// readOwn is ReadOwnDir for walkDir.
func readOwn(root *linux.Dir, dir string, _ *Stat, buf []byte) ([]Found, error) {
	return ReadOwnDir(root, dir, buf)
}

func collect(ctx context.Context, root *linux.Dir, list func(*linux.Dir, string, *Stat, []byte) ([]Found, error)) ([]Found, error) {
	var mu sync.Mutex
	var all []Found
	err := walkDir(ctx, root, list, func(_ string, found []Found) (map[string]bool, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return nil, nil
	})
	sort.Slice(all, func(i, j int) bool { return all[i].Path < all[j].Path })
	return all, err
}
