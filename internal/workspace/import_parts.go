package workspace

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/parse"
)

// Directory is a directory of the host that is a part of a workspace.
type Directory struct {
	Source string `json:"source"` // absolute and clean
	At     string `json:"at"`     // where the workspace has it; "" for all of the workspace
}

// Directories returns the parts of a workspace that has several directories of the host, and the directory that their places
// are relative to: the nearest one above all. All paths are absolute and clean. That one lies in another is an Invalid
// error.
func Directories(sources []string) (top string, parts []Directory, err error) {
	if len(sources) == 1 {
		return sources[0], []Directory{{Source: sources[0]}}, nil
	}
	top = filepath.Dir(sources[0])
	for i, s := range sources {
		for _, o := range sources[:i] {
			if s == o {
				return "", nil, cell.Errorf(cell.Invalid, "workspace.Directories", "give each directory once", "%s is there twice", s)
			}
			for _, x := range [][2]string{{s, o}, {o, s}} {
				if within(x[0], x[1]) {
					return "", nil, cell.Errorf(cell.Invalid, "workspace.Directories", "leave it out: it comes with the other one", "%s lies in %s", x[0], x[1])
				}
			}
		}
		for !within(s, top) {
			top = filepath.Dir(top)
		}
	}
	for _, s := range sources {
		parts = append(parts, Directory{Source: s, At: strings.TrimPrefix(strings.TrimPrefix(s, top), "/")})
	}
	return top, parts, nil
}

// within reports whether a path is below a directory.
func within(path, dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }

// PartOf is a mount of a workspace that shows one folder of it; "" is all of it.
func PartOf(m cell.Mount, at string) cell.Mount {
	switch {
	case at == "":
	case m.Kind == cell.Overlay:
		m.Part = at
	default:
		m.Source = filepath.Join(m.Source, at)
	}
	return m
}

// Part is the tree of one folder of t.
func (t *Tree) Part(at string) (*Tree, error) {
	if at == "" {
		return t, nil
	}
	e, err := t.Lookup(at)
	if err != nil {
		return nil, err
	}
	if e.Type != Folder {
		return nil, notThere(at)
	}
	e.Name = ""
	out := &Tree{Root: e, objs: t.objs}
	for _, g := range t.Links {
		var in []string
		for _, p := range g {
			if rest, ok := strings.CutPrefix(p, at+"/"); ok {
				in = append(in, rest)
			}
		}
		if len(in) > 1 {
			out.Links = append(out.Links, in)
		}
	}
	return out, nil
}

// Part is the side of one folder of s.
func (s Side) Part(at string) (Side, error) {
	t, err := s.Tree.Part(at)
	if at == "" || err != nil {
		return s, err
	}
	return Side{Tree: t, Contents: partContents{s.Contents, at}}, nil
}

// partContents are the contents of one folder.
type partContents struct {
	Contents
	at string
}

func (p partContents) Open(path string, e Entry) (io.ReadCloser, error) {
	return p.Contents.Open(join(p.at, path), e)
}

// errWhole says that a part has to be imported anew, and all others with it.
var errWhole = errors.New("a part of a workspace is imported anew")

// ImportAll is Import of several directories into one workspace, each at its place. Source of the request is not looked
// at. Of the result Parts says what is of which directory; its Index is nil. With one directory it is Import.
func ImportAll(ctx context.Context, req ImportRequest, dirs []Directory) (*Imported, error) {
	if len(dirs) == 1 && dirs[0].At == "" {
		req.Source = dirs[0].Source
		return Import(ctx, req)
	}
	prev := req.Prev
	if prev != nil && !slices.EqualFunc(prev.Parts, dirs, func(p Part, d Directory) bool { return p.Directory == d }) {
		prev = nil
	}
	for round := 0; ; round++ {
		out, err := importAll(ctx, req, dirs, prev)
		if prev = nil; !errors.Is(err, errWhole) {
			return out, err
		}
		if round == importRounds {
			return nil, cell.Errorf(cell.Unavailable, "workspace.Import", "try again when nothing writes to it", "the sources changed each time that they were read")
		}
	}
}

