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
	"time"

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
// saw. The last one runs while the processes stand still, and finds little to do.

// maxChain bounds the layers of snapshots over a generation's base; above it all is copied again.
const maxChain = 32

type snapshot struct {
	p   *Provider
	g   workspace.Generation
	opt workspace.SnapshotOptions

	from, to *linux.Dir         // tops of the generation's layer and of the copy
	layer    string             // the copy
	last     *workspace.Copied  // nil: all is copied
	items    []thing            // as the last look found them, parents first; the top is the first
	placed   []thing            // what the copy has, parents first
	gone     []string           // of what the last snapshot had
	folders  map[string]*folder // what was read of folders
	joins    joined             // untouched files of Join, taken out again when all is copied
	claims   int64
	same     *workspace.State // what the generation is, if nothing has to be copied
	taken    bool
	done     bool // the copy is a state
}

// thing is one thing of a generation.
type thing struct {
	workspace.Found
	doubtful bool // its Stat need not show a change after this look
	whiteout bool
	folder   *folder
	known    bool // a folder that the last snapshot had, which shows through
	hides    bool // a folder that replaced something, without overlayfs's mark
	fresh    bool // nothing of the last snapshot shows through
	needed   bool // by the copy
	above    bool // a folder above something needed
}

func (t *thing) wanted() bool { return t.needed || t.above }

// folder is what was read of a folder.
type folder struct {
	stat workspace.Stat
	at   int64 // when it was read
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
	if s.from, err = workspace.OpenRoot(p.fs(g.Layer)); err != nil {
		return nil, err
	}
	return s, s.begin()
}

// begin makes the copy's layer.
func (s *snapshot) begin() (err error) {
	if s.layer, err = s.p.newLayer(workspace.Entry{Type: workspace.Folder, Mode: 0o700}, ""); err != nil {
		return err
	}
	s.to, err = workspace.OpenRoot(s.p.fs(s.layer))
	return err
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
	return s.pass(ctx, true)
}

