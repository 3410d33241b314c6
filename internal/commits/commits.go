// Package commits takes commits out of a cell. The cell's own git packs them; the pack is read here, in a
// bare repository of ours, in which nothing is configuration that a cell wrote, and from there git fetches them.
//
//	cell: git bundle ─ Header ─ Repo.Take: index-pack --strict in quarantine, connectivity, refs ─ Repo.Serve: upload-pack
//
// A pack is refused for objects that it names and lacks, broken objects, links that lead nowhere, names in trees that git refuses (.git, ..), tips
// that are no commits, and for its size; git reads it with bounded memory, processor time and disk.
// It leaves to its caller to make the bundle, and to keep two packs from being taken at once.
package commits

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// What a git that reads a pack may use.
const (
	MaxPack = 1 << 30     // bytes of a pack
	memory  = 4 << 30     // bytes of address space: it maps the files of packs
	most    = 2 * MaxPack // bytes of a file
	seconds = 300         // of processor time
	patient = 10 * time.Minute
)

// maxRefs bounds how many branches a cell may have, and maxRef the length of their names, in bytes.
const (
	maxRefs = 1000
	maxRef  = 200
)

// detached is the ref of commits that are checked out and on no branch.
const detached = "refs/pando/detached-head"

// Repo is a repository of ours with commits of one cell, for one fetch. Its folder has also what the fetch needs.
type Repo struct {
	folder string
	dir    string // of the repository
	git    string
	made   []string // objects of the cell, after Take
}

// stays is for how long the folder of a fetch does that ended with its daemon: longer than any fetch takes.
const stays = time.Hour

// Open makes a new folder in dir, for one fetch. path is PATH, in which git is. Folders of earlier ones that ended without
// being closed are removed.
func Open(path, dir string) (*Repo, error) {
	git, err := gitdir.Program(path)
	if err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(dir, "fetch-*"))
	if err != nil {
		return nil, err
	}
	for _, folder := range old {
		if st, err := os.Stat(folder); err == nil && time.Since(st.ModTime()) > stays {
			os.RemoveAll(folder)
		}
	}
	folder, err := os.MkdirTemp(dir, "fetch-")
	if err != nil {
		return nil, err
	}
	return &Repo{folder: folder, dir: filepath.Join(folder, "commits.git"), git: git}, nil
}

// Lendable reports whether git finds in a folder of objects nothing but what lies in it: no link leads out of it, and it
// borrows from no other. A repository that came from elsewhere could otherwise name any that the daemon may read.
func Lendable(objects string) (bool, error) {
	err := filepath.WalkDir(objects, func(at string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != objects: // git packs in this moment
			return nil
		case err != nil:
			return err
		case !d.IsDir() && !d.Type().IsRegular(), strings.HasSuffix(at, "/info/alternates"), at == objects && strings.ContainsAny(at, "\n\""):
			return errLeadsOut
		}
		return nil
	})
	if errors.Is(err, errLeadsOut) {
		return false, nil
	}
	return err == nil, err
}

var errLeadsOut = errors.New("it leads out of its folder")

// Init makes the repository. borrow is the folder of objects, Lendable, of the repository from which the cell's was copied,
// "" for none: objects that are there need not be in packs. sha256 is for object ids of 64 digits, not 40.
func (r *Repo) Init(ctx context.Context, borrow string, sha256 bool) error {
	format := "sha1"
	if sha256 {
		format = "sha256"
	}
	if _, err := r.run(ctx, nil, "", "init", "-q", "--bare", "--template=", "--object-format="+format, r.dir); err != nil || borrow == "" {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "objects/info/alternates"), []byte(borrow+"\n"), 0o600); err != nil {
		return err
	}
	o, err := openOther(Folder{Path: filepath.Dir(borrow)})
	if err != nil {
		return err
	}
	defer o.root.Close()
	ends, err := o.read("shallow") // where histories are cut off there, they are here
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for line := range strings.Lines(string(ends)) {
		if err == nil && gitdir.ParseRef("refs/end", []byte(line)) == "" {
			err = cell.Errorf(cell.Invalid, "commits.Init", "", "cannot read %s: it is no list of commits", filepath.Join(filepath.Dir(borrow), "shallow"))
		}
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "shallow"), ends, 0o600)
}

