package overlay

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// A snapshot is a layer over the state that the last snapshot of the same generation became: it has
// what was changed since, a whiteout for what is gone, and hides folders that were replaced. What
// changed shows in the change times of files, as Stat says; what they can't show is copied always.
//
// The copy is made in passes. Each looks at all of the generation, and brings the copy to what it
// saw. The last one is Take's, while the processes stand still: it looks at what may have changed, and
// After does the rest (snapshot_glance.go). Without a pass ahead Take does all.

// maxChain bounds the layers of snapshots over a generation's base; above it all is copied again.
const maxChain = 32

type snapshot struct {
	p   *Provider
	g   workspace.Generation
	opt workspace.SnapshotOptions

	from, to *linux.Dir        // tops of the generation's layer and of the copy
	layer    string            // the copy
	last     *workspace.Copied // nil: all is copied
	items    []thing           // as the last look found them, sorted by path; the top is the first
	takesAll bool              // since After found something that moved
	seen     *view             // what the last pass ahead found, if Take can build on it
	glance   *glance           // what Take looked at; nil: at all, and without a pass ahead
	ticks    ticker
	placed   []thing            // what the copy has, parents first
	gone     []string           // of what the last snapshot had
	folders  map[string]*folder // what was read of folders
	joins    joined             // untouched files of Join, taken out again when all is copied
	claims   int64
	same     *workspace.State // what the generation is, if nothing has to be copied
	torn     bool             // the copy was left half changed
	taken    bool
	done     bool // the copy is a state
}

// thing is one thing of a generation.
type thing struct {
	workspace.Found
	doubtful bool // its Stat need not show a change after this look
	missed   bool // it could not be copied while it was in use
	whiteout bool
	folder   *folder
	known    bool // a folder that the last snapshot had, which shows through
	hides    bool // a folder that replaced something, without overlayfs's mark
	fresh    bool // nothing of the last snapshot shows through
	needed   bool // by the copy
	above    bool // a folder above something needed
}

func (t *thing) wanted() bool { return t.needed || t.above }

// moment is when something is looked at or copied.
type moment int

const (
	ahead moment = iota // while the processes run, and again later: what goes away meanwhile does not matter
	still               // while nothing runs
	after               // when the processes go on: what is no more as it was then is ErrMoved
)

// folder is what was read of a folder.
type folder struct {
	stat workspace.Stat
	at   int64 // when it was read
	sure bool  // nothing ran then
	marks
	xattrs []workspace.XAttr
}

// Snapshot implements workspace.Provider.
func (p *Provider) Snapshot(_ context.Context, g workspace.Generation, opt workspace.SnapshotOptions) (_ workspace.Snapshot, err error) {
	s := &snapshot{p: p, g: g, opt: opt, folders: map[string]*folder{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Drop())
		}
	}()
	if opt.Stands != nil {
		s.last = p.lastCopy(g, opt.Stands)
	}
	s.from, err = workspace.OpenRoot(p.fs(g.Layer))
	return s, err
}

// Unmoved implements workspace.Snapshot. A change after the look is none of it: what the look found as it was had been so until then.
func (s *snapshot) Unmoved(ctx context.Context) (state workspace.State, ok bool, err error) {
	if s.last == nil {
		same, err := s.p.untouched(s.g)
		return s.g.Base, same && err == nil, err
	}
	left, err := s.look(ctx, ahead)
	if err != nil || len(left) > 0 {
		return state, false, err
	}
	whole, err := s.decide()
	if err != nil || whole || len(s.gone) > 0 || slices.ContainsFunc(s.items, func(t thing) bool { return t.needed }) {
		return state, false, err
	}
	return s.last.State, true, nil
}

// begin makes the copy's layer, if there is none yet.
func (s *snapshot) begin() (err error) {
	if s.to != nil {
		return nil
	}
	if s.layer, err = s.p.newLayer(workspace.Entry{Type: workspace.Folder, Mode: 0o700}, ""); err != nil {
		return err
	}
	s.to, err = workspace.OpenRoot(s.p.fs(s.layer))
	return err
}

// beginAgain takes another layer for the copy, since the first is neither what was nor what is.
func (s *snapshot) beginAgain() error {
	if err := errors.Join(s.to.Close(), s.p.Drop(s.layer)); err != nil {
		return err
	}
	s.to, s.layer, s.placed, s.torn = nil, "", nil, false
	return s.begin()
}

// coarse is the clock of the file times, in nanoseconds since 1970.
func coarse() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now)
	return now.Nano(), os.NewSyscallError("clock_gettime", err)
}