// importAll is one attempt of ImportAll.
func importAll(ctx context.Context, req ImportRequest, dirs []Directory, prev *Imported) (_ *Imported, err error) {
	out := &Imported{}
	made := ImportRequest{Provider: req.Provider, Prev: prev}
	if prev != nil {
		out.State, out.Tree = prev.State, prev.Tree
	} else if out.Tree, err = EmptyTree(req.Objects); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dropLayers(made, out.State, State{}))
		}
	}()
	ed, sum := out.Tree.Edit(), []byte("pando sources 1\n")
	for i, f := range dirs {
		r := req
		r.others = len(dirs) - 1
		r.Source, r.Prev, r.Provider = f.Source, nil, placed{Provider: req.Provider, at: f.At, onto: out.State, whole: prev != nil}
		if req.WithIn != nil {
			r.With = req.WithIn(f.At)
		}
		if req.Progress != nil {
			files, bytes := int64(out.Files), out.Bytes
			r.Progress = func(f, b int64) { req.Progress(files+f, bytes+b) }
		}
		if prev != nil {
			was := *prev.Parts[i].Imported
			was.State = out.State
			r.Prev = &was
		}
		im, err := Import(ctx, r)
		if err != nil {
			return nil, err
		}
		was := out.State
		out.State = im.State
		if err := dropLayers(made, was, im.State); err != nil {
			return nil, err
		}
		if err := graft(ed, f.At, im.Tree); err != nil {
			return nil, err
		}
		out.add(f, im)
		sum = append(appendString(sum, f.At), im.Fingerprint[:]...)
	}
	// The layers of an update are made for the state before it.
	for i := range out.Parts {
		out.Parts[i].State = out.State
	}
	out.Fingerprint = cell.Sum(sum)
	out.Tree, err = ed.Commit()
	return out, err
}

// add adds what was imported of a folder to what is said of all.
func (im *Imported) add(f Directory, part *Imported) {
	im.Parts = append(im.Parts, Part{f, part})
	for _, l := range part.LeftOut {
		l.Path = join(f.At, l.Path)
		im.LeftOut = append(im.LeftOut, l)
	}
	for _, n := range part.Notes {
		im.Notes = append(im.Notes, f.At+": "+n)
	}
	im.Files, im.Bytes, im.Copied = im.Files+part.Files, im.Bytes+part.Bytes, im.Copied+part.Copied
}

// above is the folder that holds a part: there is nothing else in it, and no cell sees it.
var above = Entry{Type: Folder, Mode: 0o755}

// graft puts a tree into another one.
func graft(ed *Editor, at string, t *Tree) error {
	for i := range at {
		if at[i] == '/' {
			if err := ed.Put(at[:i], above); err != nil {
				return err
			}
		}
	}
	if err := ed.Put(at, t.Root); err != nil {
		return err
	}
	if err := ed.Graft(at, t, ""); err != nil {
		return err
	}
	for _, g := range t.Links {
		for _, p := range g {
			ed.Link(join(at, p), at+"\x00"+g[0])
		}
	}
	return nil
}

// fingerprintOf sums up the fingerprints of several directories.
func fingerprintOf(ctx context.Context, prev *Imported, parser *parse.Parser) (cell.Digest, error) {
	sum := []byte("pando sources 1\n")
	for _, p := range prev.Parts {
		d, err := Fingerprint(ctx, p.Imported, parser)
		if err != nil {
			return d, err
		}
		sum = append(appendString(sum, p.At), d[:]...)
	}
	return cell.Sum(sum), nil
}

// placed is a provider that puts the files of new states into a folder.
type placed struct {
	Provider
	at    string
	onto  State // to which a first import is added
	whole bool  // onto has the folder: a first import can't be added to it
}

func (p placed) Extend(ctx context.Context, base State) (Writer, error) {
	if len(base.Layers) == 0 {
		if p.whole {
			return nil, errWhole
		}
		base = p.onto
	}
	w, err := p.Provider.Extend(ctx, base)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(w.Dir(), p.at), 0o700); err != nil {
		w.Abort()
		return nil, full(err)
	}
	return placedWriter{w, p.at}, nil
}

// placedWriter writes into a folder of a state.
type placedWriter struct {
	w  Writer
	at string
}

func (w placedWriter) Dir() string              { return filepath.Join(w.w.Dir(), w.at) }
func (w placedWriter) Sparse() bool             { return w.w.Sparse() }
func (w placedWriter) Remove(path string) error { return w.w.Remove(join(w.at, path)) }
func (w placedWriter) Abort()                   { w.w.Abort() }

func (w placedWriter) Done() (State, error) {
	for dir := w.at; dir != ""; {
		dir, _ = split(dir)
		at := filepath.Join(w.w.Dir(), dir)
		if err := unix.Chmod(at, above.Mode); err != nil {
			return State{}, &os.PathError{Op: "chmod", Path: at, Err: err}
		}
		if err := setTimes(at, above.MTime); err != nil {
			return State{}, err
		}
	}
	return w.w.Done()
}
