package server

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// counted is a directory with counted use of the disk. It is opened by its path when
// it is looked at: a keeper has many forks.
type counted struct {
	path     string
	dev, ino uint64 // what is at the path is no other directory
}

// A MountKeeper is a driver that keeps detached mounts without a descriptor for each.
type MountKeeper interface {
	// KeepMounts takes mounts; their files stay the caller's. Each is at a path,
	// for this process alone, until drop is called.
	KeepMounts(mounts []*os.File) (paths []string, drop func(), err error)
}

// countable takes directories. A fork's are reached by the paths of the request,
// or, where the files are mounts, kept by the driver; those of other cells are kept open.
func (s *Server) countable(req proto.Watch, files []*os.File) (dirs []counted, drop func(), err error) {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "/."
	}
	drop = func() { proto.CloseAll(files) }
	defer func() {
		if err != nil {
			drop()
		}
	}()
	keeps, ok := s.Driver.(MountKeeper)
	switch {
	case !req.Quiet:
	case len(req.Paths) > 0:
		if len(req.Paths) != len(files) {
			return nil, drop, proto.Malformed("watch")
		}
		defer proto.CloseAll(files)
		paths, drop = req.Paths, func() {}
	case ok:
		kept, take, err := keeps.KeepMounts(files)
		if err != nil {
			return nil, drop, err
		}
		defer proto.CloseAll(files)
		paths, drop = kept, take
	}
	for i, f := range files {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return nil, drop, os.NewSyscallError("fstat", err)
		}
		dirs = append(dirs, counted{paths[i], uint64(st.Dev), st.Ino})
		if len(req.Paths) == 0 {
			continue
		}
		c, err := dirs[i].open()
		if err != nil {
			return nil, drop, err
		}
		c.Close()
	}
	return dirs, drop, nil
}

// open opens the directory, as a path.
func (d counted) open() (*os.File, error) {
	fd, err := unix.Open(d.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (uint64(st.Dev) != d.dev || st.Ino != d.ino) {
		err = cell.Errorf(cell.NotFound, "keeper.watch", "", "cannot count what is in %s: another directory is there now", d.path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// use adds up what is below it, as diskUse does.
func (d counted) use(enough int64) (int64, error) {
	f, err := d.open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return diskUse(f, enough)
}

// freeBytes is the least free space of the file systems that hold dirs, of which those
// that are gone have none. It opens nothing.
func freeBytes(dirs []counted) int64 {
	least := int64(-1)
	for i, d := range dirs {
		if i > 0 && d.dev == dirs[i-1].dev {
			continue
		}
		var st unix.Statfs_t
		if unix.Statfs(d.path, &st) == nil {
			if n := int64(st.Bfree) * st.Bsize; least < 0 || n < least {
				least = n
			}
		}
	}
	return least
}

// deepest is how many directories, one in the other, are counted at least: a count
// that ends sooner for want of descriptors says nothing about the cell.
func deepest() int {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil {
		return 0
	}
	return int(keptBack(int64(min(lim.Cur, 1<<30))) / 4) // each has two; half of what is kept back
}

// diskUse adds up the blocks below dir, which may change meanwhile, and stops
// early above enough. Hard links are counted once per name. It fails when this
// process has no descriptors left, unless the tree is so deep that it took them.
func diskUse(dir *os.File, enough int64) (int64, error) { return diskUseAt(dir, enough, 0) }

// shallow is how many directories, one in the other, are counted of several cells at a
// time. Below, one is counted after the other: how deep a cell is takes descriptors from
// no other's count.
const shallow = 16

var deeper sync.Mutex // held by the count that is below shallow

func diskUseAt(dir *os.File, enough int64, depth int) (int64, error) {
	if depth == shallow {
		deeper.Lock()
		defer deeper.Unlock()
	}
	short := func(err error) (int64, error) {
		if depth > deepest() {
			return enough + 1, nil // it was made to be uncountable
		}
		return 0, os.NewSyscallError("open", err)
	}
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == unix.EMFILE || err == unix.ENFILE {
		return short(err)
	}
	if err != nil {
		return 0, nil
	}
	d := os.NewFile(uintptr(fd), ".")
	defer d.Close()
	var sum int64
	for {
		names, err := d.Readdirnames(1024)
		for _, n := range names {
			var st unix.Stat_t
			if unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			sum += st.Blocks * 512
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				sub, err := unix.Openat(fd, n, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
				if err == unix.EMFILE || err == unix.ENFILE {
					return short(err)
				}
				if err == nil {
					f := os.NewFile(uintptr(sub), n)
					below, err := diskUseAt(f, enough-sum, depth+1)
					f.Close()
					if err != nil {
						return 0, err
					}
					sum += below
				}
			}
			if sum > enough {
				return sum, nil
			}
		}
		if err != nil || len(names) == 0 {
			return sum, nil
		}
	}
}