func (p *Provider) copiedPath(layer string) string { return filepath.Join(p.root, layer, "copied") }

// lastCopy is what Keep recorded of g, if that can be built upon.
func (p *Provider) lastCopy(g workspace.Generation, stands func(workspace.State) bool) *workspace.Copied {
	b, err := os.ReadFile(p.copiedPath(g.Layer))
	if err != nil {
		return nil
	}
	last, err := workspace.DecodeCopied(b)
	if err != nil || len(last.State.Layers)-len(g.Base.Layers) >= maxChain || !stands(last.State) {
		return nil // it is only a way to copy less
	}
	return last
}

// Ahead implements workspace.Snapshot.
func (s *snapshot) Ahead(ctx context.Context) error {
	failpoint.Step("copy a layer in use")
	if err := s.forgetGlance(); err != nil {
		return err
	}
	if s.torn {
		if err := s.beginAgain(); err != nil {
			return err
		}
	}
	if err := s.begin(); err != nil {
		return err
	}
	at, err := coarse()
	if err != nil {
		return err
	}
	left, err := s.look(ctx, ahead)
	if err == nil {
		err = s.copy(ctx, ahead)
	}
	if err == nil && !s.takesAll && !slices.Contains(left, "") {
		s.seen = viewOf(s.items, left, at)
		s.seen.choose(s.p.glance)
		err = s.ready()
	}
	return err
}

// Take implements workspace.Snapshot.
func (s *snapshot) Take(ctx context.Context) error {
	s.from.Forget() // what was open can have other names now
	if s.seen == nil || s.seen.all {
		same, err := s.p.untouched(s.g)
		if err != nil {
			return err
		}
		if same {
			s.same = &s.g.Base
			return nil
		}
	}
	failpoint.Step("copy a layer")
	if s.last == nil {
		if err := s.findJoins(); err != nil {
			return err
		}
	}
	if s.torn {
		if err := s.beginAgain(); err != nil {
			return err
		}
	}
	if err := s.begin(); err != nil {
		return err
	}
	if s.seen != nil {
		return s.takeGlance(ctx)
	}
	if _, err := s.look(ctx, still); err != nil {
		return err
	}
	return s.end(ctx, still)
}

// end brings the copy to the last look.
func (s *snapshot) end(ctx context.Context, m moment) error {
	stood := s.last != nil
	if err := s.copy(ctx, m); err != nil {
		return err
	}
	if stood && s.last == nil { // all is in the copy now
		if err := s.findJoins(); err != nil {
			return err
		}
	}
	var unread []*thing // they have not changed, but something in them has
	for i := range s.items {
		if t := &s.items[i]; t.Type() == workspace.Folder && t.folder == nil && (i == 0 || t.wanted()) {
			unread = append(unread, t)
		}
	}
	at, err := coarse()
	if err != nil {
		return err
	}
	if err := s.read(ctx, unread, at, m); err != nil {
		return err
	}
	s.claims = claims(s.items)
	s.taken = true
	if s.last != nil && len(s.gone) == 0 && !slices.ContainsFunc(s.items, func(t thing) bool { return t.needed }) {
		s.same = &s.last.State
	}
	return nil
}

func (s *snapshot) findJoins() error {
	rec, err := s.p.readJoined(s.g.Layer)
	if err == nil && rec != nil {
		s.joins, err = s.p.untouchedJoins(s.g.Layer, rec)
	}
	return err
}

// claims adds up sizes as workspace.Claims does.
func claims(items []thing) (sum int64) {
	seen := map[string]bool{}
	for i := range items {
		t := &items[i]
		if t.Type() != workspace.File || t.Stat.Nlink > 1 && seen[workspace.LinkKey(&t.Stat)] {
			continue
		}
		if t.Stat.Nlink > 1 {
			seen[workspace.LinkKey(&t.Stat)] = true
		}
		if sum += t.Stat.Size; sum < 0 {
			return math.MaxInt64
		}
	}
	return sum
}

// Claims implements workspace.Snapshot.
func (s *snapshot) Claims() int64 { return s.claims }

// copy brings the copy to the last look.
func (s *snapshot) copy(ctx context.Context, m moment) error {
	whole, err := s.decide()
	if err != nil {
		return err
	}
	if whole && m == after {
		return workspace.ErrMoved
	}
	if whole { // what changed can't be said in a layer over the last snapshot
		s.last = nil
		if _, err := s.decide(); err != nil {
			return err
		}
	}
	return s.place(ctx, m)
}

