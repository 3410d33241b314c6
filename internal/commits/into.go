package commits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// Branch is a branch that was brought into a repository.
type Branch struct {
	Ref     string // there
	Commit  string
	Was     string // the commit before; "" when it is new
	Subject string // of the commit: the beginning of its first line
}

// other is a repository into which branches are brought, by its files. No git runs over it, and no link of it leads out.
type other struct {
	root     *os.Root
	uid, gid int // of its files
}

// Into brings the branches into the repository with this common folder (".git"), as the refs below prefix, which ends with "/",
// and removes the others there, which it names: packs are copied, and refs are files (gitrepository-layout(5)), each changed under git's own lock.
// Its objects must be those that r borrows. When it fails, refs may be as before or as they shall be.
func (r *Repo) Into(ctx context.Context, common, prefix string) (branches, removed []Branch, err error) {
	branches, err = r.branches(ctx, prefix)
	if err != nil {
		return nil, nil, err
	}
	o, err := openOther(Folder{Path: common})
	if err != nil {
		return nil, nil, err
	}
	defer o.root.Close()
	if _, err := gitdir.ReadHead(o.read); err != nil { // it fails where refs are no files
		return nil, nil, err
	}
	if err := o.takes(branches); err != nil {
		return nil, nil, err
	}
	old, err := o.refs(prefix)
	if err != nil {
		return nil, nil, err
	}
	packs, err := filepath.Glob(filepath.Join(r.dir, "objects/pack/*.pack"))
	if err != nil {
		return nil, nil, err
	}
	for _, p := range packs {
		if err := o.copyPack(p); err != nil {
			return nil, nil, fmt.Errorf("cannot write into %s: %w", common, err)
		}
	}
	gone := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if !slices.ContainsFunc(branches, func(b Branch) bool { return b.Ref == name }) {
			gone[name], removed = true, append(removed, Branch{Ref: name, Was: old[name]})
		}
	}
	if err := o.remove(gone, prefix); err != nil {
		return nil, nil, fmt.Errorf("cannot remove refs of %s: %w", common, err)
	}
	for i := range branches {
		branches[i].Was = old[branches[i].Ref]
	}
	if err := o.write(branches); err != nil {
		return nil, removed, fmt.Errorf("cannot write refs of %s: %w", common, err)
	}
	return branches, removed, nil
}

// Unlock removes the locks below prefix that an interrupted Into has left.
func Unlock(common, prefix string) error {
	o, err := openOther(Folder{Path: common})
	if err != nil {
		return err
	}
	defer o.root.Close()
	return fs.WalkDir(o.root.FS(), strings.TrimSuffix(prefix, "/"), func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || !strings.HasSuffix(name, ".lock"):
			return err
		}
		return o.root.Remove(name)
	})
}

// branches are those of r, by the names that they get.
func (r *Repo) branches(ctx context.Context, prefix string) (list []Branch, err error) {
	out, err := r.run(ctx, nil, "", "for-each-ref", "--format=%(objectname) %(refname) %(contents:subject)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(f) < 3 {
			return nil, cell.Errorf(cell.Internal, "commits.Into", "", "cannot read git's line %q", line)
		}
		name := prefix + strings.TrimPrefix(f[1], "refs/heads/")
		if f[1] == detached {
			name = prefix + path.Base(detached)
		}
		if slices.ContainsFunc(list, func(b Branch) bool { return b.Ref == name }) {
			return nil, cell.Errorf(cell.Conflict, "commits.Into", "check a branch out in the cell", "the branch %s of the cell has the name that its detached head would get", path.Base(detached))
		}
		if gitdir.ParseRef(name, []byte(f[0])) == "" {
			return nil, cell.Errorf(cell.Invalid, "commits.Into", "rename the cell or the branch", "git can't have a ref of the name %q", cell.Clip(name))
		}
		list = append(list, Branch{Ref: name, Commit: f[0], Subject: cell.Clip(f[2])})
	}
	slices.SortFunc(list, func(a, b Branch) int { return strings.Compare(a.Ref, b.Ref) })
	return list, nil
}

// takes fails if the repository names objects by hashes of another kind.
func (o *other) takes(branches []Branch) error {
	config, err := o.read("config")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	size, err := gitdir.HashLen(config)
	if err != nil {
		return err
	}
	for _, b := range branches {
		if len(b.Commit) != 2*size {
			return cell.Errorf(cell.Unsupported, "commits.Into", "its files are taken without commits: pando accept", "cannot bring %s into the repository: its object ids have %d digits, and there they have %d", b.Ref, len(b.Commit), 2*size)
		}
	}
	return nil
}

func openOther(folder Folder) (*other, error) {
	fd, err := unix.Open(folder.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: folder.Path, Err: err}
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return nil, err
	}
	if folder.ID != "" && folder.ID != folderID(&is) {
		return nil, cell.Errorf(cell.Conflict, "commits.openOther", "do it again", "%s is another folder than the one that was looked at", folder.Path)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	o := &other{root: root, uid: -1, gid: -1}
	st, err := root.Stat("objects")
	if errors.Is(err, fs.ErrNotExist) { // the folder of a linked worktree
		st, err = root.Stat("HEAD")
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		o.uid, o.gid = int(sys.Uid), int(sys.Gid)
	}
	return o, nil
}

// read implements gitdir.ReadFile. What is no regular file is not there: a pipe would have the reader wait for ever.
func (o *other) read(name string) ([]byte, error) {
	f, err := o.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	return bound.ReadAll(f, name, gitdir.MaxRefs)
}