// Close removes the repository.
func (r *Repo) Close() error { return os.RemoveAll(r.folder) }

// Create makes a file beside the repository, which goes with it.
func (r *Repo) Create(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.folder, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// Has are those of the objects that are there.
func (r *Repo) Has(ctx context.Context, ids []string) (there []string, err error) {
	out, err := r.run(ctx, strings.NewReader(strings.Join(ids, "\n")+"\n"), "", "cat-file", "--batch-check=%(objectname) %(objecttype)")
	for line := range strings.Lines(string(out)) {
		if id, kind, ok := strings.Cut(strings.TrimSpace(line), " "); ok && kind != "missing" {
			there = append(there, id)
		}
	}
	return there, err
}

// environment is that of git: no configuration but that of the repository, no replaced objects, nothing that asks.
func (r *Repo) environment() []string {
	return []string{"PATH=" + filepath.Dir(r.git) + ":/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "TMPDIR=" + r.folder,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0"}
}

// limited is a command of git within the limits above: sh sets them, and becomes git.
func (r *Repo) limited(ctx context.Context, args ...string) *exec.Cmd {
	const script = `ulimit -v "$1" && ulimit -t "$2" && ulimit -f "$3" && ulimit -c 0 && shift 3 && exec "$@"`
	settings := []string{"-c", "core.hooksPath=" + os.DevNull, "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.packedGitLimit=512m", "-c", "core.packedGitWindowSize=32m", "-c", "core.fsmonitor=false", "-c", "merge.renames=false"}
	words := append([]string{"-c", script, "sh", strconv.Itoa(memory >> 10), strconv.Itoa(seconds), strconv.Itoa(most >> 9), r.git}, settings...)
	cmd := exec.CommandContext(ctx, "/bin/sh", append(words, args...)...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", r.environment(), time.Second
	return cmd
}

// run is the output of git in the repository; objects, if not "", is where it writes objects.
func (r *Repo) run(ctx context.Context, in io.Reader, objects string, args ...string) ([]byte, error) {
	var env []string
	if objects != "" {
		env = []string{"GIT_OBJECT_DIRECTORY=" + objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(r.dir, "objects")}
	}
	out, no, err := r.ask(ctx, in, env, args...)
	if err == nil && no != "" {
		err = cell.Errorf(cell.Invalid, "commits", "", "git %s: %s", args[0], no)
	}
	return out, err
}

// ask is the output of git, with more of an environment, for commands that answer with exit code 1: no is then what it says
// beside that.
func (r *Repo) ask(ctx context.Context, in io.Reader, env []string, args ...string) (out []byte, no string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	cmd := r.limited(ctx, args...)
	if args[0] != "init" {
		cmd.Env = append(cmd.Env, "GIT_DIR="+r.dir)
	}
	cmd.Env = append(cmd.Env, env...)
	var text, said bytes.Buffer
	list := &limit{Buffer: &text, n: maxSaid}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, list, &limit{Buffer: &said, n: 16 << 10}
	err = cmd.Run()
	if err == nil && list.over {
		return nil, "", bound.Exceed("what git "+args[0]+" says", maxSaid, "bytes")
	}
	if ctx.Err() != nil {
		return nil, "", cell.Errorf(cell.Timeout, "commits", "", "git %s did not end: %w", args[0], context.Cause(ctx))
	}
	if err == nil {
		return text.Bytes(), "", nil
	}
	why := strings.TrimSpace(strings.ToValidUTF8(said.String(), "\ufffd"))
	if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.ExitCode() == 1 {
		return text.Bytes(), cmp.Or(why, "exit code 1"), nil
	}
	if why == "" || strings.Contains(why, "out of memory") || strings.Contains(why, "Cannot allocate memory") {
		why = strings.TrimSpace(why + " (" + err.Error() + "): it is larger, or takes longer to read, than is allowed")
	}
	return nil, "", cell.Errorf(cell.Invalid, "commits", "", "git %s: %s", args[0], why)
}

// maxSaid bounds what git says, in bytes: a line for each new object is most of it.
const maxSaid = 256 << 20

// limit drops what is beyond n bytes.
type limit struct {
	*bytes.Buffer
	n    int
	over bool
}

func (l *limit) Write(p []byte) (int, error) {
	part := p[:min(len(p), max(0, l.n-l.Len()))]
	l.over = l.over || len(part) < len(p)
	l.Buffer.Write(part)
	return len(p), nil
}

// Header reads the beginning of a bundle (gitformat-bundle(5), versions 2 and 3): its branches, by the names that they
// get in a Repo. What follows is the pack. Refs that are no branches are left out.
func Header(r *bufio.Reader) (map[string]string, error) {
	bad := func(format string, args ...any) (map[string]string, error) {
		return nil, cell.Errorf(cell.Invalid, "commits.Header", "", "the cell's git made no bundle: "+format, args...)
	}
	line := func() (string, error) {
		b, err := r.ReadSlice('\n')
		return strings.TrimSuffix(string(b), "\n"), err
	}
	first, err := line()
	if err != nil || first != "# v2 git bundle" && first != "# v3 git bundle" {
		return bad("its first line is %q", cell.Clip(first))
	}
	refs := map[string]string{}
	for n := 0; ; n++ {
		text, err := line()
		if err != nil || n > 64*maxRefs {
			return bad("its list of refs has no end")
		}
		if text == "" {
			return refs, nil
		}
		id, name, _ := strings.Cut(text, " ")
		if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "@") { // what it builds on, which is seen when its links are followed
			continue
		}
		if name == "HEAD" {
			name = detached
		}
		if name != detached && !strings.HasPrefix(name, "refs/heads/") {
			continue
		}
		if gitdir.ParseRef(name, []byte(id)) == "" || len(name) > maxRef {
			return bad("%q is no branch", cell.Clip(text))
		}
		refs[name] = id
		if len(refs) > maxRefs {
			return nil, bound.Exceed("the bundle", maxRefs, "branches")
		}
	}
}

// Take checks a pack and, if nothing is wrong with it, has the repository have these branches. known are commits that the
// repository borrows: the pack has all objects that the branches lead to and these do not. An object that is merely there,
// in what is borrowed, is refused: a cell that names it has not made it, and may not have it.
func (r *Repo) Take(ctx context.Context, refs map[string]string, known []string, pack io.Reader) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot take the commits: %w", err)
		}
	}()
	refs, head := maps.Clone(refs), ""
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if tip, ok := refs[detached]; name != detached && (head == "" || ok && refs[name] == tip && refs[head] != tip) {
			head = name
		}
	}
	if head != "" && refs[head] == refs[detached] { // what is checked out is on a branch
		delete(refs, detached)
	}
	quarantine := filepath.Join(r.folder, "incoming")
	if err := os.MkdirAll(filepath.Join(quarantine, "pack"), 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(quarantine)
	in, sent := bufio.NewReader(pack), 0
	if head, _ := in.Peek(12); len(head) == 12 {
		sent = int(binary.BigEndian.Uint32(head[8:]))
	}
	if _, err := r.run(ctx, in, quarantine, "index-pack", "--stdin", "--fix-thin", "--strict", "--threads=1", "--max-input-size="+strconv.Itoa(MaxPack)); err != nil {
		return err
	}
	made, err := r.packed(ctx, quarantine, sent)
	if err != nil {
		return err
	}
	var ids strings.Builder
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		if made[refs[name]] != "commit" {
			return cell.Errorf(cell.Invalid, "commits.Take", "", "the tip of %s, %s, is no commit that was made in the cell", name, refs[name])
		}
		ids.WriteString(refs[name] + "\n")
	}
	for _, id := range known {
		ids.WriteString("^" + id + "\n")
	}
	// All that the tips lead to is there, down to what is known, and was made in the cell.
	out, err := r.run(ctx, strings.NewReader(ids.String()), quarantine, "rev-list", "--objects", "--no-object-names", "--stdin")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if id := strings.TrimSpace(line); made[id] == "" {
			return cell.Errorf(cell.Invalid, "commits.Take", "", "object %s is named by what was made in the cell, and is not in its pack", cell.Clip(id))
		}
	}
	r.made = slices.Sorted(maps.Keys(made))
	packs, err := os.ReadDir(filepath.Join(quarantine, "pack"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(r.dir, "objects/pack"), 0o700); err != nil {
		return err
	}
	for _, p := range packs {
		if err := os.Rename(filepath.Join(quarantine, "pack", p.Name()), filepath.Join(r.dir, "objects/pack", p.Name())); err != nil {
			return err
		}
	}
	var set strings.Builder
	for name, id := range refs {
		fmt.Fprintf(&set, "create %s %s\n", name, id)
	}
	if _, err := r.run(ctx, strings.NewReader(set.String()), "", "update-ref", "--no-deref", "--stdin"); err != nil || head == "" {
		return err
	}
	_, err = r.run(ctx, nil, "", "symbolic-ref", "HEAD", head) // what a fetch without names takes
	return err
}

