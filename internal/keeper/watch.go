package keeper

import (
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// watchTick is how often free space is looked at when a cell is near its limit, or
// nobody knows. A cell can overshoot its limit by what the disk takes in that time.
const watchTick = 50 * time.Millisecond

// fillRate is what a disk is taken to take at most, in bytes a second: a cell that is
// further from its limit is looked at less often.
const fillRate = 4 << 30

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
	quiet bool // only looked at while it is used
	quit  chan struct{}
	once  sync.Once

	mu      sync.Mutex // guards what follows
	dirs    []*os.File
	free    int64 // when the directories were counted last, or more
	used    int64 // as counted last; less than 0 before
	counted time.Time
	users   int // commands and evaluations that are under way
}

func (w *watch) stop() {
	w.once.Do(func() {
		close(w.quit)
		if w.quiet {
			w.close()
		}
	})
}

func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	closeAll(w.dirs)
	w.dirs = nil
}

// quietTick is how often a quiet watch looks while its cell is used.
const quietTick = time.Second

// use begins to look at a cell whose watch is quiet, until the function is called
// that it returns.
func (s *Server) use(id cell.ID) (done func()) {
	s.mu.Lock()
	var w *watch
	if k := s.cells[id]; k != nil {
		w = k.watch
	}
	s.mu.Unlock()
	if w == nil || !w.quiet {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users++; w.users == 1 {
		time.AfterFunc(quietTick, func() { s.lookAgain(w) })
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.users--
	}
}

// lookAgain looks at a quiet watch, and again after a while if its cell is used
// still.
func (s *Server) lookAgain(w *watch) {
	w.mu.Lock()
	over := w.users == 0 || w.dirs == nil
	w.mu.Unlock()
	if over {
		return
	}
	s.look(w, false)
	time.AfterFunc(quietTick, func() { s.lookAgain(w) })
}

// watch begins or replaces the accounting of a cell over dirs, which it takes.
func (s *Server) watch(id cell.ID, req WatchRequest, dirs []*os.File) error {
	if req.Limit <= 0 || len(dirs) == 0 {
		closeAll(dirs)
		return malformed("watch")
	}
	w := &watch{cell: id, limit: req.Limit, exact: req.Exact, quiet: req.Quiet, quit: make(chan struct{}), dirs: dirs, free: freeBytes(dirs), used: -1, counted: time.Now()}
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
	if w.quiet {
		return nil
	}
	go func() {
		for {
			select {
			case <-w.quit:
				w.close()
				return
			case <-time.After(w.pause()):
				s.look(w, false)
			}
		}
	}()
	return nil
}

// pause is how long a cell need not be looked at: it can't come to its limit in that
// time. What is less than makes look count is taken for written.
func (w *watch) pause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used < 0 {
		return watchTick
	}
	room := w.limit - w.used - w.unseen()
	return min(max(time.Duration(room/(fillRate/1000))*time.Millisecond, watchTick), quietTick)
}

// unseen is how much may be gone without being counted at once.
func (w *watch) unseen() int64 { return max(w.limit/16, 1<<20) }

// watchOf is the accounting of a cell, nil if there is none.
func (s *Server) watchOf(id cell.ID) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.cells[id]; k != nil {
		return k.watch
	}
	return nil
}

// lookAtEnd accounts for what a command wrote that has just ended.
func (s *Server) lookAtEnd(id cell.ID) {
	w := s.watchOf(id)
	if w == nil {
		return
	}
	if d, ok := s.Driver.(Syncer); ok && w.exact {
		if err := d.Sync(id); err != nil {
			s.Log.Warn("cannot see all that a command wrote", "cell", id, "error", err)
		}
	}
	s.look(w, w.exact)
}

// lookAfter accounts for what an evaluation wrote: at once if it was much, and
// what may have come together in a while soon. Hundreds that answer at one time
// are looked at one after the other.
func (s *Server) lookAfter(id cell.ID) {
	w := s.watchOf(id)
	if w == nil {
		return
	}
	w.mu.Lock()
	much, some := w.lost(freeBytes(w.dirs), w.exact)
	w.mu.Unlock()
	if much {
		s.look(w, w.exact)
		return
	}
	if !some {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.due, w) {
		return
	}
	if s.due = append(s.due, w); len(s.due) == 1 {
		go s.lookAround()
	}
}

// lookAroundShare is how much of its time lookAround rests, for each part that it
// looks.
const lookAroundShare = 20

// lookAround looks at the cells that are due, until there are none.
func (s *Server) lookAround() {
	for {
		s.mu.Lock()
		w := s.due[0]
		s.mu.Unlock()
		began := time.Now()
		s.look(w, false)
		time.Sleep(lookAroundShare * time.Since(began))
		s.mu.Lock()
		s.due = s.due[1:]
		over := len(s.due) == 0
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// lost says whether so much free space is gone since the files were counted that
// they must be counted now, or, with all, anything; and whether something is, or
// they never were, and it is long ago. The caller holds w.mu.
func (w *watch) lost(now int64, all bool) (much, some bool) {
	if now == w.free && w.used >= 0 {
		return false, false
	}
	return all || w.free-now >= w.unseen(), time.Since(w.counted) >= watchWalk
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
	if much, some := w.lost(now, all); !much && !some {
		w.free = max(w.free, now)
		return
	}
	used, err := w.count()
	if err != nil { // it is counted the next time
		s.Log.Warn("cannot count what a cell has on disk", "cell", w.cell, "error", err)
		return
	}
	w.free, w.counted = now, time.Now()
	if h, ok := s.Driver.(Holder); ok && used <= w.limit {
		used += h.Held(w.cell)
	}
	if w.used = used; used <= w.limit {
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

// count adds up what a cell has on disk.
func (w *watch) count() (used int64, err error) {
	for _, d := range w.dirs {
		n, err := diskUse(d, w.limit-used)
		if err != nil {
			return 0, err
		}
		used += n
	}
	return used, nil
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