// look finds what there is, but for what the folders have that can't be listed while they are in use.
func (s *snapshot) look(ctx context.Context, m moment) (left []string, err error) {
	at, err := coarse()
	if err != nil {
		return nil, err
	}
	items, left, err := s.collect(ctx, m)
	if err != nil {
		return left, err
	}
	mem, err := s.inMemory(ctx)
	if err != nil {
		return left, err
	}
	for i := range items {
		items[i].judge(at, mem)
	}
	s.items = items
	return left, s.readFolders(ctx, at, m)
}

// collect lists the generation, the top first.
func (s *snapshot) collect(ctx context.Context, m moment) (items []thing, left []string, err error) {
	s.from.Forget()
	var st unix.Stat_t
	if err := unix.Fstat(int(s.from.Fd()), &st); err != nil {
		return nil, nil, os.NewSyscallError("fstat", err)
	}
	var all []workspace.Found
	if m == still {
		all, err = workspace.Collect(ctx, s.from)
	} else {
		all, left, err = workspace.CollectUsed(ctx, s.from)
	}
	if err != nil {
		return nil, left, err
	}
	items = make([]thing, 1, len(all)+1)
	items[0].Found = workspace.FoundOf("", &st)
	for i := range all {
		if all[i].Type() != 0 {
			items = append(items, thing{Found: all[i]})
		}
	}
	return items, left, nil
}

// memory is what processes can write through it: ends of paths, and inodes.
type memory struct {
	paths  map[string]bool
	inodes map[uint64]bool
}

func (s *snapshot) inMemory(ctx context.Context) (mem memory, err error) {
	if s.opt.Mapped == nil {
		return mem, nil
	}
	list, err := s.opt.Mapped(ctx)
	if err != nil || len(list) == 0 {
		return mem, err
	}
	mem = memory{map[string]bool{}, map[uint64]bool{}}
	for _, f := range list {
		mem.inodes[f.Inode] = true
		for _, path, more := strings.Cut(f.Path, "/"); more; _, path, more = strings.Cut(path, "/") {
			mem.paths[path] = true
		}
	}
	return mem, nil
}

func (mem *memory) has(t *thing) bool {
	return len(mem.paths) > 0 && (mem.paths[t.Path] || mem.inodes[t.Stat.Ino])
}

// judge says what a look of that time is worth.
func (t *thing) judge(at int64, mem memory) {
	t.doubtful = t.Stat.CTime >= at-workspace.RacySlack || mem.has(t)
	t.whiteout = t.Type() == workspace.CharDev && t.Rdev == 0
}

// known reports whether what was read of a folder holds for a look at it.
func (f *folder) known(t *thing) bool {
	return f != nil && f.stat == t.Stat && (f.sure || t.Stat.CTime < f.at-workspace.RacySlack)
}

// readFolders reads of the folders what is not known.
func (s *snapshot) readFolders(ctx context.Context, at int64, m moment) error {
	var todo []*thing
	j := 0
	for i := range s.items {
		t := &s.items[i]
		if t.Type() != workspace.Folder {
			continue
		}
		if was := s.was(&j, t.Path); was != nil && !was.Doubtful && was.Stat == t.Stat && s.folders[t.Path] == nil {
			continue // its marks are known, and its attributes are read if they are needed
		}
		if f := s.folders[t.Path]; f.known(t) {
			t.folder = f
			continue
		}
		todo = append(todo, t)
	}
	return s.read(ctx, todo, at, m)
}

// was finds the item of a path in the last snapshot. next is where to look; paths are asked for in order.
func (s *snapshot) was(next *int, path string) *workspace.CopiedItem {
	if s.last == nil {
		return nil
	}
	for ; *next < len(s.last.Items); *next++ {
		switch was := &s.last.Items[*next]; cmp.Compare(was.Path, path) {
		case 0:
			return was
		case 1:
			return nil
		}
	}
	return nil
}

