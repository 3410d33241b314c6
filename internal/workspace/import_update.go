package workspace

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/secret"
)

// look walks the source and returns everything in it, except below earlier left-out paths.
func look(ctx context.Context, src *sourceTree, left []LeftOut) ([]Found, error) {
	out := map[string]bool{}
	for _, l := range left {
		if l.Reserved() {
			out[l.Path] = true
		}
	}
	var mu sync.Mutex
	var all []Found
	err := walkDir(ctx, src.root, src.listThere, func(_ string, found []Found) (map[string]bool, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return out, nil
	})
	sort.Slice(all, func(i, j int) bool { return all[i].Path < all[j].Path })
	return all, err
}

// Fingerprint walks the sources of an import and returns their fingerprint, as an import that left out the same
// paths would.
func Fingerprint(ctx context.Context, prev *Imported, parser *parse.Parser) (sum cell.Digest, err error) {
	if prev.Index == nil {
		return fingerprintOf(ctx, prev, parser)
	}
	src, top, err := openSource(prev.Index.source)
	if err != nil {
		return sum, err
	}
	defer src.Close()
	all, err := look(ctx, src, prev.LeftOut)
	if err != nil {
		return sum, err
	}
	tracked, err := gitdir.Tracked(ctx, prev.Index.source, parser)
	if k := cell.KindOf(err); err != nil && k != cell.Unsupported && k != cell.TooLarge {
		return sum, err
	}
	return newIndex(prev.Index.source, top, all, tracked, prev.LeftOut, 0).Fingerprint(), nil
}

