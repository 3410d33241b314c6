package overlay

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// To look at 50,000 files takes a tenth of a second, in which nothing in the cell would go on. So Take
// looks at what is likely to change, which is what changed last: at folders, and at some files. Of a
// small generation it looks at all. What of that is not in the copy is read into memory, since a disk
// that is busy makes files slowly, and held until After puts it into the copy.
//
// After looks at the rest when the processes go on. The kernel sets change times: what was changed
// before the standstill, by its time, is as it was then, and is copied now if it changed since the
// last pass ahead. What Take did not look at and what changed after the standstill is lost, and all
// is taken again.
//
// This is wrong if a change can get the time of an earlier moment. So times are compared with those
// that a file of the same file system gets, and not at all when the clock was set meanwhile.

type glanceBounds struct {
	all            int // things of a generation up to which Take looks at each
	folders, files int // that Take looks at, at most, when nothing changed
}

var usualGlance = glanceBounds{all: 2000, folders: 2000, files: 500}

// What is held in memory at most, of all files together. A file counts for heldLeast more than it has,
// which is also the most that its attributes may have. The rest is copied to files.
const (
	mostHeld  = 32 << 20
	heldLeast = 4 << 10
)

// mayHaveHoles is the size from which a file with fewer blocks is not held, since its holes would be filled.
const mayHaveHoles = 64 << 10

// held is what was read of a file or symlink while the processes stood still.
type held struct {
	data   []byte
	xattrs []workspace.XAttr
	target string
	path   string // on the host: a copy, in place of data and attributes
}

// clockStep is what two clocks are apart if one was set.
const clockStep = 2 * time.Millisecond

// view is what a pass found.
type view struct {
	at     int64
	things map[string]*thing
	inodes map[uint64]*thing   // one name of each
	lists  map[string][]*thing // what folders have
	hot    []*thing            // what Take looks at, sorted by path
	all    bool                // which is all
}

// viewOf makes a view of all things. Of folders that were left out it does not have what is in them.
func viewOf(items []thing, left []string, at int64) *view {
	v := &view{at: at, things: make(map[string]*thing, len(items)), inodes: make(map[uint64]*thing, len(items)), lists: map[string][]*thing{}}
	for i := range items {
		t := &items[i]
		v.things[t.Path] = t
		v.inodes[t.Stat.Ino] = t
		if i > 0 {
			up := workspace.Parent(t.Path)
			v.lists[up] = append(v.lists[up], t)
		}
	}
	for _, path := range left {
		if t := v.things[path]; t != nil {
			t.missed = true
		}
	}
	return v
}

// choose finds what is likely to change.
func (v *view) choose(most glanceBounds) {
	v.all = len(v.things) <= most.all
	var folders, files []*thing
	for _, t := range v.things {
		switch {
		case t.missed, v.all && !t.whiteout:
			v.hot = append(v.hot, t)
		case t.Type() == workspace.Folder:
			folders = append(folders, t)
		case !t.whiteout: // overlayfs makes them links of one file, so that all seem to change with each
			files = append(files, t)
		}
	}
	for _, list := range []struct {
		of   []*thing
		most int
	}{{folders, most.folders}, {files, most.files}} {
		slices.SortFunc(list.of, func(a, b *thing) int { return cmp.Compare(b.Stat.CTime, a.Stat.CTime) })
		v.hot = append(v.hot, list.of[:min(len(list.of), list.most)]...)
	}
	slices.SortFunc(v.hot, func(a, b *thing) int { return cmp.Compare(a.Path, b.Path) })
}

// glance is what Take found of a part.
type glance struct {
	began  time.Time
	at     int64 // by the clock of file times
	mem    memory
	lost   bool                // it can't be built on
	cut    int64               // a later change time is of a change after the standstill
	things map[string]*thing   // nil: there was none
	lists  map[string][]*thing // what folders have that changed
	held   map[string]*held    // by the path
	linked map[string]*thing   // which are held, by LinkKey, if they have several names
}

// heldOf is what is held of a thing; nil if nothing is.
func (g *glance) heldOf(t *thing) *held {
	if g == nil {
		return nil
	}
	if h := g.held[t.Path]; h != nil || t.Stat.Nlink < 2 {
		return h
	}
	if same := g.linked[workspace.LinkKey(&t.Stat)]; same != nil {
		return g.held[same.Path]
	}
	return nil
}

func (s *snapshot) stagePath() string { return filepath.Join(s.p.root, s.layer, "staged") }

