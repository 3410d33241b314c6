package apply

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A Part is the share of one directory in the changes of a workspace that has several. Each is a source of its own: with its
// own lock, journal, staging folders and control paths, and nothing between them is touched.
type Part struct {
	// At is where the workspace has the directory; "" is all of the workspace. Paths of results are those of the workspace.
	At string
	// Request has trees, Include, IsIgnored, Reserved and Scrubbed of the whole workspace, and Source, Homes and Backup of
	// the directory.
	Request
}

// Do writes the changes that git sees from Base to After into the source, which is one directory or several. It is the one
// place where pando writes to a user's files.
//
//   - All or nothing, in all directories together: on any error, ENOSPC and interruption included, the
//     source is as it was, and a failure names the file. After a crash
//     Recover brings it back to before or to after.
//   - Each changed path must equal Base in type, content and executable bit, or
//     already equal After; else nothing is written and the error is a Conflict
//     around a *ConflictError. A file that changes meanwhile is found when it is
//     exchanged, and put back.
//   - It follows no symlink below Source and never writes a ".git", under any
//     spelling, nor a reserved path. Control paths and ignored files are left
//     out unless asked for, and listed.
//   - New files get the mode git would give them through the umask; others
//     keep their bits, of which only the executable one changes. A new file
//     belongs to the user of this process; for root, to the owner of its folder.
//     Folders that become empty are removed.
//   - Hard links that are in both After and the source are kept, as far as they are
//     applied.
//   - Modification times are now, in the order of the files in After: make builds in
//     the source what it would build in After, and no more.
//
// Two Applies to one source exclude each other: the second gets a Conflict.
//
// Each of several directories needs a folder of its own for its journal, all beside each other.
func Do(ctx context.Context, parts []Part) (Result, error) {
	all := make([]*applier, len(parts))
	defer func() {
		for _, a := range all {
			if a != nil {
				a.close()
			}
		}
	}()
	for i := range parts {
		req, err := parts[i].own(parts)
		if err != nil {
			return Result{}, err
		}
		all[i] = &applier{ctx: ctx, req: req, at: parts[i].At}
		if err := all[i].open(); err != nil {
			return Result{}, err
		}
	}
	if err := prepare(all); err != nil {
		return Result{}, err
	}
	results := make([]Result, len(all))
	var writing []*applier
	for i, a := range all {
		if results[i] = a.result(); len(results[i].Applied) > 0 && !a.req.DryRun {
			writing = append(writing, a)
		}
	}
	res := joined(parts, results)
	if len(writing) == 0 {
		return res, nil
	}
	err := write(writing)
	if err != nil && (writing[0].journal == nil || !writing[0].journal.committed) {
		return Result{}, err
	}
	return res, err
}

