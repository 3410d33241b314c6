package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/secret"
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

// pieces are what comes into the home: of the user's, and of the policy.
func (p *runPlan) pieces() []homePiece {
	if p.agent == nil {
		return slices.Clone(p.home)
	}
	return slices.Concat(p.agent.home, p.home)
}

// listHome is what comes into the home, for a plan.
func (p *runPlan) listHome() (list []api.HomeEntry) {
	for _, piece := range p.pieces() {
		list = append(list, api.HomeEntry{Kind: piece.kind, Path: piece.name, Bytes: len(piece.data)})
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

// openHome reads the record of a home. Changes says that there is something to bring.
func (x *execution) openHome(ctx context.Context, home string, changes bool) (*homeWriter, error) {
	w := &homeWriter{x: x, home: home, now: map[string][]byte{}}
	w.tar = tar.NewWriter(&w.out)
	b, is, err := w.read(ctx, homeRecordPath)
	if err != nil {
		return nil, err
	}
	if !is && changes {
		return nil, cell.Errorf(cell.Conflict, "engine.bring", "remove it in the cell", "cannot bring files to the home of cell %s: %s is no regular file", x.c.Title(), path.Join(home, homeRecordPath))
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
	h, r, close, err := w.x.entry(ctx, path.Join(w.home, p))
	defer close()
	switch {
	case err != nil:
		return nil, false, err
	case h == nil:
		return nil, true, nil
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
	h, _, close, err := w.x.entry(ctx, path.Join(w.home, p))
	defer close()
	if err != nil || h == nil || h.Typeflag != tar.TypeSymlink {
		return "", err
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
	a, pieces := x.p.agent, x.p.pieces()
	w, err := x.openHome(ctx, home, len(pieces) > 0)
	if err != nil {
		return err
	}
	if a != nil {
		if pieces, err = w.placeMemory(ctx, start, pieces); err != nil {
			return err
		}
	}
	for i := range pieces {
		if a != nil && isArgument(a.adapter, &pieces[i]) {
			continue
		}
		if err := w.put(ctx, &pieces[i]); err != nil {
			return err
		}
	}
	if a != nil && len(a.stays) > 0 {
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
		if text, err := w.x.textAt(ctx, f.Link, true); err != nil {
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

// textAt is the text of a file of the repository, which may be a link; nil for none. One that can't be
// brought is noted.
func (x *execution) textAt(ctx context.Context, at string, link bool) ([]byte, error) {
	h, r, close, err := x.entry(ctx, at)
	defer close()
	switch {
	case err != nil || h == nil:
		return nil, err
	case h.Typeflag == tar.TypeSymlink && link:
		to := h.Linkname
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(at), to)
		}
		return x.textAt(ctx, to, false)
	case h.Typeflag != tar.TypeReg || h.Size > agentFile/16:
		x.run.Notes = append(x.run.Notes, fmt.Sprintf("%s is not read beside your instructions: it is no regular file of at most %d KiB", at, agentFile/16>>10))
		return nil, nil
	}
	b, err := bound.ReadAll(r, at, agentFile/16)
	return bytes.TrimSpace(b), err
}

// maxSource bounds a file that a policy names for a home, in bytes.
const maxSource = 1 << 20

// policyHome takes from the policy what comes into the home of the cell. Nothing does for a caller
// that may not name the host's files, whatever the policy of its user has.
func (e *Engine) policyHome(p *runPlan) ([]homePiece, error) {
	h, agentName, memory := p.policy.Home, "", ""
	if p.agent != nil {
		agentName, memory = p.agent.adapter.About().Name, p.agent.adapter.About().Memory
	}
	var list []homePiece
	if p.confined || p.cell != nil && p.cell.Guest || reflect.DeepEqual(h, policy.Home{}) {
		return nil, nil
	}
	if !policy.Isolates(p.backend.Name()) {
		return nil, cell.Errorf(cell.Unsupported, "engine.StartRun", cell.Isolated, "cannot use home of the policy on backend %s: it would change your own home", p.backend.Name())
	}
	add := func(kind, name string, data []byte, mode int64, into func(old, base, part []byte) []byte) {
		if into != nil {
			data = append(bytes.TrimSpace(data), '\n')
		}
		list = append(list, homePiece{kind: kind, name: name, path: name, data: data, mode: mode, into: into})
	}
	if err := e.instructions(h, agentName, func(text []byte) { add("instructions", memory, text, 0o600, agent.BlendText) }); err != nil {
		return nil, err
	}
	if g := h.Git; g != (policy.GitIdentity{}) {
		add("git", ".gitconfig", []byte("[user]\n\tname = \""+g.Name+"\"\n\temail = \""+g.Email+"\"\n"), 0o644, agent.BlendText)
	}
	for _, f := range []struct {
		kind, source, target string
		into                 func(old, base, part []byte) []byte
	}{{"known_hosts", h.KnownHosts, ".ssh/known_hosts", agent.BlendText}, {"gh", h.GH, ".config/gh/config.yml", nil}} {
		if f.source == "" {
			continue
		}
		logins := cell.Errorf(cell.Denied, "engine.StartRun", "name the config.yml beside it; pando credential add github keeps a login, and lends it", "cannot use %s as home.gh: it has logins", f.source)
		if f.kind == "gh" && path.Base(f.source) == "hosts.yml" {
			return nil, logins
		}
		b, err := e.sourceFile(policy.HomeFile{Source: f.source, Target: f.target}, f.kind == "known_hosts")
		if err != nil {
			return nil, err
		}
		if f.kind == "gh" && bytes.Contains(b, []byte("oauth_token")) {
			return nil, logins
		}
		add(f.kind, f.target, b, 0o600, f.into)
	}
	for _, f := range h.Files {
		b, err := e.sourceFile(f, false)
		if err != nil {
			return nil, err
		}
		add("file", f.Target, b, 0o600, nil)
	}
	return list, nil
}

// instructions gives the text that a policy has for an agent: what is for all comes first.
func (e *Engine) instructions(h policy.Home, agentName string, give func(text []byte)) error {
	var texts [][]byte
	for _, reader := range []string{"common", agentName} {
		for _, i := range h.Instructions {
			if i.For != reader || agentName == "" {
				continue
			}
			text := []byte(i.Text)
			if i.Source != "" {
				b, err := e.sourceFile(policy.HomeFile{Source: i.Source, Target: "instructions"}, false)
				if err != nil {
					return err
				}
				text = b
			}
			if found := secret.Scan("", text); len(found) > 0 {
				return cell.Errorf(cell.Denied, "engine.StartRun", "take it out: a credential is lent, and not told", "cannot use home.instructions.%s: %s", i.For, found[0].Why())
			}
			texts = append(texts, bytes.TrimSpace(text))
		}
	}
	if len(texts) > 0 {
		give(bytes.Join(texts, []byte("\n\n")))
	}
	return nil
}

// sourceFile reads a file of the host that a policy names for a home: a regular file that belongs
// to the user, or to root, and that others can't write to. Public says that its folder holds
// secrets, and the file is known to be none.
func (e *Engine) sourceFile(f policy.HomeFile, public bool) ([]byte, error) {
	at := f.Source
	if below, ok := strings.CutPrefix(at, "~/"); ok {
		at = filepath.Join(e.cfg.User.Home, below)
	}
	cannot := func(kind cell.Kind, hint, format string, args ...any) error {
		return cell.Errorf(kind, "engine.StartRun", hint, "cannot bring %s to the home of a cell: "+format, append([]any{f.Source}, args...)...)
	}
	where, err := filepath.EvalSymlinks(at)
	if err != nil {
		return nil, cannot(cell.NotFound, "change section home of the policy", "%w", err)
	}
	if slices.ContainsFunc(e.ownDirs(), func(dir string) bool { return strings.HasPrefix(where, strings.TrimSuffix(dir, "/")+"/") }) {
		return nil, cannot(cell.Denied, "change section home of the policy", "it is pando's own")
	}
	file, err := os.OpenFile(where, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, cannot(cell.NotFound, "change section home of the policy", "%w", err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	switch perm := st.Mode().Perm(); {
	case !st.Mode().IsRegular():
		return nil, cannot(cell.Invalid, "name a file", "it is no regular file")
	case owner != 0 && owner != uint32(os.Geteuid()):
		return nil, cannot(cell.Denied, "copy it first", "it belongs to user %d", owner)
	case perm&0o022 != 0:
		return nil, cannot(cell.Denied, "run chmod go-w "+f.Source, "others can write to it")
	case f.Secret && perm&0o077 != 0:
		return nil, cannot(cell.Denied, "run chmod go= "+f.Source, "it is a secret that others can read")
	}
	b, err := bound.ReadAll(file, f.Source, maxSource)
	if err != nil || f.Secret {
		return b, err
	}
	hint := "lend a credential instead, or add secret: true to the file"
	for _, name := range []string{strings.TrimPrefix(where, "/"), f.Target} {
		if !public && secret.Promises(name) {
			return nil, cannot(cell.Denied, hint, "by its name it is a secret")
		}
		if secret.Decide(name, false, false, nil).Action != secret.Scrub {
			continue
		}
		if _, fields, ok := secret.ScrubFields(name, b); !ok || len(fields) > 0 {
			return nil, cannot(cell.Denied, hint, "it has credentials")
		}
	}
	if found := secret.Scan(f.Target, b); len(found) > 0 {
		return nil, cannot(cell.Denied, hint, "%s", found[0].Why())
	}
	return b, nil
}
