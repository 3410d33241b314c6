package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// Bounds of what a request brings into a home.
const (
	maxHomeFiles = 512
	maxHomeBytes = 4 << 20
)

// homePiece is a file of a cell's home, or a part of one, that comes from outside.
type homePiece struct {
	kind string // a kind of what agents bring
	name string // below the home: what it is recorded by
	path string // below the home: where it goes, most often the name
	data []byte
	mode int64
	into func(old, base, part []byte) []byte // nil: it is the file
}

func (p *homePiece) key() string { return p.kind + " " + p.name }

// homeRecord says what was put into a cell's home. It lies there, so that it is restored and forked
// with it. The cell may change it, by which it decides about files of its own alone.
type homeRecord struct {
	Files map[string]string `json:"files,omitempty"` // digests, by path
	Parts map[string]string `json:"parts,omitempty"` // texts, by kind and name
}

const (
	homeRecordPath = ".config/pando/home.json"
	maxRecorded    = 4 * maxHomeFiles // entries of a record
	// together is the file of an agent's folder that has the user's instructions and the
	// repository's, where the program reads one file and the adapter makes that a link.
	together = "pando-instructions.md"
)

// planHome takes from a request what comes along of the caller's home. What the adapter does not
// list is refused, and what it leaves out is named.
func (p *agentPlan) planHome(list []api.HomeFile) error {
	const opName = "engine.StartRun"
	about, total := p.adapter.About(), 0
	bad := func(format string, args ...any) error {
		return cell.Errorf(cell.Invalid, opName, "pando "+about.Name+" --with-home all --dry-run lists what comes along", "cannot bring files to the home of "+about.Title+": "+format, args...)
	}
	if len(list) > maxHomeFiles {
		return bad("there are more than %d", maxHomeFiles)
	}
	for _, f := range list {
		i := slices.IndexFunc(p.adapter.Brings(), func(b agent.Bring) bool { return b.Kind == f.Kind && b.Has(f.Path) })
		switch {
		case i < 0:
			return bad("%q of kind %q is not in its list", cell.Clip(f.Path), cell.Clip(f.Kind))
		case slices.ContainsFunc(p.home, func(o homePiece) bool { return o.kind == f.Kind && o.name == f.Path }):
			return bad("%s is there twice", cell.Clip(f.Path))
		}
		if total += len(f.Content); total > maxHomeBytes {
			return bad("they have more than %d MiB", maxHomeBytes>>20)
		}
		b := p.adapter.Brings()[i]
		part, left := b.Part(f.Path, f.Content)
		for _, l := range left {
			p.stays = append(p.stays, l.Path+" ("+l.Why+")")
		}
		if len(part) == 0 {
			continue
		}
		piece := homePiece{kind: f.Kind, name: f.Path, path: f.Path, data: part, mode: 0o600, into: b.Into}
		if f.Executable && b.Into == nil {
			piece.mode = 0o700
		}
		if p.home = append(p.home, piece); b.Argument {
			p.start.Servers = part
		}
	}
	return nil
}

