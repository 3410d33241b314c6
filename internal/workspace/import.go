package workspace

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/secret"
)

// ImportRequest configures an import.
type ImportRequest struct {
	Source string // directory, absolute
	With   secret.With
	// WithIn is With for one of several directories, by its place in the workspace.
	WithIn   func(at string) secret.With
	Mask     bool // also leave out secrets that git tracks
	Provider Provider
	Objects  Objects
	// Prev is the result of an earlier import of the same source; nil for none. Its layers must
	// still exist, and Mask and With be the same.
	Prev *Imported
	// Parser parses large inputs; with nil, a large index of git is not read.
	Parser   *parse.Parser
	Progress func(files, bytes int64)

	others int // layers of other directories
}

// Imported is a base with its origin.
type Imported struct {
	State       State
	Tree        *Tree
	Fingerprint cell.Digest // of the source: names, times and sizes
	LeftOut     []LeftOut
	Notes       []string
	Files       int
	Bytes       int64
	Copied      int // files that were read by this import
	Index       *Index
	Parts       []Part // of a workspace with several directories of the host
}

// Part is what was imported of one directory of several. State is that of the whole workspace; all else is of the folder
// alone.
type Part struct {
	Directory
	*Imported
}

// LeftOut is one path that is not, or only partly, in the base, or is in it although it is a
// secret.
type LeftOut struct {
	Path   string   `json:"path"`
	Kind   string   `json:"kind"` // see below
	Why    string   `json:"why"`
	Fields []string `json:"fields,omitempty"` // Fields: what was removed from the file
	Fix    string   `json:"fix,omitempty"`    // Outside: the flag that imports its target
	// Masked: git tracks the path, and it is listed because the policy masks tracked secrets.
	// History: the base has git's objects, and so the committed versions.
	Masked  bool `json:"masked,omitempty"`
	History bool `json:"history,omitempty"`
}

// The kinds of LeftOut.
const (
	Secret     = "secret"     // the path was left out; it is reserved
	Fields     = "fields"     // the file was imported without some fields
	Special    = "special"    // sockets and devices have no place in a workspace
	Unreadable = "unreadable" // the caller may not read it
	Tracked    = "tracked"    // a secret was imported, because git tracks it
	Outside    = "outside"    // the path was imported; its target is outside the source
)

// Reserved reports whether the path itself was left out, so that a cell that creates it makes a
// new file.
func (l LeftOut) Reserved() bool {
	switch l.Kind {
	case Secret, Special, Unreadable:
		return true
	}
	return false
}

// maxDelta bounds the layers of a base; beyond, a source that changed is imported anew: every layer adds a
// cost to each mount and look-up.
const maxDelta = 8

// importOnce is one pass of Import, and returns what it missed.
func importOnce(ctx context.Context, req ImportRequest) (*Imported, *missed, error) {
	src, top, err := openSource(req.Source)
	if err != nil {
		return nil, nil, err
	}
	defer src.Close()
	im, err := newImporter(ctx, req, src, top)
	if err != nil {
		return nil, nil, err
	}
	if req.Prev != nil {
		out, err := im.update(ctx)
		if out != nil || err != nil {
			return out, &src.missed, err
		}
		src.missed.clear()
	}
	out, err := im.full(ctx)
	return out, &src.missed, err
}

// importer is the state of one import.
type importer struct {
	ctx     context.Context
	req     ImportRequest
	src     *sourceTree
	top     Found
	repo    *gitdir.Repo // nil: the source is in no work tree
	tracked *gitdir.Set
	taken   int64       // when the pass began
	noClone atomic.Bool // the file system can't share content

	mu      sync.Mutex // guards the fields below
	leftOut []LeftOut
	notes   []string
	index   *Found // git's index, which is copied last
	files   int64
	bytes   int64
	copied  int64
}

// leave records that a path is left out, or loses fields.
func (im *importer) leave(path, kind, why string, fields ...string) {
	im.leaveOut(LeftOut{Path: path, Kind: kind, Why: why, Fields: fields})
}

func (im *importer) leaveOut(l LeftOut) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.leftOut = append(im.leftOut, l)
}

func (im *importer) progress(files, bytes int64) {
	im.mu.Lock()
	im.files += files
	im.bytes += bytes
	f, b := im.files, im.bytes
	im.mu.Unlock()
	if im.req.Progress != nil && f%64 < files {
		im.req.Progress(f, b)
	}
}