// update updates the previous base: a new layer with the changes. It returns nil when a new
// import is better.
func (im *importer) update(ctx context.Context) (*Imported, error) {
	prev := im.req.Prev
	old := prev.Index
	found, err := look(ctx, im.src, prev.LeftOut)
	if os.IsPermission(err) { // a folder lost permissions since
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	changed, removed := differences(old, found)
	if len(changed)+len(removed) > 1000+len(found)/4 {
		return nil, nil
	}
	if im.decidesOtherwise(old, found, prev.LeftOut) {
		return nil, nil
	}
	if len(changed) == 0 && len(removed) == 0 && old.top == im.top.Stat {
		out := *prev
		out.Copied, out.Notes = 0, im.notes
		out.Index = newIndex(im.req.Source, im.top, found, im.tracked, prev.LeftOut, im.taken)
		out.Fingerprint = out.Index.Fingerprint()
		return &out, nil
	}
	if len(prev.State.Layers) >= maxDelta+im.req.others {
		return nil, nil
	}
	closed := map[string]bool{}
	for _, l := range prev.LeftOut {
		closed[l.Path] = l.Kind == Unreadable
	}
	for _, f := range changed {
		if f.Type() == Folder && closed[f.Path] {
			return nil, nil // it may be readable now, and was never walked
		}
		if f.Type() == File && f.Stat.Nlink > 1 {
			return nil, nil // hard links are rare, and their groups span folders
		}
	}
	for _, l := range prev.LeftOut {
		if !isOneOf(changed, removed, l.Path) {
			im.leftOut = append(im.leftOut, l)
		}
	}
	return im.delta(ctx, found, changed, removed)
}

// differences lists new, changed and removed paths.
func differences(old *Index, found []Found) (changed []*Found, removed []string) {
	i := 0
	for j := range found {
		for i < len(old.records) && old.records[i].path < found[j].Path {
			removed = append(removed, old.records[i].path)
			i++
		}
		if i < len(old.records) && old.records[i].path == found[j].Path {
			if !old.same(&old.records[i], &found[j].Stat) {
				changed = append(changed, &found[j])
			}
			i++
			continue
		}
		changed = append(changed, &found[j])
	}
	for ; i < len(old.records); i++ {
		removed = append(removed, old.records[i].path)
	}
	return changed, removed
}

// decidesOtherwise reports whether an unchanged path may now be left out or imported, unlike
// before, because git has begun or ceased to track it.
func (im *importer) decidesOtherwise(old *Index, found []Found, left []LeftOut) bool {
	held := map[string]bool{}
	for _, l := range left {
		held[l.Path] = l.Kind == Secret || l.Kind == Fields
	}
	i := 0
	for j := range found {
		f := &found[j]
		for i < len(old.records) && old.records[i].path < f.Path {
			i++
		}
		if i == len(old.records) || old.records[i].path != f.Path {
			continue
		}
		was, now := old.records[i].tracked, im.tracked.Has(f.Path)
		if was == now {
			continue
		}
		if now && held[f.Path] {
			return true
		}
		d := im.judge(f, now)
		if !now && d.Action != secret.Keep && f.Type() != Symlink || d.Action == secret.LeaveOut {
			return true // its content decides, and was not searched before
		}
	}
	return false
}

// delta makes the new layer.
func (im *importer) delta(ctx context.Context, found []Found, changed []*Found, removed []string) (*Imported, error) {
	w, err := im.req.Provider.Extend(ctx, im.req.Prev.State)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	to, err := OpenRoot(w.Dir())
	if err != nil {
		return nil, err
	}
	defer to.Close()
	remove := func(path string) error {
		to.Forget() // what is below path
		return w.Remove(path)
	}
	var entries []pathEntry
	made := map[string]bool{"": true}
	// parents makes the directories above path, as in the source; their entries are among the
	// changed ones if they changed.
	byPath := map[string]*Found{}
	for i := range found {
		if found[i].Type() == Folder {
			byPath[found[i].Path] = &found[i]
		}
	}
	var parents func(path string) error
	parents = func(path string) error {
		dir, _ := split(path)
		if made[dir] {
			return nil
		}
		if err := parents(dir); err != nil {
			return err
		}
		made[dir] = true
		err := to.At(dir, func(at string) error {
			err := os.Mkdir(at, 0o700)
			if os.IsExist(err) { // it was copied: its owner alone may read it
				err = os.Chmod(at, 0o700)
			}
			return err
		})
		if f := byPath[dir]; f != nil && err == nil {
			e := EntryOf(f)
			if e.XAttrs, err = im.src.xattrs(dir); err != nil {
				err = im.src.gone(dir, err)
			}
			entries = append(entries, pathEntry{dir, e})
		}
		return err
	}
	prevTree := im.req.Prev.Tree
	for _, p := range topmost(removed) {
		if _, err := prevTree.Lookup(p); err != nil {
			continue // it was left out
		}
		if err := parents(p); err != nil {
			return nil, full(err)
		}
		if err := remove(p); err != nil {
			return nil, full(err)
		}
	}
	take := func(f *Found) error {
		if err := parents(f.Path); err != nil {
			return err
		}
		d := im.decide(f)
		was, lookErr := prevTree.Lookup(f.Path)
		there := lookErr == nil
		if d.Action == secret.LeaveOut {
			im.leaveSecret(f, d, d.Why)
			if there {
				removed = append(removed, f.Path)
				return remove(f.Path)
			}
			return nil
		}
		if f.Type() == Folder {
			if there && was.Type != Folder && !w.Sparse() {
				if err := remove(f.Path); err != nil {
					return err
				}
			}
			return parents(f.Path + "/x")
		}
		if there && !w.Sparse() || there && was.Type == Folder {
			to.Forget()
			if err := RemoveTree(filepath.Join(w.Dir(), f.Path)); err != nil {
				return err
			}
		}
		e, ok, err := im.copyOne(f, d, to)
		switch {
		case err != nil:
			return err
		case ok:
			entries = append(entries, pathEntry{f.Path, e})
			im.progress(1, f.Stat.Size)
		case there:
			removed = append(removed, f.Path)
			return remove(f.Path)
		}
		return nil
	}
	for _, f := range changed {
		if im.isIndex(f) {
			im.setIndex(f)
			continue
		}
		if err := take(f); err != nil {
			return nil, full(err)
		}
	}
	if im.index == nil && !slices.Equal(maskedIn(im.leftOut), maskedIn(im.req.Prev.LeftOut)) {
		im.setIndex(im.findIndex(found))
	}
	if im.index != nil {
		if err := take(im.index); err != nil {
			return nil, full(err)
		}
	}
	return im.finish(ctx, w, to, prevTree, entries, removed, found, newLinkSet())
}

// topmost removes paths that lie below another one of the sorted list.
func topmost(sorted []string) (out []string) {
	for _, p := range sorted {
		if n := len(out); n > 0 && strings.HasPrefix(p, out[n-1]+"/") {
			continue
		}
		out = append(out, p)
	}
	return out
}

func isOneOf(changed []*Found, removed []string, path string) bool {
	i := sort.Search(len(changed), func(i int) bool { return changed[i].Path >= path })
	if i < len(changed) && changed[i].Path == path {
		return true
	}
	i = sort.SearchStrings(removed, path)
	return i < len(removed) && removed[i] == path
}
