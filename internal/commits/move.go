package commits

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
)

// maxIndex bounds a repository's index, in bytes: half a million files.
const maxIndex = 64 << 20

// Move is that of the branch which a repository has checked out, with its index. Files of the work tree are not its affair.
type Move struct {
	Dir       Folder `json:"dir"`    // with HEAD and the index
	Common    Folder `json:"common"` // with objects and refs: Dir, but in a linked worktree
	Branch    string `json:"branch"` // without refs/heads/
	Was       string `json:"was"`    // the commit that it is at; "": none
	Now       string `json:"now"`    // the one that it shall be at
	Why       string `json:"why"`    // for the reflog
	Committer Ident  `json:"committer"`
}

// Folder is a folder, and which one it was when it was looked at: another in its place is refused.
type Folder struct {
	Path string `json:"path"`
	ID   string `json:"id"` // device and inode; "" is any
}

// FolderAt is the folder at a path now, which is no link.
func FolderAt(path string) (Folder, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Folder{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return Folder{Path: path, ID: folderID(&st)}, nil
}

func folderID(st *unix.Stat_t) string { return fmt.Sprintf("%d:%d", st.Dev, st.Ino) }

// held is what a file of ours says of a move while it is held: by it Finish goes on.
type held struct {
	Move Move   `json:"move"`
	Half string `json:"half"` // the beginning of the names of complete files of which the locks are links
}

// Held is a move that was prepared: no other git moves the branch or changes the index, until it is done or released.
type Held struct {
	held
	dir, common *other
	mark        string // the file of ours
}

// The files that are locked: index in the folder with HEAD, branch in the common one.
func (h *Held) index() locked { return locked{h.dir, "index", h.Half + "-index"} }
func (h *Held) branch() locked {
	return locked{h.common, "refs/heads/" + h.Move.Branch, h.Half + "-ref"}
}

// locked is a file that git changes by a lock beside it. Ours is a second link to a complete file: it has all of the new
// content, or is not there, and no other git's is ever taken for it.
type locked struct {
	in         *other
	name, half string
}

// ours reports whether the lock is there, and ours.
func (l locked) ours() bool {
	a, err := l.in.root.Lstat(l.half)
	if err != nil {
		return false
	}
	b, err := l.in.root.Lstat(l.name + ".lock")
	return err == nil && os.SameFile(a, b)
}

// take makes the lock, with the mode and time of what was there, if anything was.
func (l locked) take(text []byte, like fs.FileInfo) error {
	if err := l.drop(); err != nil {
		return err
	}
	if err := l.in.create(l.half, 0o666, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	if like != nil {
		if err := l.in.root.Chmod(l.half, like.Mode().Perm()); err != nil {
			return err
		}
		// By the time of the index git tells which files may have changed since they were looked at ("racy git").
		if err := l.in.root.Chtimes(l.half, like.ModTime(), like.ModTime()); err != nil {
			return err
		}
	}
	if err := l.in.folder(path.Dir(l.name)); err != nil {
		return err
	}
	err := l.in.root.Link(l.half, l.name+".lock")
	if errors.Is(err, fs.ErrExist) {
		return cell.Errorf(cell.Conflict, "commits.Hold", "when no git is at work there, remove it", "another git changes %s: there is a file %s.lock", l.name, l.name)
	}
	return err
}

// put has the file be what the lock has.
func (l locked) put() error {
	if !l.ours() {
		return cell.Errorf(cell.Conflict, "commits.Hold", "", "the lock of %s was taken away", l.name)
	}
	if err := l.in.root.Rename(l.name+".lock", l.name); err != nil {
		return err
	}
	return l.drop()
}

// drop gives the lock up, if it is there.
func (l locked) drop() error {
	if l.ours() {
		if err := l.in.root.Remove(l.name + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := l.in.root.Remove(l.half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Give copies what leads to a commit, and not to another, "" for none, into the objects of a repository.
func (r *Repo) Give(ctx context.Context, common Folder, now, was string) error {
	o, err := openOther(common)
	if err != nil {
		return err
	}
	defer o.root.Close()
	to, err := os.MkdirTemp(r.folder, "give-")
	if err != nil {
		return err
	}
	want := now + "\n"
	if was != "" {
		want += "^" + was + "\n"
	}
	if _, err := r.run(ctx, strings.NewReader(want), "", "pack-objects", "-q", "--revs", "--threads=1", filepath.Join(to, "pack")); err != nil {
		return err
	}
	packs, err := filepath.Glob(filepath.Join(to, "*.pack"))
	for _, p := range packs {
		if err := o.copyPack(p); err != nil {
			return fmt.Errorf("cannot write into %s: %w", common.Path, err)
		}
	}
	return err
}

// Hold prepares a move. The repository has its commits by now, and r borrows them. mark is a file of ours by which Finish knows
// what was held, should this program end before it is done.
func (r *Repo) Hold(ctx context.Context, m Move, mark string) (_ *Held, err error) {
	var half [8]byte
	rand.Read(half[:])
	h := &Held{held: held{Move: m, Half: "pando-" + hex.EncodeToString(half[:])}, mark: mark}
	defer func() {
		if err != nil {
			h.Release()
			err = fmt.Errorf("cannot move branch %s: %w", m.Branch, err)
		}
	}()
	if err := h.open(); err != nil {
		return nil, err
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(h.held)
	if err != nil {
		return nil, err
	}
	failpoint.Step("note what is held of a branch")
	if err := writeDurably(mark, b); err != nil {
		return nil, err
	}
	for tries := 0; ; tries++ {
		same, err := h.holdIndex(ctx, r)
		if err != nil {
			return nil, cmp.Or(h.check(), err) // another move of the branch has changed the index, too
		}
		if same {
			break
		}
		if tries == 5 {
			return nil, cell.Errorf(cell.Conflict, "commits.Hold", "do it again", "another program changes the index all the time")
		}
	}
	failpoint.Step("lock a branch")
	if err := h.branch().take([]byte(m.Now+"\n"), nil); err != nil {
		return nil, err
	}
	return h, h.check() // it may have moved before it was locked
}

// writeDurably has a file of ours survive power loss, whole.
func writeDurably(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// holdIndex locks the index, with what it becomes. It is false when another git, or an editor's, wrote it meanwhile.
func (h *Held) holdIndex(ctx context.Context, r *Repo) (bool, error) {
	index, st, err := h.dir.index()
	if err != nil {
		return false, err
	}
	next, err := r.Index(ctx, index, h.Move.Was, h.Move.Now)
	if err != nil {
		return false, err
	}
	failpoint.Step("lock an index")
	if err := h.index().take(next, st); err != nil {
		return false, err
	}
	again, _, err := h.dir.index()
	return string(again) == string(index), err
}

func (h *Held) open() (err error) {
	if h.dir, err = openOther(h.Move.Dir); err == nil {
		h.common, err = openOther(h.Move.Common)
	}
	return err
}

// Try fails where Hold would for what the repository is. It changes nothing.
func (r *Repo) Try(ctx context.Context, m Move) error {
	h := &Held{held: held{Move: m}}
	defer h.close()
	if err := h.open(); err != nil {
		return err
	}
	if err := h.check(); err != nil {
		return err
	}
	index, _, err := h.dir.index()
	if err == nil {
		_, err = r.Index(ctx, index, m.Was, m.Now)
	}
	return err
}

// index is the index of a repository, nil when there is none.
func (o *other) index() ([]byte, fs.FileInfo, error) {
	f, err := o.root.OpenFile("index", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil, nil, errors.Join(err, cell.Errorf(cell.Invalid, "commits.Hold", "", "the index is no regular file"))
	}
	b, err := bound.ReadAll(f, "the index", maxIndex)
	return b, st, err
}

// check fails unless the branch is checked out, and where it was, and can have the new commit.
func (h *Held) check() error {
	now, err := gitdir.ReadHead(func(name string) ([]byte, error) {
		if name == "HEAD" {
			return h.dir.read(name)
		}
		return h.common.read(name)
	})
	if err != nil {
		return err
	}
	if now.Branch != h.Move.Branch {
		return cell.Errorf(cell.Conflict, "commits.Hold", "do it again", "%s is checked out by now", cmp.Or(now.Branch, short(now.Commit)))
	}
	if now.Commit != h.Move.Was {
		return cell.Errorf(cell.Conflict, "commits.Hold", "do it again", "it is at %s, and was at %s when it was looked at", cmp.Or(short(now.Commit), "no commit"), cmp.Or(short(h.Move.Was), "none"))
	}
	if err := h.common.takes([]Branch{{Ref: h.Move.Branch, Commit: h.Move.Now}}); err != nil {
		return err
	}
	return h.free()
}

// free fails if another ref, or what is left of one, is in the place of the branch's file.
func (h *Held) free() error {
	inWay := func(name string) error {
		return cell.Errorf(cell.Conflict, "commits.Hold", "rename one of them", "its name is in the way of %s, or that is in its way", name)
	}
	ref := h.branch().name
	if st, err := h.common.root.Lstat(ref); err == nil && st.IsDir() {
		if err := h.common.root.Remove(ref); err != nil { // of branches that are gone it is empty
			return inWay(ref + "/")
		}
	}
	if h.Move.Was != "" {
		return nil
	}
	packed, err := gitdir.ReadPacked(h.common.read)
	for name := range packed {
		if strings.HasPrefix(name, ref+"/") || strings.HasPrefix(ref, name+"/") {
			return inWay(name)
		}
	}
	return err
}

// Do moves the branch, and with it the index, and notes it in the reflogs that there are. When it fails the branch has
// not moved. What is held goes on to be so until Release.
func (h *Held) Do() error {
	failpoint.Step("move a branch")
	if err := h.branch().put(); err != nil {
		return err
	}
	h.reflog()
	failpoint.Step("move an index")
	if err := h.index().put(); err != nil {
		h.mark = "" // Finish makes it anew
	}
	return nil
}

// reflog adds a line to the reflogs of the branch and of HEAD (git-reflog(1)), if there are any.
func (h *Held) reflog() {
	was := h.Move.Was
	if was == "" {
		was = strings.Repeat("0", len(h.Move.Now))
	}
	line := was + " " + h.Move.Now + " " + h.Move.Committer.line(time.Now()) + "\t" + h.Move.Why + "\n"
	for _, log := range []struct {
		o    *other
		name string
	}{{h.common, "logs/" + h.branch().name}, {h.dir, "logs/HEAD"}} {
		f, err := log.o.root.OpenFile(log.name, os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			f.WriteString(line)
		}
		f.Close()
	}
}

// Release gives the locks up, and what says that they are ours. It may be called again.
func (h *Held) Release() {
	if h.dir != nil && h.common != nil && errors.Join(h.branch().drop(), h.index().drop()) == nil && h.mark != "" {
		os.Remove(h.mark)
	}
	h.close()
}

func (h *Held) close() {
	for _, o := range []*other{h.dir, h.common} {
		if o != nil {
			o.root.Close()
		}
	}
	h.dir, h.common = nil, nil
}

// Left is the move that a file of ours says was held when its program ended; nil when there is none.
func Left(mark string) (*Move, error) {
	h, err := left(mark)
	if h == nil || err != nil {
		return nil, err
	}
	return &h.Move, nil
}

func left(mark string) (*held, error) {
	b, err := os.ReadFile(mark)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var h held
	if json.Unmarshal(b, &h) != nil { // half written: before the first lock
		return nil, os.Remove(mark)
	}
	return &h, nil
}

// Moved reports whether a branch has the commit that a move was to bring, whatever came after it.
func (r *Repo) Moved(ctx context.Context, m Move) (bool, error) {
	o, err := openOther(m.Common)
	if err != nil {
		return false, err
	}
	defer o.root.Close()
	now, err := gitdir.ReadHead(func(name string) ([]byte, error) {
		if name == "HEAD" { // another may be checked out by now
			return []byte("ref: refs/heads/" + m.Branch), nil
		}
		return o.read(name)
	})
	if err != nil || now.Commit == "" || m.Now == "" {
		return false, err
	}
	has, err := r.Has(ctx, []string{m.Now, now.Commit})
	if err != nil || len(has) < 2 {
		return false, err
	}
	if m.Was != "" { // a move back is to a commit that the branch had in its history all along
		if forth, err := r.leadsTo(ctx, m.Was, m.Now); err != nil || !forth {
			return now.Commit == m.Now, err
		}
	}
	return r.leadsTo(ctx, m.Now, now.Commit)
}

// Finish goes on with what was held by a program that ended, or gives it up where that can't be had any more. When the branch is
// at the new commit, or r is given, which borrows the repository's objects and in which it has moved, the index is moved, too; else nothing
// of it is. The locks are removed in any case.
func Finish(ctx context.Context, r *Repo, mark string, m Move) error {
	was, err := left(mark)
	if was == nil || err != nil {
		return err
	}
	h := &Held{held: *was, mark: mark}
	if err := h.open(); err != nil { // another repository is in its place, or none
		h.close()
		return os.Remove(mark)
	}
	defer h.Release()
	at, err := h.common.read(h.branch().name)
	moved := err == nil && string(at) == h.Move.Now+"\n" || r != nil && m.Now == h.Move.Now
	if !moved {
		return nil
	}
	if !h.index().ours() { // it was lost; if nothing else changed the index, it can be made anew
		if r == nil {
			return nil
		}
		if same, err := h.holdIndex(ctx, r); err != nil || !same {
			return nil
		}
	}
	return h.index().put()
}