// brought names what comes along of the user's home, by kind; nil for nothing.
func (a *agentPlan) brought() (kinds []string) {
	if a == nil {
		return nil
	}
	for _, k := range agent.Kinds() {
		if slices.ContainsFunc(a.home, func(p homePiece) bool { return p.kind == k }) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// listHome is what comes along, for a plan.
func (a *agentPlan) listHome() (list []api.HomeEntry) {
	if a == nil {
		return nil
	}
	for _, p := range a.home {
		list = append(list, api.HomeEntry{Kind: p.kind, Path: p.name, Bytes: len(p.data)})
	}
	return list
}

// homeWriter changes files of a cell's home, all at once at its end.
type homeWriter struct {
	x    *execution
	home string
	rec  homeRecord
	was  []byte // the record as it was read
	out  bytes.Buffer
	tar  *tar.Writer
	now  map[string][]byte // what files are by what is written
}

// openHome reads the record of a home.
func (x *execution) openHome(ctx context.Context, home string) (*homeWriter, error) {
	w := &homeWriter{x: x, home: home, now: map[string][]byte{}}
	w.tar = tar.NewWriter(&w.out)
	b, is, err := w.read(ctx, homeRecordPath)
	if err != nil {
		return nil, err
	}
	// What can't be read is the cell's work, and as none.
	if is && b != nil && bound.Values(b, "record", maxRecorded) == nil && json.Unmarshal(b, &w.rec) == nil {
		w.was = b
	} else {
		w.rec = homeRecord{}
	}
	if w.rec.Files == nil {
		w.rec.Files = map[string]string{}
	}
	if w.rec.Parts == nil {
		w.rec.Parts = map[string]string{}
	}
	return w, nil
}

// read returns a file of the home; nil where there is none. It is false for what is no regular
// file, or is too large: that is the cell's.
func (w *homeWriter) read(ctx context.Context, p string) (b []byte, is bool, err error) {
	if b, ok := w.now[p]; ok {
		return b, true, nil
	}
	r, close := w.x.archive(ctx, path.Join(w.home, p))
	defer close()
	h, err := r.Next()
	switch {
	case cell.KindOf(err) == cell.NotFound:
		return nil, true, nil
	case err != nil:
		return nil, false, err
	case h.Typeflag != tar.TypeReg || h.Size > agentFile:
		return nil, false, nil
	}
	if b, err = bound.ReadAll(r, p, agentFile); b == nil {
		b = []byte{}
	}
	return b, true, err
}

// link returns where a symbolic link of the home leads, "" for what is none.
func (w *homeWriter) link(ctx context.Context, p string) (string, error) {
	r, close := w.x.archive(ctx, path.Join(w.home, p))
	defer close()
	h, err := r.Next()
	switch {
	case cell.KindOf(err) == cell.NotFound:
		return "", nil
	case err != nil:
		return "", err
	case h.Typeflag != tar.TypeSymlink:
		return "", nil
	}
	return h.Linkname, nil
}

// put brings a piece, unless the cell has changed what was there, or has removed it.
func (w *homeWriter) put(ctx context.Context, p *homePiece) error {
	old, is, err := w.read(ctx, p.path)
	if err != nil || !is {
		return err
	}
	now := p.data
	if p.into != nil {
		base, known := w.rec.Parts[p.key()]
		w.rec.Parts[p.key()] = string(p.data)
		if old == nil && known && base != "" {
			return nil
		}
		now = p.into(old, []byte(base), p.data)
	} else {
		was, known := w.rec.Files[p.name]
		if old == nil && known || old != nil && cell.Sum(old).String() != was && !bytes.Equal(old, now) {
			return nil
		}
		w.rec.Files[p.name] = cell.Sum(now).String()
	}
	if bytes.Equal(old, now) {
		return nil
	}
	w.now[p.path] = now
	return w.write(&tar.Header{Typeflag: tar.TypeReg, Name: p.path, Mode: p.mode}, now)
}

func (w *homeWriter) write(h *tar.Header, data []byte) error {
	h.ModTime, h.Size = time.Now(), int64(len(data))
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.tar.Write(data)
	return err
}

// close writes what was put, and the record.
func (w *homeWriter) close(ctx context.Context) error {
	b, err := json.Marshal(w.rec)
	if err != nil {
		return err
	}
	if b = append(b, '\n'); len(w.rec.Files)+len(w.rec.Parts) > 0 && !bytes.Equal(b, w.was) {
		if err := w.write(&tar.Header{Typeflag: tar.TypeReg, Name: homeRecordPath, Mode: 0o600}, b); err != nil {
			return err
		}
	}
	if w.out.Len() == 0 {
		return nil
	}
	if err := w.tar.Close(); err != nil {
		return err
	}
	return w.x.inst.WriteFiles(ctx, w.home, w.x.c.Setup.User, &w.out)
}

// bring puts into a cell's home what comes along.
func (x *execution) bring(ctx context.Context, home string, start agent.Start) error {
	a := x.p.agent
	w, err := x.openHome(ctx, home)
	if err != nil {
		return err
	}
	pieces, err := w.placeMemory(ctx, start, slices.Clone(a.home))
	if err != nil {
		return err
	}
	for i := range pieces {
		if isArgument(a.adapter, &pieces[i]) {
			continue
		}
		if err := w.put(ctx, &pieces[i]); err != nil {
			return err
		}
	}
	if len(a.stays) > 0 {
		x.run.Notes = append(x.run.Notes, "of your home stays outside: "+strings.Join(a.stays, ", "))
	}
	return w.close(ctx)
}

func isArgument(a agent.Adapter, p *homePiece) bool {
	return slices.ContainsFunc(a.Brings(), func(b agent.Bring) bool { return b.Argument && b.Kind == p.kind && b.Path == p.name })
}

// placeMemory says where the texts go that an agent reads before each conversation. Where the
// adapter has made a link to the repository's there, both come into a file of their own: the
// program reads one alone.
func (w *homeWriter) placeMemory(ctx context.Context, start agent.Start, pieces []homePiece) ([]homePiece, error) {
	a := w.x.p.agent.adapter
	memory := a.About().Memory
	both := path.Join(path.Dir(memory), together)
	repository := homePiece{kind: "repository", name: memory, path: both, mode: 0o600, into: agent.BlendText}
	texts := slices.ContainsFunc(pieces, func(p homePiece) bool { return p.name == memory })
	if _, known := w.rec.Parts[repository.key()]; !texts && !known {
		return pieces, nil
	}
	leads, err := w.link(ctx, memory)
	if err != nil || leads == "" {
		return pieces, err
	}
	if leads != together && path.Dir(leads) != start.Root {
		return slices.DeleteFunc(pieces, func(p homePiece) bool { return p.name == memory }), nil // a link of the cell's
	}
	for i := range pieces {
		if pieces[i].name == memory {
			pieces[i].path = both
		}
	}
	for _, f := range a.Files(start) {
		if f.Path != memory || f.Link == "" {
			continue
		}
		if text, err := w.x.textAt(ctx, f.Link); err != nil {
			return nil, err
		} else if len(text) > 0 {
			repository.data = append(text, '\n')
		}
	}
	if leads != together {
		if err := w.write(&tar.Header{Typeflag: tar.TypeSymlink, Name: memory, Linkname: together, Mode: 0o777}, nil); err != nil {
			return nil, err
		}
	}
	return append([]homePiece{repository}, pieces...), nil
}

// textAt is the text of a file of the repository; nil for none.
func (x *execution) textAt(ctx context.Context, at string) ([]byte, error) {
	r, close := x.archive(ctx, at)
	defer close()
	h, err := r.Next()
	switch {
	case cell.KindOf(err) == cell.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case h.Typeflag != tar.TypeReg || h.Size > agentFile/16:
		return nil, nil
	}
	b, err := bound.ReadAll(r, at, agentFile/16)
	return bytes.TrimSpace(b), err
}
