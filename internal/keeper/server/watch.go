package server

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// watchTick is how often free space is looked at when a cell is near its limit, or
// may be. A cell can overshoot its limit by what the disk takes in that time.
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
	exact bool // the limit was asked for: a command's end counts whatever it wrote
	quiet bool // only looked at while it is used
	quit  chan struct{}
	once  sync.Once

	mu      sync.Mutex // guards what follows
	dirs    []counted
	drop    func() // takes away what dirs are reached by
	free    int64  // when the directories were counted last, or more
	used    int64  // as counted last; less than 0 before
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
	if w.dirs = nil; w.drop != nil {
		w.drop()
		w.drop = nil
	}
}

// quietTick is how often a quiet watch looks while its cell is used.
const quietTick = time.Second

// use begins to look at a cell with a quiet watch, until the returned function is called.
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

// watch begins or replaces the accounting of a cell over directories, which it takes; nil: there
// is none to begin.
func (s *Server) watch(id cell.ID, req *proto.Watch, files []*os.File) error {
	if req == nil {
		return nil
	}
	dirs, drop, err := s.countable(*req, files)
	if err != nil {
		return err
	}
	w := &watch{cell: id, limit: req.Limit, exact: req.Exact, quiet: req.Quiet, quit: make(chan struct{}), dirs: dirs, drop: drop, free: freeBytes(dirs), used: -1, counted: time.Now()}
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
		w.close()
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
	if h, ok := s.Driver.(Counter); ok && used <= w.limit {
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
		n, err := d.use(w.limit - used)
		if err != nil {
			return 0, err
		}
		used += n
	}
	return used, nil
}
