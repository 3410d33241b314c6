package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Stat identifies a version of a file without reading it. The change time is
// the kernel's own and can't be set back, so equal Stats mean equal content,
// except for writes in the same tick of the clock as the reading (see
// RacySlack) and through memory mappings, which change it when written back.
type Stat struct {
	Ino   uint64
	Dev   uint64
	Size  int64
	MTime int64 // nanoseconds since 1970
	CTime int64
	Mode  uint32 // with the type bits
	Nlink uint32
}

// RacySlack is how much older than the look at it a change time must be to
// prove that nothing changed since: file times are as coarse as the kernel's
// tick. In nanoseconds.
const RacySlack = int64(20e6)

// Found is one thing that a walk found.
type Found struct {
	Path string
	Stat Stat
	Rdev uint64
	UID  uint32 // who owns it is no part of a state's identity, but copies keep it
	GID  uint32
}

// Type is the kind of entry, 0 for what has no place in a workspace.
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

// WalkDir visits every directory below root with several readers at once.
// visit is called for each directory with what is in it, sorted by name, from
// several goroutines; it returns the names of subdirectories to leave out.
func WalkDir(ctx context.Context, root *os.File, visit func(dir string, found []Found) (skip map[string]bool, err error)) error {
	return walkDir(ctx, root, readDirAt, visit)
}

// readOwnDir is readDirAt below a root of ours, whatever the directory's mode.
func readOwnDir(root *os.File, dir string, buf []byte) (found []Found, err error) {
	err = WithRights(root, dir, func() (err error) {
		found, err = readDirAt(root, dir, buf)
		return err
	})
	return found, err
}

func walkDir(ctx context.Context, root *os.File, list func(*os.File, string, []byte) ([]Found, error), visit func(string, []Found) (map[string]bool, error)) error {
	type job struct{ path string }
	var (
		mu     sync.Mutex
		cond   = sync.NewCond(&mu)
		queue  = []job{{""}}
		active int
		first  error
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
			found, err := list(root, j.path, buf)
			var skip map[string]bool
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
					queue = append(queue, job{f.Path})
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

// OpenBeneath opens path below root without following any symlink.
func OpenBeneath(root *os.File, path string, flags int) (int, error) {
	if path == "" {
		path = "."
	}
	for {
		fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
			Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

// readDirAt lists a directory with the stat of each entry.
func readDirAt(root *os.File, dir string, buf []byte) ([]Found, error) {
	fd, err := OpenBeneath(root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var found []Found
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return nil, &os.PathError{Op: "readdir", Path: dir, Err: err}
		}
		if n == 0 {
			break
		}
		for b := buf[:n]; len(b) > 19; {
			reclen := binary.NativeEndian.Uint16(b[16:])
			name := b[19:reclen]
			name = name[:bytes.IndexByte(name, 0)]
			b = b[reclen:]
			if len(name) == 0 || string(name) == "." || string(name) == ".." {
				continue
			}
			var st unix.Stat_t
			s := string(name)
			if err := unix.Fstatat(fd, s, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if err == unix.ENOENT {
					continue // gone meanwhile
				}
				return nil, &os.PathError{Op: "stat", Path: join(dir, s), Err: err}
			}
			found = append(found, Found{Path: join(dir, s), Stat: StatOf(&st), Rdev: uint64(st.Rdev), UID: st.Uid, GID: st.Gid})
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Path < found[j].Path })
	return found, nil
}

// Parallel calls f for 0..n-1 on as many goroutines as there are processors,
// and returns the first error.
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

// LinkKey names a file whatever its path, for Editor.Link.
func LinkKey(s *Stat) string {
	return strconv.FormatUint(s.Dev, 16) + ":" + strconv.FormatUint(s.Ino, 16)
}

// Collect lists everything below a root of ours, parents before children.
func Collect(ctx context.Context, root *os.File) ([]Found, error) {
	var mu sync.Mutex
	var all []Found
	err := walkDir(ctx, root, readOwnDir, func(_ string, found []Found) (map[string]bool, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return nil, nil
	})
	sort.Slice(all, func(i, j int) bool { return all[i].Path < all[j].Path })
	return all, err
}