// prepare plans and checks all, and reports the conflicts of all.
func prepare(all []*applier) error {
	var found []PathConflict
	for _, a := range all {
		err := a.prepare()
		if c, ok := errors.AsType[*ConflictError](err); ok && len(all) > 1 {
			for _, p := range c.Paths {
				found = append(found, PathConflict{path.Join(a.at, p.Path), p.Why})
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	if len(found) > 0 {
		return conflict(found)
	}
	return nil
}

// write makes the changes of all after their checks have passed. The journal of the first says for all whether they are
// committed, until each of the others says so itself.
func write(all []*applier) error {
	first := all[0]
	undo := func(a *applier, err error) error { // not deferred: after a crash the journals must remain
		err = a.named(err)
		for _, a := range slices.Backward(all) {
			if a.journal != nil {
				err = errors.Join(err, a.named(a.journal.undo(a.root)))
			}
		}
		return err
	}
	var r [16]byte
	rand.Read(r[:])
	for i, a := range all {
		j := &journal{hook: a.req.hook}
		if len(all) > 1 {
			j.plan.Together = hex.EncodeToString(r[:])
		}
		if i > 0 {
			j.plan.Leader = rawPath(filepath.Base(first.req.Backup))
		} else {
			for _, f := range all[1:] {
				j.plan.Followers = append(j.plan.Followers, rawPath(filepath.Base(f.req.Backup)))
			}
		}
		if err := a.begin(j); err != nil {
			return undo(a, err)
		}
	}
	for _, step := range []func(*applier) error{(*applier).stageAll, (*applier).move} {
		for _, a := range all {
			if err := step(a); err != nil {
				return undo(a, err)
			}
		}
	}
	if err := first.commit(); err != nil {
		return undo(first, err)
	}
	for _, a := range all[1:] {
		err := a.journal.step("clean", "")
		if err == nil {
			err = a.journal.add(journalPart{Committed: true})
		}
		if err != nil { // the next daemon goes by the first
			return cell.Errorf(cell.Unavailable, "apply.Do", "restart pando: it removes them", "the changes are applied, but it cannot remove the originals: %w", a.named(err))
		}
	}
	var err error
	for _, a := range all {
		err = errors.Join(err, a.named(a.journal.finish(a.root)))
	}
	return err
}

// named says in an error which of several directories it is about.
func (a *applier) named(err error) error {
	if err == nil || a.at == "" {
		return err
	}
	if c, ok := errors.AsType[*ConflictError](err); ok {
		for i := range c.Paths {
			c.Paths[i].Path = path.Join(a.at, c.Paths[i].Path)
		}
	}
	return fmt.Errorf("%s: %w", a.root.path, err)
}

// beside reads the journal in another folder beside that of j, if it is of the same apply.
func (j *journal) beside(name rawPath) (*journal, error) {
	o, err := readJournal(filepath.Join(filepath.Dir(j.dir), filepath.Base(string(name))))
	if o == nil || err != nil || o.plan.Together != j.plan.Together {
		return nil, err
	}
	o.hook = j.hook
	return o, nil
}

// settle finds out whether an apply that is one with others was committed, and has the others' journals say so.
func (j *journal) settle() error {
	lead := j
	if j.plan.Leader != "" && !j.committed {
		var err error
		if lead, err = j.beside(j.plan.Leader); err != nil || lead == nil { // it goes only when all say for themselves what they are
			return err
		}
	}
	if !lead.committed {
		return nil
	}
	for _, name := range lead.plan.Followers {
		f, err := lead.beside(name)
		if f != nil && !f.committed {
			err = f.markCommitted()
		}
		if err != nil {
			return err
		}
	}
	j.committed = true
	return nil
}

// own is the request for one directory.
func (p *Part) own(all []Part) (*Request, error) {
	req := p.Request
	if p.At == "" {
		return &req, nil
	}
	var err error
	if req.Base, err = partOf(req.Base, p.At); err != nil {
		return nil, err
	}
	if req.After, err = req.After.Part(p.At); cell.KindOf(err) == cell.NotFound {
		req.After.Tree, err = workspace.EmptyTree(req.Base.Objects())
	}
	if err != nil {
		return nil, err
	}
	req.Reserved, req.Scrubbed = p.below(req.Reserved), p.below(req.Scrubbed)
	req.Include = p.includes(req.Include)
	if ignored := p.IsIgnored; ignored != nil {
		req.IsIgnored = func(name string, isDir bool) bool { return ignored(path.Join(p.At, name), isDir) }
	}
	for i := range all {
		o := &all[i]
		if o.At == p.At {
			continue
		}
		tree, err := partOf(p.Base, o.At)
		if err != nil {
			return nil, err
		}
		req.beside = append(req.beside, neighbour{o.Source, tree})
	}
	return &req, nil
}

// partOf is one folder of a tree, empty where there is none.
func partOf(t *workspace.Tree, at string) (*workspace.Tree, error) {
	part, err := t.Part(at)
	if cell.KindOf(err) == cell.NotFound {
		return workspace.EmptyTree(t.Objects())
	}
	return part, err
}

// below are those of some paths that are in the directory, from there.
func (p *Part) below(paths []string) (list []string) {
	for _, name := range paths {
		if rest, ok := strings.CutPrefix(name, p.At+"/"); ok {
			list = append(list, rest)
		}
	}
	return list
}

// includes are the includes that name something in the directory, from there.
func (p *Part) includes(list []string) (own []string) {
	for _, name := range list {
		if rest, ok := p.include(name); ok {
			own = append(own, rest)
		}
	}
	return own
}

func (p *Part) include(name string) (own string, ok bool) {
	name = included(name)
	if name == "." || name == p.At || name != "" && strings.HasPrefix(p.At, name+"/") {
		return ".", true
	}
	return strings.CutPrefix(name, p.At+"/")
}

// joined is the result of all parts.
func joined(parts []Part, results []Result) Result {
	if len(parts) == 1 && parts[0].At == "" {
		return results[0]
	}
	out := Result{Applied: []diff.FileChange{}}
	unused := map[string]bool{}
	for _, name := range parts[0].Include {
		unused[name] = true
	}
	for i := range parts {
		p, r := &parts[i], &results[i]
		for _, f := range r.Applied {
			f.Path = path.Join(p.At, f.Path)
			if f.OldPath != "" {
				f.OldPath = path.Join(p.At, f.OldPath)
			}
			out.Applied = append(out.Applied, f)
		}
		for _, name := range r.Already {
			out.Already = append(out.Already, path.Join(p.At, name))
		}
		for _, h := range r.Held {
			out.Held = append(out.Held, p.held(h))
		}
		for _, n := range r.Unrepresented {
			out.Unrepresented = append(out.Unrepresented, diff.Note{Path: path.Join(p.At, n.Path), What: n.What})
		}
		out.Ignored.Count += r.Ignored.Count
		out.Ignored.More += r.Ignored.More
		for _, name := range r.Ignored.Folders {
			out.Ignored.Folders = append(out.Ignored.Folders, path.Join(p.At, name))
		}
		for name := range unused {
			if own, is := p.include(name); is && !slices.Contains(r.UnusedInclude, own) {
				delete(unused, name)
			}
		}
	}
	for _, name := range parts[0].Include {
		if unused[name] {
			out.UnusedInclude = append(out.UnusedInclude, name)
		}
	}
	slices.SortFunc(out.Applied, func(a, b diff.FileChange) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(out.Held, func(a, b Held) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortStableFunc(out.Unrepresented, func(a, b diff.Note) int { return cmp.Compare(a.Path, b.Path) })
	slices.Sort(out.Already)
	return out
}

// held is what was held back, by its path in the workspace.
func (p *Part) held(h Held) Held {
	if p.At == "" {
		return h
	}
	h.Path = path.Join(p.At, h.Path)
	h.Flag = "--include " + diff.ShellWord(path.Join(p.At, h.include))
	if h.other != "" {
		h.Why = strings.Replace(h.Why, diff.Quote(h.other), diff.Quote(path.Join(p.At, h.other)), 1)
	}
	return h
}

// ReviewOf reviews the changes from Base to After. It reads nothing but configuration of
// the host.
func ReviewOf(parts []Part) (r Review, err error) {
	for i := range parts {
		p := &parts[i]
		req, err := p.own(parts)
		if err != nil {
			return r, err
		}
		one, err := reviewOf(req)
		if err != nil {
			return r, err
		}
		for _, l := range one.First {
			slash := ""
			if strings.HasSuffix(l.Path, "/") {
				slash = "/"
			}
			l.Path = path.Join(p.At, l.Path) + slash
			r.First = append(r.First, l)
		}
		for _, h := range one.Held {
			r.Held = append(r.Held, p.held(h))
		}
	}
	slices.SortStableFunc(r.First, func(a, b Look) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortStableFunc(r.Held, func(a, b Held) int { return cmp.Compare(a.Path, b.Path) })
	return r, nil
}