// ready makes what Take needs of the disk.
func (s *snapshot) ready() (err error) {
	if s.ticks.f == nil {
		s.ticks, err = s.newTicker()
	}
	return err
}

// ticker is a file beside the generation. Its change times are those of the generation's files.
type ticker struct{ f *os.File }

func (s *snapshot) newTicker() (t ticker, err error) {
	if t.f, err = os.CreateTemp(filepath.Join(s.p.root, s.g.Layer), "ticker"); err != nil {
		return t, err
	}
	if err := os.Remove(t.f.Name()); err != nil {
		t.f.Close()
		return t, err
	}
	return t, nil
}

// tick is the change time of a change now.
func (t ticker) tick() (int64, uint64, error) {
	var st unix.Stat_t
	if err := t.f.Chmod(0o600); err != nil {
		return 0, 0, err
	}
	if err := unix.Fstat(int(t.f.Fd()), &st); err != nil {
		return 0, 0, os.NewSyscallError("fstat", err)
	}
	return unix.TimespecToNsec(st.Ctim), uint64(st.Dev), nil
}

// takeGlance is Take after a pass ahead.
func (s *snapshot) takeGlance(ctx context.Context) error {
	g := &glance{began: time.Now(), things: map[string]*thing{}, lists: map[string][]*thing{}, held: map[string]*held{}, linked: map[string]*thing{}}
	s.glance = g
	var err error
	if g.at, err = coarse(); err != nil {
		return err
	}
	first, dev, err := s.ticks.tick()
	if err != nil {
		return err
	}
	if g.mem, err = s.inMemory(ctx); err != nil {
		return err
	}
	hot := s.seen.hot
	if len(g.mem.paths) > 0 {
		hot = slices.Clone(hot)
		for path := range g.mem.paths {
			if t := s.seen.things[path]; t != nil {
				hot = append(hot, t)
			}
		}
		for ino := range g.mem.inodes {
			if t := s.seen.inodes[ino]; t != nil {
				hot = append(hot, t)
			}
		}
	}
	if err := s.glanceAt(ctx, hot); err != nil {
		return err
	}
	if g.lost = g.lost || dev != s.seen.things[""].Stat.Dev; g.lost { // else these are times of another file system
		return nil
	}
	if err := s.hold(ctx); err != nil {
		return err
	}
	last, _, err := s.ticks.tick()
	if err != nil {
		return err
	}
	if g.cut = first; last == first { // changes from now on can have this time, too
		g.cut--
	}
	return nil
}