// Objects reads what was taken, object by object: commits, trees, and the contents of files.
func (r *Repo) Objects(ctx context.Context, do func(kind, id string, in io.Reader) error) error {
	return r.Read(ctx, r.made, func(kind, id string, _ int64, in io.Reader) error { return do(kind, id, in) })
}

// Read reads objects, with their kinds and sizes in bytes. What do leaves unread of one is skipped.
func (r *Repo) Read(ctx context.Context, ids []string, do func(kind, id string, size int64, in io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	cmd := r.limited(ctx, "cat-file", "--batch", "--buffer")
	cmd.Env = append(cmd.Env, "GIT_DIR="+r.dir)
	cmd.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		cmd.Wait()
	}()
	in := bufio.NewReaderSize(out, 64<<10)
	for range ids {
		var id, kind string
		var size int64
		line, err := in.ReadString('\n')
		if err == nil {
			_, err = fmt.Sscan(line, &id, &kind, &size)
		}
		if err != nil {
			return fmt.Errorf("cannot read objects of the commits: %w", err)
		}
		object := io.LimitReader(in, size)
		if err := do(kind, id, size, object); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, object); err != nil {
			return err
		}
		if _, err := in.Discard(1); err != nil {
			return fmt.Errorf("cannot read objects of the commits: %w", err)
		}
	}
	return nil
}

