package keeper

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// watchTick is how often free space is looked at. A cell can overshoot its
// limit by what the disk takes in that time.
const watchTick = 50 * time.Millisecond

// watchWalk is how long a cell's files may go uncounted while space shrinks.
const watchWalk = 2 * time.Second

// watch is the accounting of a cell's disk use, for hosts on which no file
// system of limited size can be made: free space is polled, which costs
// nothing, and only when it shrinks by a part of the limit are the cell's
// directories counted. A cell above its limit is frozen and ended. A command
// that ends is looked at once more: what it wrote may be younger than a tick.
type watch struct {
	cell  cell.ID
	limit int64
	exact bool // somebody asked for this limit: a command's end counts whatever it wrote
	quit  chan struct{}
	once  sync.Once

	mu      sync.Mutex // guards what follows
	dirs    []*os.File
	free    int64 // when the directories were counted last, or more
	counted time.Time
}

func (w *watch) stop() { w.once.Do(func() { close(w.quit) }) }

// watch begins or replaces the accounting of a cell over dirs, which it takes.
func (s *Server) watch(id cell.ID, req WatchRequest, dirs []*os.File) error {
	if req.Limit <= 0 || len(dirs) == 0 {
		closeAll(dirs)
		return malformed("watch")
	}
	w := &watch{cell: id, limit: req.Limit, exact: req.Exact, quit: make(chan struct{}), dirs: dirs, free: freeBytes(dirs), counted: time.Now()}
	s.mu.Lock()
	var old *watch
	k, there := s.cells[id]
	if there {
		old, k.watch = k.watch, w
	}
	s.mu.Unlock()
	if old != nil {
		old.stop()
	}
	if !there {
		closeAll(dirs)
		return cell.Errorf(cell.NotFound, "keeper.watch", "", "no cell %s", id)
	}
	go func() {
		tick := time.NewTicker(watchTick)
		defer tick.Stop()
		for {
			select {
			case <-w.quit:
				w.mu.Lock()
				defer w.mu.Unlock()
				closeAll(w.dirs)
				w.dirs = nil
				return
			case <-tick.C:
				s.look(w, false)
			}
		}
	}()
	return nil
}

// lookAtEnd accounts for what a command wrote that has just ended.
func (s *Server) lookAtEnd(id cell.ID) {
	s.mu.Lock()
	k := s.cells[id]
	var w *watch
	if k != nil {
		w = k.watch
	}
	s.mu.Unlock()
	if w != nil {
		s.look(w, w.exact)
	}
}

// look counts, if enough was written since that was done last, or with all
// anything. A cell above its limit is ended.
func (s *Server) look(w *watch, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dirs == nil {
		return
	}
	now := freeBytes(w.dirs)
	step := max(w.limit/16, 1<<20)
	if now == w.free || (!all && w.free-now < step && time.Since(w.counted) < watchWalk) {
		w.free = max(w.free, now)
		return
	}
	w.free, w.counted = now, time.Now()
	var used int64
	for _, d := range w.dirs {
		used += diskUse(d, w.limit-used)
	}
	if h, ok := s.Driver.(Holder); ok && used <= w.limit {
		used += h.Held(w.cell)
	}
	if used <= w.limit {
		return
	}
	s.Driver.Freeze(w.cell)
	s.mu.Lock()
	for _, p := range s.procs {
		if p != nil && p.cell == w.cell {
			p.emit("limit.disk", map[string]any{"limit": w.limit, "used": used})
		}
	}
	s.mu.Unlock()
	s.blame(w.cell, api.CauseDiskLimit)
	s.Driver.KillAll(w.cell)
	s.Driver.Thaw(w.cell)
}

// freeBytes is the least free space of the file systems that hold dirs.
func freeBytes(dirs []*os.File) int64 {
	least := int64(-1)
	for _, d := range dirs {
		var st unix.Statfs_t
		if unix.Fstatfs(int(d.Fd()), &st) == nil {
			if n := int64(st.Bfree) * st.Bsize; least < 0 || n < least {
				least = n
			}
		}
	}
	return least
}

// diskUse adds up the blocks below dir, which may change meanwhile, and stops
// early above enough. Hard links are counted once per name.
func diskUse(dir *os.File, enough int64) int64 {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == unix.EMFILE || err == unix.ENFILE {
		return enough + 1
	}
	if err != nil {
		return 0
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
					return enough + 1 // so deep that it was made to be uncountable
				}
				if err == nil {
					f := os.NewFile(uintptr(sub), n)
					sum += diskUse(f, enough-sum)
					f.Close()
				}
			}
			if sum > enough {
				return sum
			}
		}
		if err != nil || len(names) == 0 {
			return sum
		}
	}
}