// Take implements workspace.Snapshot.
func (s *snapshot) Take(ctx context.Context) error {
	same, err := s.p.untouched(s.g)
	if err != nil {
		return err
	}
	if same {
		s.same = &s.g.Base
		return nil
	}
	failpoint.Step("copy a layer")
	if err := s.pass(ctx, false); err != nil {
		return err
	}
	var unread []*thing // they have not changed, but something in them has
	for i := range s.items {
		if t := &s.items[i]; t.Type() == workspace.Folder && t.folder == nil && (i == 0 || t.wanted()) {
			unread = append(unread, t)
		}
	}
	if err := s.read(ctx, unread, time.Now().UnixNano(), false); err != nil {
		return err
	}
	s.claims = claims(s.items)
	s.taken = true
	if s.last != nil {
		if len(s.gone) == 0 && !slices.ContainsFunc(s.items, func(t thing) bool { return t.needed }) {
			s.same = &s.last.State
		}
		return nil
	}
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

// pass looks at the generation and brings the copy to that.
func (s *snapshot) pass(ctx context.Context, used bool) error {
	if err := s.look(ctx, used); err != nil {
		return err
	}
	whole, err := s.decide()
	if err != nil {
		return err
	}
	if whole { // what changed can't be said in a layer over the last snapshot
		s.last = nil
		if _, err := s.decide(); err != nil {
			return err
		}
	}
	return s.place(ctx, used)
}

// look finds what there is.
func (s *snapshot) look(ctx context.Context, used bool) error {
	at := time.Now().UnixNano()
	var st unix.Stat_t
	if err := unix.Fstat(int(s.from.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	collect := workspace.Collect
	if used {
		collect = workspace.CollectUsed
	}
	all, err := collect(ctx, s.from)
	if err != nil {
		return err
	}
	memory, inodes := map[string]bool{}, map[uint64]bool{} // ends of the paths of files that are written through it
	if s.opt.Mapped != nil {
		list, err := s.opt.Mapped(ctx)
		if err != nil {
			return err
		}
		for _, f := range list {
			inodes[f.Inode] = true
			for _, path, more := strings.Cut(f.Path, "/"); more; _, path, more = strings.Cut(path, "/") {
				memory[path] = true
			}
		}
	}
	items := make([]thing, 1, len(all)+1)
	items[0].Found = workspace.FoundOf("", &st)
	for i := range all {
		if all[i].Type() != 0 {
			items = append(items, thing{Found: all[i]})
		}
	}
	for i := range items {
		t := &items[i]
		t.doubtful = t.Stat.CTime >= at-workspace.RacySlack || len(memory) > 0 && (memory[t.Path] || inodes[t.Stat.Ino])
		t.whiteout = t.Type() == workspace.CharDev && t.Rdev == 0
	}
	s.items = items
	var todo []*thing
	j := 0
	for i := range items {
		t := &items[i]
		if t.Type() != workspace.Folder {
			continue
		}
		if was := s.was(&j, t.Path); was != nil && !was.Doubtful && was.Stat == t.Stat && s.folders[t.Path] == nil {
			continue // its marks are known, and its attributes are read if they are needed
		}
		if f := s.folders[t.Path]; f != nil && f.stat == t.Stat && t.Stat.CTime < f.at-workspace.RacySlack {
			t.folder = f
			continue
		}
		todo = append(todo, t)
	}
	return s.read(ctx, todo, at, used)
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
func (s *snapshot) read(ctx context.Context, todo []*thing, at int64, used bool) error {
	err := workspace.Parallel(ctx, len(todo), func(i int) error {
		t := todo[i]
		f := &folder{stat: t.Stat, at: at}
		err := s.within(t.Path, used, func() error {
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
			f.xattrs, err = workspace.ReadXAttrs(fd, s.p.mark)
			return err
		})
		if err != nil && (!used || !workspace.Fleeting(err)) {
			return err
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
func (s *snapshot) within(path string, used bool, f func() error) error {
	if used {
		return f()
	}
	return workspace.WithRights(s.from, path, f)
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

// place brings the copy to what was decided.
func (s *snapshot) place(ctx context.Context, used bool) error {
	kept := s.keeps()
	for i := len(s.placed) - 1; i >= 0; i-- { // children first
		if t := &s.placed[i]; !kept[t.Path] {
			err := s.to.At(t.Path, func(at string) error {
				if t.Type() == workspace.Folder {
					return unix.Rmdir(at)
				}
				return unix.Unlink(at)
			})
			if err != nil {
				return &os.PathError{Op: "remove", Path: linux.Abridged(t.Path), Err: err}
			}
		}
	}
	var files, others []*thing
	first := map[string]*thing{}
	missed := map[string]bool{}
	var links [][2]*thing
	for i := range s.items {
		t := &s.items[i]
		if i == 0 || !t.wanted() || kept[t.Path] {
			continue
		}
		switch {
		case t.Type() == workspace.Folder:
			if err := s.to.At(t.Path, func(at string) error { return os.Mkdir(at, 0o700) }); err != nil {
				return err
			}
		case t.Type() != workspace.File:
			others = append(others, t)
		case t.Stat.Nlink > 1 && first[workspace.LinkKey(&t.Stat)] != nil:
			links = append(links, [2]*thing{first[workspace.LinkKey(&t.Stat)], t})
		default:
			if t.Stat.Nlink > 1 {
				first[workspace.LinkKey(&t.Stat)] = t
			}
			files = append(files, t)
		}
	}
	size := int64(0)
	for _, t := range files {
		if size += t.Blocks * 512; s.opt.Most > 0 && size > s.opt.Most {
			return cell.Errorf(cell.TooLarge, "overlay.Snapshot", "", "more than %d MiB would be copied", s.opt.Most>>20)
		}
	}
	with := workspace.WithRights
	if used {
		with = func(_ *linux.Dir, _ string, f func() error) error { return f() }
	}
	for _, t := range others {
		err := s.to.At(t.Path, func(at string) error { return workspace.CopySpecial(s.from, &t.Found, at, with) })
		if err != nil && (!used || !workspace.Fleeting(err)) {
			return err
		}
		if err != nil {
			missed[t.Path] = true
		}
	}
	absent := make([]bool, len(files))
	err := workspace.Parallel(ctx, len(files), func(i int) error {
		err := s.copyFile(files[i], used)
		if absent[i] = err != nil && used && workspace.Fleeting(err); absent[i] {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for i, t := range files {
		if absent[i] {
			missed[t.Path] = true
		}
	}
	for _, l := range links {
		if missed[l[0].Path] {
			missed[l[1].Path] = true
			continue
		}
		if err := workspace.LinkInto(s.to, l[0].Path, s.to, l[1].Path); err != nil {
			return err
		}
	}
	s.placed = s.placed[:0]
	for i := range s.items {
		if t := &s.items[i]; i > 0 && t.wanted() && !missed[t.Path] {
			s.placed = append(s.placed, *t)
		}
	}
	return nil
}

// keeps are the paths that the copy has as they are wanted.
func (s *snapshot) keeps() map[string]bool {
	if len(s.placed) == 0 {
		return nil
	}
	kept := make(map[string]bool, len(s.placed))
	links := map[string]bool{} // whether all names of a file are kept
	i := 0
	for j := range s.items {
		t := &s.items[j]
		if j == 0 || !t.wanted() {
			continue
		}
		for i < len(s.placed) && s.placed[i].Path < t.Path {
			i++
		}
		keep := false
		if i < len(s.placed) && s.placed[i].Path == t.Path {
			was := &s.placed[i]
			if t.Type() == workspace.Folder {
				keep = was.Type() == workspace.Folder
			} else {
				keep = was.Stat == t.Stat && !was.doubtful && !t.doubtful
			}
		}
		if t.Type() == workspace.File && t.Stat.Nlink > 1 {
			key := workspace.LinkKey(&t.Stat)
			all, seen := links[key]
			links[key] = keep && (all || !seen)
		}
		if keep {
			kept[t.Path] = true
		}
	}
	for j := range s.items {
		if t := &s.items[j]; t.Type() == workspace.File && t.Stat.Nlink > 1 && kept[t.Path] && !links[workspace.LinkKey(&t.Stat)] {
			delete(kept, t.Path)
		}
	}
	return kept
}

// copyFile copies a regular file.
func (s *snapshot) copyFile(t *thing, used bool) error {
	return s.within(t.Path, used, func() error {
		fd, err := workspace.OpenBeneath(s.from, t.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		in := os.NewFile(uintptr(fd), t.Path)
		defer in.Close()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return &os.PathError{Op: "copy", Path: linux.Abridged(t.Path), Err: unix.EINVAL} // it was one when it was looked at
		}
		return s.to.At(t.Path, func(at string) error {
			err := workspace.CopyFound(in, at, &t.Found, s.p.mark)
			if err != nil {
				os.Remove(at)
			}
			return err
		})
	})
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
	if !s.taken || s.last != nil && s.same != nil && state.Same(s.last.State) {
		return nil
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
	if s.from, s.to = nil, nil; s.layer != "" && !s.done {
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