// packed are the first n objects in the pack in a folder of objects, with their types. Behind them index-pack has put what
// deltas of theirs build on, which was borrowed.
func (r *Repo) packed(ctx context.Context, objects string, n int) (map[string]string, error) {
	index, err := filepath.Glob(filepath.Join(objects, "pack/*.idx"))
	if err != nil || len(index) != 1 {
		return nil, cell.Errorf(cell.Internal, "commits.Take", "", "git made %d packs: %w", len(index), err)
	}
	f, err := os.Open(index[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := r.run(ctx, f, objects, "show-index")
	if err != nil {
		return nil, err
	}
	type entry struct {
		offset int64
		id     string
	}
	var entries []entry
	for line := range strings.Lines(string(list)) { // offset, id, sum
		var e entry
		if _, err := fmt.Sscan(line, &e.offset, &e.id); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.offset, b.offset) })
	var ids strings.Builder
	for _, e := range entries[:min(n, len(entries))] {
		ids.WriteString(e.id + "\n")
	}
	out, err := r.run(ctx, strings.NewReader(ids.String()), objects, "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return nil, err
	}
	made := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if id, kind, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			made[id] = kind
		}
	}
	return made, nil
}

// Serve starts git's upload-pack (gitprotocol-pack(5)), to which the connection leads. It ends with the connection,
// or with ctx; then the repository is closed. It speaks version 0 of the protocol, in which clients get what leads from the
// refs, and nothing else that is borrowed.
func (r *Repo) Serve(ctx context.Context) (net.Conn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "upload-pack"), os.NewFile(uintptr(pair[1]), "upload-pack")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	cmd := r.limited(ctx, "upload-pack", "--strict", "--timeout=600", r.dir)
	cmd.Stdin, cmd.Stdout = theirs, theirs
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go func() {
		cmd.Wait()
		r.Close()
	}()
	return conn, nil
}