// refs are those below prefix, with their objects.
func (o *other) refs(prefix string) (map[string]string, error) {
	out := map[string]string{}
	packed, err := gitdir.ReadPacked(o.read)
	if err != nil {
		return nil, err
	}
	for name, id := range packed {
		if strings.HasPrefix(name, prefix) {
			out[name] = id
		}
	}
	looked := 0
	err = fs.WalkDir(o.root.FS(), strings.TrimSuffix(prefix, "/"), func(name string, d fs.DirEntry, err error) error {
		if looked++; looked > 100*maxRefs {
			return bound.Exceed(prefix, 100*maxRefs, "files")
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		if st, err := d.Info(); err != nil || st.Size() > 1<<10 {
			return err
		}
		b, err := o.read(name)
		if id := gitdir.ParseRef(name, b); id != "" {
			out[name] = id
		}
		return err
	})
	return out, err
}

// folder makes a folder and those above it.
func (o *other) folder(name string) error {
	if name == "." {
		return nil
	}
	if _, err := o.root.Stat(name); err == nil {
		return nil
	}
	if err := o.folder(path.Dir(name)); err != nil {
		return err
	}
	if err := o.root.Mkdir(name, 0o777); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	f, err := o.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if in, err := f.ReadDir(1); len(in) > 0 || err != io.EOF { // another was put in its place
		return cell.Errorf(cell.Conflict, "commits.Into", "do it again", "another program changes %s", name)
	}
	return f.Chown(o.uid, o.gid)
}

// create makes a file that is not there, with what write puts into it, and has it survive power loss.
func (o *other) create(name string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	if err := o.folder(path.Dir(name)); err != nil {
		return err
	}
	f, err := o.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			o.root.Remove(name)
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	return errors.Join(f.Chown(o.uid, o.gid), f.Sync())
}

// copyPack copies a pack and its index, which makes it one that counts, unless it is there.
func (o *other) copyPack(from string) error {
	base := strings.TrimSuffix(filepath.Base(from), ".pack")
	for _, ext := range []string{".pack", ".rev", ".idx"} {
		to := "objects/pack/" + base + ext
		if _, err := o.root.Stat(to); err == nil {
			continue
		}
		f, err := os.Open(strings.TrimSuffix(from, ".pack") + ext)
		if errors.Is(err, fs.ErrNotExist) && ext == ".rev" {
			continue
		}
		if err != nil {
			return err
		}
		half := "objects/pack/tmp_pando_" + base + ext // git's gc removes what is left of these
		if err := o.root.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err = o.create(half, 0o444, func(w io.Writer) error { _, err := io.Copy(w, f); return err })
		f.Close()
		if err == nil {
			err = o.root.Rename(half, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lock makes the lock of a file of refs, with its new content.
func (o *other) lock(name, text string) error {
	err := o.create(name+".lock", 0o666, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
	if errors.Is(err, fs.ErrExist) {
		return cell.Errorf(cell.Conflict, "commits.Into", "when no git is at work there, remove it", "another git changes %s: there is a file %s.lock", name, name)
	}
	return err
}

// remove removes refs: from the file of packed ones first, or they would be seen there.
func (o *other) remove(gone map[string]bool, prefix string) error {
	names := make([]string, 0, len(gone))
	for name := range gone {
		if gone[name] {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	var locked []string
	defer func() {
		for _, name := range locked {
			o.root.Remove(name + ".lock")
		}
		for _, name := range names { // folders without a ref are in the way of refs
			for dir := path.Dir(name); len(dir) >= len(prefix) && o.root.Remove(dir) == nil; dir = path.Dir(dir) {
			}
		}
	}()
	for _, name := range names {
		if err := o.lock(name, ""); err != nil {
			return err
		}
		locked = append(locked, name)
	}
	if err := o.unpack(gone); err != nil {
		return err
	}
	for _, name := range names {
		if err := o.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// unpack takes refs out of packed-refs. A line with ^ belongs to the one before.
func (o *other) unpack(gone map[string]bool) error {
	b, err := o.read("packed-refs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var kept strings.Builder
	drop := false
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "^") {
			_, name, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
			drop = !strings.HasPrefix(line, "#") && gone[name]
		}
		if !drop {
			kept.WriteString(line)
		}
	}
	if kept.Len() == len(b) {
		return nil
	}
	if err := o.lock("packed-refs", kept.String()); err != nil {
		return err
	}
	if again, err := o.read("packed-refs"); err != nil || string(again) != string(b) { // another git was faster
		return errors.Join(err, o.root.Remove("packed-refs.lock"), cell.Errorf(cell.Conflict, "commits.Into", "do it again", "another git changed packed-refs meanwhile"))
	}
	return o.root.Rename("packed-refs.lock", "packed-refs")
}

// write has refs be as they shall be: all are locked first.
func (o *other) write(list []Branch) (err error) {
	var locked []string
	defer func() {
		for _, name := range locked {
			o.root.Remove(name + ".lock") // none is left of those that were renamed
		}
	}()
	for _, b := range list {
		if b.Was == b.Commit {
			continue
		}
		if err := o.lock(b.Ref, b.Commit+"\n"); err != nil {
			return err
		}
		locked = append(locked, b.Ref)
		if st, err := o.root.Lstat(b.Ref); err == nil && st.IsDir() { // of a branch that is gone
			if err := o.root.Remove(b.Ref); err != nil {
				return err
			}
		}
	}
	for _, name := range locked {
		if err := o.root.Rename(name+".lock", name); err != nil {
			return err
		}
	}
	return nil
}