// read reads marks and attributes of folders.
func (s *snapshot) read(ctx context.Context, todo []*thing, at int64, m moment) error {
	err := workspace.Parallel(ctx, len(todo), func(i int) error {
		t := todo[i]
		f := &folder{stat: t.Stat, at: at, sure: m == still}
		err := s.within(t.Path, m, func() error {
			fd, err := workspace.OpenBeneath(s.from, t.Path, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			opaque, err := s.p.readMark(fd, "opaque")
			if err != nil {
				return err
			}
			f.opaque = opaque == "y"
			if f.redirect, err = s.p.readMark(fd, "redirect"); err != nil {
				return err
			}
			if f.xattrs, err = workspace.ReadXAttrs(fd, s.p.mark); err != nil {
				return err
			}
			return m.unmoved(fd, t)
		})
		if err != nil && (m != ahead || !workspace.Fleeting(err)) {
			return m.moved(err)
		}
		if err != nil {
			f.at = 0 // it is read again
		}
		t.folder = f
		return nil
	})
	for _, t := range todo {
		s.folders[t.Path] = t.folder
	}
	return err
}

// within runs f, which reads path below the generation, with the rights that it takes if the
// generation is not in use.
func (s *snapshot) within(path string, m moment, f func() error) error {
	return m.with(s.from, path, f)
}

func (m moment) with(root *linux.Dir, path string, f func() error) error {
	if m != still {
		return f()
	}
	return workspace.WithRights(root, path, f)
}

// unmoved is an error if what is open is not what was looked at, or is no more as it was.
func (m moment) unmoved(fd int, t *thing) error {
	if m == still {
		return nil
	}
	if m == after {
		settle(fd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if workspace.StatOf(&st) != t.Stat {
		return unix.ESTALE
	}
	return nil
}

// moved is the error of a look at what may have gone away since.
func (m moment) moved(err error) error {
	if m == after && workspace.Fleeting(err) {
		return workspace.ErrMoved
	}
	return err
}

// decide finds out what the copy needs. It reports whether only a copy of all can say what changed.
func (s *snapshot) decide() (whole bool, err error) {
	s.gone = nil
	if s.last == nil {
		for i := range s.items {
			s.items[i].needed = i > 0
		}
		return false, nil
	}
	base := s.p.contents(s.g.Base).open()
	defer base.close()
	folders := map[string]*thing{}
	links := map[string][]*thing{}
	next := 0
	left := func(until string, end bool) { // what of the last snapshot comes before a path, and is gone
		for ; next < len(s.last.Items) && (end || s.last.Items[next].Path < until); next++ {
			was := &s.last.Items[next]
			up := folders[workspace.Parent(was.Path)]
			if was.Path == "" || up == nil || up.fresh {
				continue
			}
			if was.Whiteout {
				whole = true
			}
			s.gone = append(s.gone, was.Path)
			raise(folders, was.Path)
		}
	}
	var up *thing
	for i := range s.items {
		t := &s.items[i]
		t.known, t.hides, t.fresh, t.needed, t.above = false, false, false, false, false
		left(t.Path, false)
		var was *workspace.CopiedItem
		if next < len(s.last.Items) && s.last.Items[next].Path == t.Path {
			was = &s.last.Items[next]
			next++
		}
		changed := was == nil || was.Doubtful || was.Stat != t.Stat
		if i > 0 {
			if parent := workspace.Parent(t.Path); up == nil || up.Path != parent {
				up = folders[parent]
			}
		}
		isFolder := t.Type() == workspace.Folder
		var is marks // of a folder
		switch {
		case t.folder != nil:
			is = t.folder.marks
		case isFolder && was != nil: // it is as it was
			is = marks{was.Opaque, was.Redirect}
		}
		switch same := isFolder && was != nil && was.Stat.Mode&unix.S_IFMT == unix.S_IFDIR && was.Stat.Ino == t.Stat.Ino && was.Stat.Dev == t.Stat.Dev &&
			was.Opaque == is.opaque && was.Redirect == is.redirect; {
		case i == 0:
			t.known, t.needed = true, changed
		case is.redirect != "" && (up.fresh || !same): // it is from the base, and not from the last snapshot
			return true, nil
		case up.fresh:
			t.needed, t.fresh = true, isFolder
		case t.whiteout:
			t.needed = was == nil || !was.Whiteout
		case !isFolder:
			t.needed = changed || t.doubtful
		case same:
			t.known, t.needed = true, changed
		case was == nil:
			t.needed = true
		default:
			t.needed, t.fresh, t.hides = true, true, true
			if !is.opaque {
				_, _, err := base.find(t.Path)
				if err == nil {
					return true, nil
				}
				if cell.KindOf(err) != cell.NotFound {
					return false, err
				}
			}
		}
		if t.Type() == workspace.Folder {
			folders[t.Path] = t
		}
		if t.Type() == workspace.File && t.Stat.Nlink > 1 {
			key := workspace.LinkKey(&t.Stat)
			links[key] = append(links[key], t)
		}
	}
	left("", true)
	for _, names := range links {
		if slices.ContainsFunc(names, func(t *thing) bool { return t.needed }) {
			for _, t := range names {
				t.needed = true
			}
		}
	}
	for i := range s.items {
		if t := &s.items[i]; t.needed {
			raise(folders, t.Path)
		}
	}
	return whole, nil
}

// raise makes the copy have the folders above a path.
func raise(folders map[string]*thing, path string) {
	for path != "" {
		path = workspace.Parent(path)
		up := folders[path]
		if up == nil || up.above {
			return
		}
		up.above = true
	}
}

// Done implements workspace.Snapshot.
func (s *snapshot) Done(ctx context.Context) (workspace.State, error) {
	if s.same != nil {
		return *s.same, nil
	}
	for _, path := range s.gone {
		if err := s.to.At(path, func(at string) error { return unix.Mknod(at, unix.S_IFCHR, 0) }); err != nil {
			return workspace.State{}, &os.PathError{Op: "whiteout", Path: linux.Abridged(path), Err: err}
		}
	}
	for i := len(s.items) - 1; i >= 0; i-- { // children first: creating them changed the times
		t := &s.items[i]
		if t.Type() != workspace.Folder || i > 0 && !t.wanted() {
			continue
		}
		if err := s.to.At(t.Path, func(at string) error { return s.dress(t, at) }); err != nil {
			return workspace.State{}, err
		}
	}
	if err := s.p.remove(s.layer, &s.joins); err != nil {
		return workspace.State{}, err
	}
	if err := s.p.dropWork(s.layer); err != nil {
		return workspace.State{}, err
	}
	if err := workspace.RemoveTree(s.stagePath()); err != nil {
		return workspace.State{}, err
	}
	below := s.g.Base
	if s.last != nil {
		below = s.last.State
	}
	s.done = true
	return s.p.above(below, s.layer), nil
}

// dress gives a folder of the copy its owner, attributes, marks, mode and time.
func (s *snapshot) dress(t *thing, at string) error {
	if err := workspace.Own(at, t.UID, t.GID); err != nil {
		return err
	}
	e := workspace.EntryOf(&t.Found)
	opaque, redirect := s.p.prefix+"opaque", s.p.prefix+"redirect"
	for _, x := range t.folder.xattrs {
		if s.last == nil || !t.known && !(t.hides && x.Name == opaque) || x.Name != opaque && x.Name != redirect {
			e.XAttrs = append(e.XAttrs, x)
		}
	}
	if s.last != nil && t.hides {
		e.XAttrs = append(e.XAttrs, workspace.XAttr{Name: opaque, Value: "y"})
	}
	return applyEntry(at, e)
}

// Keep implements workspace.Snapshot.
func (s *snapshot) Keep(state workspace.State) error {
	stood := s.last != nil && state.Same(s.last.State)
	if !s.taken || stood && s.same != nil {
		return nil
	}
	if s.done && !stood && !slices.Contains(state.Layers, s.layer) {
		return nil // it shows the same as the copy, but from elsewhere
	}
	rec := workspace.Copied{State: state, Items: make([]workspace.CopiedItem, len(s.items))}
	j := 0
	for i := range s.items {
		t := &s.items[i]
		item := workspace.CopiedItem{Path: t.Path, Stat: t.Stat, Doubtful: t.doubtful, Whiteout: t.whiteout}
		if t.folder != nil {
			item.Opaque, item.Redirect = t.folder.opaque, t.folder.redirect
		} else if was := s.was(&j, t.Path); was != nil {
			item.Opaque, item.Redirect = was.Opaque, was.Redirect
		}
		rec.Items[i] = item
	}
	next := s.p.copiedPath(s.g.Layer) + ".next"
	if err := os.WriteFile(next, rec.Encode(), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.p.copiedPath(s.g.Layer))
}

// Drop implements workspace.Snapshot.
func (s *snapshot) Drop() (err error) {
	for _, d := range []*linux.Dir{s.from, s.to} {
		if d != nil {
			d.Close()
		}
	}
	if s.ticks.f != nil {
		s.ticks.f.Close()
	}
	if s.from, s.to, s.ticks.f = nil, nil, nil; s.layer != "" && !s.done {
		err = s.p.Drop(s.layer)
		s.layer = ""
	}
	return err
}

// Made implements workspace.Snapshot.
func (s *snapshot) Made() string {
	if !s.done {
		return ""
	}
	return s.layer
}