// glanceAt looks at what is hot, and at what is new or changed below.
func (s *snapshot) glanceAt(ctx context.Context, hot []*thing) error {
	g := s.glance
	var todo []*thing // folders to list
	saw := func(t *thing) {
		t.judge(g.at, g.mem)
		g.things[t.Path] = t
		if t.Type() == workspace.Folder && !s.seen.unchanged(t) {
			todo = append(todo, t)
		}
	}
	in := lastFolder{dir: s.from}
	defer in.close()
	for _, was := range hot {
		if _, seen := g.things[was.Path]; seen {
			continue
		}
		now, err := in.stat(was.Path)
		switch {
		case err == nil && now.Type() != 0:
			saw(&thing{Found: now})
		case err == nil || workspace.Fleeting(err):
			g.things[was.Path] = nil
		default:
			return err
		}
	}
	buf := make([]byte, 64<<10)
	var listed []*thing
	for len(todo) > 0 {
		t := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if g.lost = len(t.Path) > linux.LongestPath; g.lost {
			return nil
		}
		found, err := workspace.ReadOwnDir(s.from, t.Path, buf)
		if err != nil {
			return err
		}
		list := []*thing{}
		for i := range found {
			c := g.things[found[i].Path]
			if c == nil && found[i].Type() != 0 {
				c = &thing{Found: found[i]}
				saw(c)
			}
			if c != nil {
				list = append(list, c)
			}
		}
		g.lists[t.Path] = list
		listed = append(listed, t)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return s.read(ctx, listed, g.at, still)
}

// unchanged reports whether a folder has what it had in the view.
func (v *view) unchanged(t *thing) bool {
	was := v.things[t.Path]
	return was != nil && was.Stat == t.Stat && !v.doubts(was)
}

// doubts reports whether a thing may have changed without another Stat.
func (v *view) doubts(t *thing) bool {
	return t.doubtful || t.missed || t.Stat.CTime >= v.at-workspace.RacySlack
}

// hold reads what was looked at and is not in the copy.
func (s *snapshot) hold(ctx context.Context) error {
	g := s.glance
	var list []*thing
	size, room := int64(0), int64(mostHeld)
	// Folders above something that changed, since the last snapshot or the last pass: they may change
	// before After reads them.
	unread, climbed := map[string]*thing{}, map[string]bool{}
	for i := range s.items {
		if t := &s.items[i]; t.Type() == workspace.Folder && (i == 0 || t.wanted()) {
			if up := g.things[t.Path]; up != nil && up.Type() == workspace.Folder && !s.folders[t.Path].known(up) {
				unread[t.Path] = up
			}
		}
	}
	for _, t := range g.things {
		if t == nil || t.whiteout {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		was := s.seen.things[t.Path]
		if was != nil && was.Stat == t.Stat && !t.doubtful && !s.seen.doubts(was) {
			continue
		}
		for path := t.Path; path != ""; {
			path = workspace.Parent(path)
			if climbed[path] {
				break
			}
			climbed[path] = true
			up := g.things[path]
			if up != nil && !s.folders[path].known(up) {
				unread[path] = up
			}
		}
		if t.Type() != workspace.File && t.Type() != workspace.Symlink {
			continue // of the others there is nothing that is not in a Stat
		}
		if t.Stat.Nlink > 1 && t.Type() == workspace.File {
			key := workspace.LinkKey(&t.Stat)
			if g.linked[key] != nil {
				continue
			}
			g.linked[key] = t
		}
		h := &held{}
		g.held[t.Path] = h
		if t.Type() == workspace.File {
			if size += t.Blocks * 512; s.opt.Most > 0 && size > s.opt.Most {
				return tooLarge(s.opt.Most)
			}
		}
		if needs := t.Stat.Size + heldLeast; needs <= room && (t.Stat.Size < mayHaveHoles || t.Blocks*512 >= t.Stat.Size) {
			room -= needs
		} else {
			h.path = s.stagedAt(len(list))
		}
		list = append(list, t)
	}
	err := workspace.Parallel(ctx, len(list), func(i int) error {
		t := list[i]
		h := g.held[t.Path]
		if h.path == "" {
			fits, err := s.readHeld(t, h)
			if fits || err != nil {
				return err
			}
			*h = held{path: s.stagedAt(i)}
		}
		if err := os.Mkdir(s.stagePath(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if t.Type() == workspace.Symlink {
			return workspace.CopySpecial(s.from, &t.Found, h.path, still.with)
		}
		return s.copyTo(t, h.path, still)
	})
	if err != nil {
		return err
	}
	var folders []*thing
	for _, t := range unread {
		folders = append(folders, t)
	}
	return s.read(ctx, folders, g.at, still)
}

// stagedAt is where something is copied to while the processes stand still.
func (s *snapshot) stagedAt(n int) string { return filepath.Join(s.stagePath(), strconv.Itoa(n)) }

// readHeld reads a file or symlink, while the processes stand still. It reports false where the
// attributes are too large to be held.
func (s *snapshot) readHeld(t *thing, h *held) (fits bool, err error) {
	fits = true
	err = s.within(t.Path, still, func() (err error) {
		if t.Type() == workspace.Symlink {
			h.target, err = workspace.ReadLinkAt(s.from, t.Path)
			return err
		}
		in, err := s.openFile(t)
		if err != nil {
			return err
		}
		defer in.Close()
		if h.xattrs, err = workspace.ReadXAttrs(int(in.Fd()), s.p.mark); err != nil {
			return err
		}
		attributes := 0
		for _, x := range h.xattrs {
			attributes += len(x.Name) + len(x.Value)
		}
		if fits = attributes <= heldLeast; !fits {
			return nil
		}
		h.data = make([]byte, t.Stat.Size)
		if _, err := io.ReadFull(in, h.data); err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
			return err
		}
		return nil
	})
	return fits, err
}

// After implements workspace.Snapshot.
func (s *snapshot) After(ctx context.Context) error {
	if s.glance == nil {
		return nil
	}
	err := s.complete(ctx)
	s.glance.held = nil
	if errors.Is(err, workspace.ErrMoved) {
		s.takesAll = true
		err = errors.Join(err, s.forgetGlance())
	}
	return err
}

// forgetGlance ends what was taken, if anything was: it is taken again.
func (s *snapshot) forgetGlance() error {
	took := s.glance != nil
	s.seen, s.glance, s.same, s.taken = nil, nil, nil, false
	for _, f := range s.folders {
		if f != nil {
			f.sure = false
		}
	}
	if !took {
		return nil
	}
	return workspace.RemoveTree(s.stagePath())
}

func (s *snapshot) complete(ctx context.Context) error {
	if s.glance.lost {
		return workspace.ErrMoved
	}
	at, err := coarse()
	if err != nil {
		return err
	}
	items, left, err := s.collect(ctx, after)
	if err != nil {
		return err
	}
	for i := range items {
		items[i].judge(at, s.glance.mem)
	}
	if s.items, err = s.reconstruct(viewOf(items, left, at)); err != nil {
		return err
	}
	if err := s.readFolders(ctx, at, after); err != nil {
		return err
	}
	if err := s.end(ctx, after); err != nil {
		return err
	}
	now := time.Now()
	if d := now.Round(0).Sub(s.glance.began.Round(0)) - now.Sub(s.glance.began); d < -clockStep || d > clockStep {
		return workspace.ErrMoved
	}
	return nil
}

// reconstruct finds what the generation was at the standstill from a later view of it.
func (s *snapshot) reconstruct(now *view) ([]thing, error) {
	g := s.glance
	found := make([]*thing, 0, len(now.things))
	var later []*thing // folders with lists of the later view
	todo := []*thing{s.seen.things[""]}
	for len(todo) > 0 {
		named := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		t, changed, err := s.resolve(named, now)
		if err != nil {
			return nil, err
		}
		found = append(found, t)
		if t.Type() != workspace.Folder {
			continue
		}
		list, read := g.lists[t.Path]
		switch {
		case read:
		case changed:
			list = now.lists[t.Path]
			later = append(later, t)
		default:
			list = s.seen.lists[t.Path]
		}
		todo = append(todo, list...)
	}
	for _, t := range later {
		f, err := s.stat(t.Path)
		if err != nil && !workspace.Fleeting(err) {
			return nil, err
		}
		if err != nil || f.Stat != t.Stat {
			return nil, workspace.ErrMoved
		}
	}
	slices.SortFunc(found, func(a, b *thing) int { return strings.Compare(a.Path, b.Path) })
	items := make([]thing, len(found))
	for i, t := range found {
		items[i] = thing{Found: t.Found, doubtful: t.doubtful, whiteout: t.whiteout}
	}
	return items, nil
}

// resolve finds what a name in a list was. changed says that it is known from the later view alone.
func (s *snapshot) resolve(named *thing, now *view) (t *thing, changed bool, err error) {
	g := s.glance
	if t, looked := g.things[named.Path]; looked {
		if t == nil {
			return nil, false, workspace.ErrMoved
		}
		return t, false, nil
	}
	is := now.things[named.Path]
	if is != nil && is.whiteout && named.whiteout {
		return named, false, nil
	}
	if is == nil || g.mem.has(is) || is.Stat.Ino != named.Stat.Ino || is.Stat.Dev != named.Stat.Dev {
		return nil, false, workspace.ErrMoved
	}
	if is.Stat.Nlink > 1 && is.Type() == workspace.File {
		if same := g.linked[workspace.LinkKey(&is.Stat)]; same != nil { // another name of it was looked at
			t := *same
			t.Path = named.Path
			return &t, false, nil
		}
	}
	if was := s.seen.things[named.Path]; was != nil && was.Stat == is.Stat && !s.seen.doubts(was) {
		return was, false, nil
	}
	if is.Stat.CTime > g.cut {
		return nil, false, workspace.ErrMoved
	}
	return is, true, nil
}

// stat looks at a thing of the generation.
func (s *snapshot) stat(path string) (workspace.Found, error) {
	in := lastFolder{dir: s.from}
	defer in.close()
	return in.stat(path)
}

// lastFolder looks at things below a directory. It keeps the folder of the last one open.
type lastFolder struct {
	dir    *linux.Dir
	folder string
	open   *os.File
}

func (n *lastFolder) stat(path string) (workspace.Found, error) {
	var st unix.Stat_t
	if path == "" {
		err := unix.Fstat(int(n.dir.Fd()), &st)
		return workspace.FoundOf("", &st), err
	}
	folder := workspace.Parent(path)
	if n.open == nil || n.folder != folder {
		n.close()
		fd, err := workspace.OpenBeneath(n.dir, folder, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return workspace.Found{}, err
		}
		n.folder, n.open = folder, os.NewFile(uintptr(fd), folder)
	}
	if err := unix.Fstatat(int(n.open.Fd()), filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return workspace.Found{}, &os.PathError{Op: "stat", Path: linux.Abridged(path), Err: err}
	}
	return workspace.FoundOf(path, &st), nil
}

func (n *lastFolder) close() {
	if n.open != nil {
		n.open.Close()
	}
	n.open = nil
}