// full imports everything into a new layer, in one pass over the source: each
// directory is listed and copied by the same goroutine.
func (im *importer) full(ctx context.Context) (_ *Imported, err error) {
	w, err := im.req.Provider.Extend(ctx, State{})
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	to, err := OpenRoot(w.Dir())
	if err != nil {
		return nil, err
	}
	defer to.Close()
	var (
		mu      sync.Mutex
		entries []pathEntry
		seen    []Found
		links   = newLinkSet()
	)
	err = walkDir(ctx, im.src.root, im.src.listThere, func(dir string, found []Found) (map[string]bool, error) {
		skip := map[string]bool{}
		var mine []pathEntry
		for i := range found {
			f := &found[i]
			isDir := f.Type() == Folder
			d := im.decide(f)
			switch {
			case d.Action == secret.LeaveOut:
				im.leaveSecret(f, d, d.Why)
				links.leaves(im.src, f, d)
				skip[f.Path] = isDir
				continue
			case isDir:
				if err := to.At(f.Path, func(at string) error { return os.Mkdir(at, 0o700) }); err != nil {
					return nil, err
				}
				e := EntryOf(f)
				var err error // of this walker: others run concurrently
				if e.XAttrs, err = im.folder(f); err != nil {
					if os.IsPermission(err) {
						im.leave(f.Path, Unreadable, "not readable")
						skip[f.Path] = true
						to.At(f.Path, os.Remove)
						continue
					}
					if err = im.src.gone(f.Path, err); err != nil {
						return nil, err
					}
				}
				mine = append(mine, pathEntry{f.Path, e})
				im.progress(0, 0)
				continue
			}
			if im.isIndex(f) {
				later := *f
				im.setIndex(&later)
				continue
			}
			if links.takes(f, d) {
				continue
			}
			e, ok, err := im.copyOne(f, d, to)
			if err != nil {
				return nil, err
			}
			if ok {
				mine = append(mine, pathEntry{f.Path, e})
				im.progress(1, f.Stat.Size)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		entries = append(entries, mine...)
		seen = append(seen, found...)
		return skip, nil
	})
	if err != nil {
		return nil, full(err)
	}
	made := map[string]Entry{} // of first names
	err = im.decideLinks(ctx, links, func(f *Found, d secret.Decision) (bool, error) {
		e, ok, err := im.copyOne(f, d, to)
		if ok {
			mu.Lock()
			defer mu.Unlock()
			made[f.Path] = e
			entries = append(entries, pathEntry{f.Path, e})
			im.progress(1, f.Stat.Size)
		}
		return ok, err
	}, func(first, f *Found) error {
		if err := LinkInto(to, first.Path, to, f.Path); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		e := made[first.Path]
		_, e.Name = split(f.Path)
		entries = append(entries, pathEntry{f.Path, e})
		im.progress(1, 0)
		return nil
	})
	if err != nil {
		return nil, full(err)
	}
	if im.index != nil {
		e, ok, err := im.copyOne(im.index, secret.Decision{}, to)
		if err != nil {
			return nil, full(err)
		}
		if ok {
			entries = append(entries, pathEntry{im.index.Path, e})
			im.progress(1, im.index.Stat.Size)
		}
	}
	t, err := EmptyTree(im.req.Objects)
	if err != nil {
		return nil, err
	}
	return im.finish(ctx, w, to, t, entries, nil, seen, links)
}

// pathEntry is an entry with its place.
type pathEntry struct {
	path string
	e    Entry
}

// finish gives directories their times, builds the tree and freezes the base.
func (im *importer) finish(ctx context.Context, w Writer, to *linux.Dir, t *Tree, entries []pathEntry, removed []string, seen []Found, links *linkSet) (*Imported, error) {
	sort.Slice(entries, func(i, j int) bool { return entries[i].path < entries[j].path })
	ed := t.Edit()
	top := EntryOf(&im.top)
	var err error
	if top.XAttrs, err = ReadXAttrs(int(im.src.root.Fd()), KeptXAttr); err != nil {
		return nil, err
	}
	if err := ed.Put("", top); err != nil {
		return nil, err
	}
	for _, p := range removed {
		if err := ed.Remove(p); err != nil {
			return nil, err
		}
	}
	for _, pe := range entries {
		if err := ed.Put(pe.path, pe.e); err != nil {
			return nil, err
		}
		if key, ok := links.key(pe.path); ok {
			ed.Link(pe.path, key)
		}
	}
	tree, err := ed.Commit()
	if err != nil {
		return nil, err
	}
	for i := len(entries) - 1; i >= 0; i-- { // children first
		if pe := &entries[i]; pe.e.Type == Folder {
			err := to.At(pe.path, func(at string) error { return dressPath(at, pe.e.Mode, pe.e.MTime, pe.e.XAttrs) })
			if err != nil {
				return nil, full(err)
			}
		}
	}
	if err := dressPath(w.Dir(), top.Mode, top.MTime, top.XAttrs); err != nil {
		return nil, full(err)
	}
	state, err := w.Done()
	if err != nil {
		return nil, err
	}
	sort.Slice(im.leftOut, func(i, j int) bool { return im.leftOut[i].Path < im.leftOut[j].Path })
	out := &Imported{State: state, Tree: tree, LeftOut: im.leftOut, Notes: im.notes, Copied: int(im.copied)}
	out.Index = newIndex(im.req.Source, im.top, seen, im.tracked, im.leftOut, im.taken)
	out.Fingerprint = out.Index.Fingerprint()
	out.Files, out.Bytes = out.Index.count()
	return out, nil
}

// full explains a failure to write, such as a full disk.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return cell.Errorf(cell.Unavailable, "workspace.Import", "free some space (`pando gc` shows what pando can free), then try again",
			"cannot import: %w", err)
	}
	return err
}

// CleanSource returns the canonical form of a source directory.
func CleanSource(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", cell.Errorf(cell.NotFound, "workspace.CleanSource", "give the path of a directory with --from", "cannot find the source %s", strings.ToValidUTF8(path, "?"))
	}
	st, err := os.Stat(real)
	if err != nil || !st.IsDir() {
		return "", cell.Errorf(cell.Invalid, "workspace.CleanSource", "give the path of a directory with --from", "%s is not a directory", real)
	}
	return real, nil
}
