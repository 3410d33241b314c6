package commits

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// a pack in git's format (gitformat-pack(5)), object by object.
type packed struct {
	bytes.Buffer
	objects uint32
}

const (
	commitObject, treeObject, blobObject, tagObject, refDelta = 1, 2, 3, 4, 7
)

// object adds one that says it has size bytes, and its content.
func (p *packed) object(kind byte, size uint64, base, content []byte) *packed {
	b := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(b | 0x80)
		b = byte(size & 127)
	}
	p.WriteByte(b)
	p.Write(base)
	z := zlib.NewWriter(&p.Buffer)
	z.Write(content)
	z.Close()
	p.objects++
	return p
}

func (p *packed) add(kind byte, content string) *packed {
	return p.object(kind, uint64(len(content)), nil, []byte(content))
}

// file is the whole pack, which says that it has n objects.
func (p *packed) file(n uint32) []byte {
	var out bytes.Buffer
	out.WriteString("PACK")
	binary.Write(&out, binary.BigEndian, [2]uint32{2, n})
	out.Write(p.Bytes())
	sum := sha1.Sum(out.Bytes())
	return append(out.Bytes(), sum[:]...)
}

func idOf(kind, content string) string {
	return fmt.Sprintf("%x", sha1.Sum([]byte(fmt.Sprintf("%s %d\x00%s", kind, len(content), content))))
}

func raw(id string) string {
	var b []byte
	fmt.Sscanf(id, "%x", &b)
	return string(b)
}

func commitOf(tree string, parents ...string) string {
	text := "tree " + tree + "\n"
	for _, p := range parents {
		text += "parent " + p + "\n"
	}
	return text + "author a <a@example.com> 1 +0000\ncommitter a <a@example.com> 1 +0000\n\nwork\n"
}

func open(t *testing.T, borrow string) *Repo {
	t.Helper()
	r, err := Open(os.Getenv("PATH"), t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	must(t, r.Init(t.Context(), borrow, false))
	return r
}

// What the cell's git may say is refused, with a reason, within the limits, and nothing of it stays.
func TestHostilePacks(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	const blob = "text\n"
	file := func(mode, name string) string { return mode + " " + name + "\x00" + raw(idOf("blob", blob)) }
	with := func(tree string) func() (string, []byte) {
		return func() (string, []byte) {
			c := commitOf(idOf("tree", tree))
			p := new(packed).add(blobObject, blob).add(treeObject, tree).add(commitObject, c)
			return idOf("commit", c), p.file(p.objects)
		}
	}
	modules := "[submodule \"x\"]\n\tpath = x\n\turl = -u./run\n"
	good := commitOf(idOf("tree", file("100644", "f")))
	whole := new(packed).add(blobObject, blob).add(treeObject, file("100644", "f")).add(commitObject, good)
	for name, x := range map[string]struct {
		make func() (tip string, pack []byte)
		why  string
	}{
		"no pack":             {func() (string, []byte) { return idOf("commit", good), []byte("rubbish, not a pack at all") }, "signature mismatch"},
		"an empty file":       {func() (string, []byte) { return idOf("commit", good), nil }, "early EOF"},
		"cut off":             {func() (string, []byte) { b := whole.file(3); return idOf("commit", good), b[:len(b)-25] }, ""},
		"another sum":         {func() (string, []byte) { b := whole.file(3); b[len(b)-1] ^= 1; return idOf("commit", good), b }, "SHA1 mismatch"},
		"more than it has":    {func() (string, []byte) { return idOf("commit", good), whole.file(4_000_000_000) }, ""},
		"a folder .git":       {with("40000 .git\x00" + raw(idOf("tree", ""))), ""},
		"a file .GIT":         {with(file("100644", ".GIT")), "hasDotgit"},
		"a file git~1":        {with(file("100644", "git~1")), "hasDotgit"},
		"a folder ..":         {with(file("100644", "..")), "hasDotdot"},
		"a name with a slash": {with(file("100644", "a/b")), "fullPathname"},
		"two of a name":       {with(file("100644", "f") + file("100755", "f")), "duplicateEntries"},
		"a missing file":      {with("100644 f\x00" + strings.Repeat("\x11", 20)), ""},
		"a parent that is not": {func() (string, []byte) {
			tree := file("100644", "f")
			c := commitOf(idOf("tree", tree), strings.Repeat("12", 20))
			p := new(packed).add(blobObject, blob).add(treeObject, tree).add(commitObject, c)
			return idOf("commit", c), p.file(p.objects)
		}, ""},
		"a commit without an author": {func() (string, []byte) {
			c := "tree " + idOf("tree", "") + "\n\nwork\n"
			p := new(packed).add(treeObject, "").add(commitObject, c)
			return idOf("commit", c), p.file(p.objects)
		}, "missingAuthor"},
		"a tip that is a file": {func() (string, []byte) {
			p := new(packed).add(blobObject, blob)
			return idOf("blob", blob), p.file(p.objects)
		}, "is no commit"},
		"a tip that is missing": {func() (string, []byte) { return strings.Repeat("34", 20), whole.file(3) }, "is no commit"},
		"a submodule that runs": {func() (string, []byte) {
			tree := "100644 .gitmodules\x00" + raw(idOf("blob", modules))
			c := commitOf(idOf("tree", tree))
			p := new(packed).add(blobObject, modules).add(treeObject, tree).add(commitObject, c)
			return idOf("commit", c), p.file(p.objects)
		}, "gitmodulesUrl"},
		"ten gigabytes of a commit": {func() (string, []byte) {
			p := new(packed).object(commitObject, 10<<30, nil, []byte("small"))
			return idOf("commit", good), p.file(p.objects)
		}, "tried to allocate"},
		"a delta that makes ten gigabytes": {func() (string, []byte) {
			size := func(n uint64) (b []byte) {
				for ; n > 127; n >>= 7 {
					b = append(b, byte(n)|0x80)
				}
				return append(b, byte(n))
			}
			delta := append(append(size(uint64(len(blob))), size(10<<30)...), 0x90, byte(len(blob)))
			p := new(packed).add(blobObject, blob).object(refDelta, uint64(len(delta)), []byte(raw(idOf("blob", blob))), delta)
			return idOf("commit", good), p.file(p.objects)
		}, "tried to allocate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t, "")
			tip, pack := x.make()
			began := time.Now()
			err := r.Take(t.Context(), map[string]string{"refs/heads/main": tip}, nil, bytes.NewReader(pack))
			if err == nil || !strings.Contains(err.Error(), x.why) {
				t.Errorf("%v, want %q", err, x.why)
			}
			t.Logf("after %v: %v", time.Since(began).Round(time.Millisecond), err)
			refs, rerr := refsOf(t.Context(), r)
			packs, _ := filepath.Glob(filepath.Join(r.dir, "objects/*/*"))
			incoming, _ := filepath.Glob(filepath.Join(r.folder, "incoming*"))
			if rerr != nil || len(refs)+len(packs)+len(incoming) > 0 {
				t.Errorf("%v stay: refs %v, files %v %v", rerr, refs, packs, incoming)
			}
		})
	}
	if err := open(t, "").Take(t.Context(), map[string]string{"refs/heads/main": idOf("commit", good)}, nil, bytes.NewReader(whole.file(3))); err != nil {
		t.Errorf("of a good one: %v", err)
	}
}

// refsOf are the branches of a repository, by name.
func refsOf(ctx context.Context, r *Repo) (map[string]string, error) {
	out, err := r.run(ctx, nil, "", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			refs[name] = id
		}
	}
	return refs, nil
}

// bundle is what git makes of a repository's branches, without what is known.
func bundle(t *testing.T, dir string, known ...string) []byte {
	t.Helper()
	args := []string{"-C", dir, "bundle", "create", "-q", "-", "--branches", "HEAD"}
	for _, id := range known {
		args = append(args, "^"+id)
	}
	b, err := exec.Command("git", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func take(t *testing.T, r *Repo, b []byte, known ...string) {
	t.Helper()
	in := bufio.NewReader(bytes.NewReader(b))
	refs, err := Header(in)
	if err == nil {
		err = r.Take(t.Context(), refs, known, in)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What a cell's git makes is taken: branches, and what is checked out on none. Objects of the source need not be in the
// pack.
func TestTake(t *testing.T) {
	t.Parallel()
	source, work := t.TempDir(), filepath.Join(t.TempDir(), "work")
	git := func(dir string, args ...string) string { return workspacetest.Git(t, dir, args...) }
	git(source, "init", "-q", "-b", "main")
	must(t, os.WriteFile(filepath.Join(source, "f"), bytes.Repeat([]byte("line\n"), 1000), 0o600))
	git(source, "add", "f")
	git(source, "commit", "-q", "-m", "one")
	known := git(source, "rev-parse", "HEAD")
	git(source, "clone", "-q", source, work)
	git(work, "checkout", "-q", "-b", "fix")
	must(t, os.WriteFile(filepath.Join(work, "f"), append(bytes.Repeat([]byte("line\n"), 1000), "more\n"...), 0o600)) // a delta
	git(work, "commit", "-q", "-a", "-m", "two")
	r := open(t, filepath.Join(source, ".git/objects"))
	if there, err := r.Has(t.Context(), []string{known, strings.Repeat("ab", 20)}); err != nil || len(there) != 1 || there[0] != known {
		t.Errorf("%v are there: %v", there, err)
	}
	take(t, r, bundle(t, work, known), known)
	want := func(want map[string]string, head string) {
		t.Helper()
		refs, err := refsOf(t.Context(), r)
		if err != nil || fmt.Sprint(refs) != fmt.Sprint(want) {
			t.Errorf("refs %v, want %v: %v", refs, want, err)
		}
		if b, _ := os.ReadFile(filepath.Join(r.dir, "HEAD")); string(b) != "ref: "+head+"\n" {
			t.Errorf("HEAD is %q, want %s", b, head)
		}
	}
	want(map[string]string{"refs/heads/fix": git(work, "rev-parse", "fix")}, "refs/heads/fix")
	var kinds []string
	must(t, r.Objects(t.Context(), func(kind, id string, in io.Reader) error {
		text := git(work, "cat-file", "-p", id)
		if b, err := io.ReadAll(in); err != nil || kind != "tree" && strings.TrimSpace(string(b)) != text {
			t.Errorf("%s %s is %d bytes, want %d: %v", kind, id, len(b), len(text), err)
		}
		kinds = append(kinds, kind)
		return nil
	}))
	if slices.Sort(kinds); fmt.Sprint(kinds) != "[blob commit tree]" {
		t.Errorf("taken were %v", kinds)
	}
	if err := r.Objects(t.Context(), func(string, string, io.Reader) error { return io.ErrShortWrite }); err != io.ErrShortWrite {
		t.Errorf("an error of the reader's: %v", err)
	}
	git(work, "branch", "-q", "-m", "fix", "fix/a")
	git(work, "checkout", "-q", "--detach")
	git(work, "commit", "-q", "--allow-empty", "-m", "three")
	git(work, "revert", "--no-edit", "HEAD~1") // objects of the source once more
	r = open(t, filepath.Join(source, ".git/objects"))
	take(t, r, bundle(t, work, known), known)
	want(map[string]string{"refs/heads/fix/a": git(work, "rev-parse", "fix/a"), detached: git(work, "rev-parse", "HEAD")}, "refs/heads/fix/a")

	// git fetches from it.
	conn, err := r.Serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "0000"); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(said), "refs/heads/fix/a\n") {
		t.Errorf("upload-pack says %q: %v", said, err)
	}
	testenv.Eventually(t, func() bool { _, err := os.Stat(r.folder); return err != nil }, "the end of its folder")

	r = open(t, filepath.Join(source, ".git/objects"))
	take(t, r, bundle(t, work, known), known)
	ctx, cancel := context.WithCancel(t.Context())
	if conn, err = r.Serve(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	testenv.Eventually(t, func() bool { _, err := os.Stat(r.folder); return err != nil }, "the end of its folder")
}

// What the source has, and was not known to the cell, does not come out of it, however the cell names it.
func TestWhatIsBorrowedIsNotTaken(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	git := func(args ...string) string { return workspacetest.Git(t, source, args...) }
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "one")
	known := git("rev-parse", "HEAD")
	must(t, os.WriteFile(filepath.Join(source, "secret"), []byte("a secret of the source\n"), 0o600))
	git("add", "secret")
	git("commit", "-q", "-m", "a secret")
	hidden, secret := git("rev-parse", "HEAD"), git("rev-parse", "HEAD:secret")
	tree := "100644 f\x00" + raw(secret)
	above := commitOf(idOf("tree", ""), hidden)
	naming := commitOf(idOf("tree", tree), known)
	delta := append([]byte{23, 23, 0x90}, 23)
	for name, x := range map[string]struct {
		tip  string
		pack *packed
	}{
		"a tip":                 {hidden, new(packed).add(blobObject, "x")},
		"a parent":              {idOf("commit", above), new(packed).add(treeObject, "").add(commitObject, above)},
		"a file":                {idOf("commit", naming), new(packed).add(treeObject, tree).add(commitObject, naming)},
		"what a delta needs":    {idOf("commit", naming), new(packed).object(refDelta, uint64(len(delta)), []byte(raw(secret)), delta).add(treeObject, tree).add(commitObject, naming)},
		"a delta to the secret": {idOf("commit", naming), new(packed).add(treeObject, tree).add(commitObject, naming).object(refDelta, 4, []byte(raw(secret)), []byte{23, 1, 0x90, 1})},
	} {
		r := open(t, filepath.Join(source, ".git/objects"))
		err := r.Take(t.Context(), map[string]string{"refs/heads/main": x.tip}, []string{known}, bytes.NewReader(x.pack.file(x.pack.objects)))
		if err == nil || name != "what a delta needs" && !strings.Contains(err.Error(), "made in the cell") { // git itself refuses that one
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A folder of objects is lent to git only if nothing in it leads out.
func TestLendable(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		with func(objects string) error
		want bool
	}{
		"as git has it":       {func(string) error { return nil }, true},
		"a half-written file": {func(objects string) error { return os.WriteFile(objects+"/pack/tmp_pack", nil, 0o600) }, true},
		"what it borrows":     {func(objects string) error { return os.WriteFile(objects+"/info/alternates", nil, 0o600) }, false},
		"a link to packs":     {func(objects string) error { return os.Symlink("/", objects+"/pack/pack-1.pack") }, false},
		"a link in the place": {func(objects string) error {
			return errors.Join(os.Remove(objects+"/pack"), os.Symlink("/", objects+"/pack"))
		}, false},
		"a link to an object": {func(objects string) error {
			return errors.Join(os.Mkdir(objects+"/ab", 0o700), os.Symlink("/", objects+"/ab/x"))
		}, false},
		"a pipe":                {func(objects string) error { return unix.Mkfifo(objects+"/pack/pack-1.idx", 0o600) }, false},
		"a name git can't take": {func(objects string) error { return os.Rename(objects, objects+"\n") }, false},
		"a link as a whole": {func(objects string) error {
			return errors.Join(os.Rename(objects, objects+"2"), os.Symlink(objects+"2", objects))
		}, false},
	} {
		source := t.TempDir()
		workspacetest.Git(t, source, "init", "-q")
		objects := filepath.Join(source, ".git/objects")
		must(t, x.with(objects))
		if _, err := os.Lstat(objects); err != nil {
			objects += "\n"
		}
		if got, err := Lendable(objects); got != x.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// Branches come into a repository by its files, whatever it looks like; where it is not what it seems, nothing is written.
func TestInto(t *testing.T) {
	t.Parallel()
	git := func(dir string, args ...string) string { return workspacetest.Git(t, dir, args...) }
	const prefix = "refs/remotes/pando/web/"
	begin := func(t *testing.T) (source string, r *Repo, tip string) {
		source, work := t.TempDir(), filepath.Join(t.TempDir(), "work")
		git(source, "init", "-q", "-b", "main")
		git(source, "commit", "-q", "--allow-empty", "-m", "one")
		known := git(source, "rev-parse", "HEAD")
		git(source, "clone", "-q", source, work)
		git(work, "checkout", "-q", "-b", "fix")
		git(work, "commit", "-q", "--allow-empty", "-m", "two\n\nand more")
		r = open(t, filepath.Join(source, ".git/objects"))
		take(t, r, bundle(t, work, known), known)
		return source, r, git(work, "rev-parse", "HEAD")
	}
	for name, x := range map[string]struct {
		with func(t *testing.T, common string)
		why  string // "": it is done
		gone []string
	}{
		"as git has it":      {func(*testing.T, string) {}, "", nil},
		"no folder of packs": {func(t *testing.T, common string) { must(t, os.RemoveAll(filepath.Join(common, "objects/pack"))) }, "", nil},
		"packed refs": {func(t *testing.T, common string) {
			git(filepath.Dir(common), "update-ref", prefix+"gone", "HEAD")
			git(filepath.Dir(common), "pack-refs", "--all")
		}, "", []string{prefix + "gone"}},
		"a branch in the way": {func(t *testing.T, common string) { git(filepath.Dir(common), "update-ref", prefix+"fix/a", "HEAD") }, "", []string{prefix + "fix/a"}},
		"a lock": {func(t *testing.T, common string) {
			must(t, os.MkdirAll(filepath.Join(common, prefix), 0o700))
			must(t, os.WriteFile(filepath.Join(common, prefix, "fix.lock"), nil, 0o600))
		}, "another git changes", nil},
		"refs are a link that leads out": {func(t *testing.T, common string) { link(t, filepath.Join(common, "refs/remotes")) }, "escapes", nil},
		"packs are a link that leads out": {func(t *testing.T, common string) {
			must(t, os.RemoveAll(filepath.Join(common, "objects/pack")))
			link(t, filepath.Join(common, "objects/pack"))
		}, "escapes", nil},
		"a pipe": {func(t *testing.T, common string) {
			must(t, os.Remove(filepath.Join(common, "HEAD")))
			must(t, unix.Mkfifo(filepath.Join(common, "HEAD"), 0o600))
		}, "HEAD", nil},
		"a pipe of refs": {func(t *testing.T, common string) { must(t, unix.Mkfifo(filepath.Join(common, "packed-refs"), 0o600)) }, "", nil},
		"longer ids": {func(t *testing.T, common string) {
			git(filepath.Dir(common), "config", "extensions.objectFormat", "sha256")
		}, "have 40 digits, and there they have 64", nil},
		"a reftable": {func(t *testing.T, common string) {
			must(t, os.WriteFile(filepath.Join(common, "HEAD"), []byte("ref: refs/heads/.invalid\n"), 0o600))
		}, "reftable", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, r, tip := begin(t)
			common := filepath.Join(source, ".git")
			x.with(t, common)
			list, removed, err := r.Into(t.Context(), common, prefix)
			if x.why != "" {
				if err == nil || !strings.Contains(err.Error(), x.why) {
					t.Fatalf("%v, want %q", err, x.why)
				}
				return
			}
			if err != nil || len(list) != 1 || list[0] != (Branch{Ref: prefix + "fix", Commit: tip, Subject: "two"}) {
				t.Fatalf("%+v, %v", list, err)
			}
			if st, err := os.Lstat(filepath.Join(common, "packed-refs")); err == nil && !st.Mode().IsRegular() { // git itself would wait for it
				must(t, os.Remove(filepath.Join(common, "packed-refs")))
			}
			if was := x.gone; len(removed) != len(was) || len(was) > 0 && removed[0].Ref != was[0] {
				t.Errorf("removed are %+v", removed)
			}
			if got := git(source, "for-each-ref", "--format=%(refname) %(objectname)", "refs/remotes"); got != prefix+"fix "+tip {
				t.Errorf("its refs are %s", got)
			}
			git(source, "fsck", "--strict", "--no-dangling")
			if again, _, err := r.Into(t.Context(), common, prefix); err != nil || again[0].Was != tip {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
	source, r, _ := begin(t)
	common := filepath.Join(source, ".git")
	if _, _, err := r.Into(t.Context(), common, "refs/remotes/pando/a b/"); err == nil || !strings.Contains(err.Error(), "can't have a ref") {
		t.Errorf("a name that git refuses: %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(common, prefix+"fix"), 0o700))
	must(t, os.WriteFile(filepath.Join(common, prefix, "fix/a.lock"), nil, 0o600))
	must(t, Unlock(common, prefix))
	if _, err := os.Stat(filepath.Join(common, prefix, "fix/a.lock")); err == nil {
		t.Error("a lock is left")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// link makes a link to a folder outside of the repository.
func link(t *testing.T, at string) {
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o700))
	must(t, os.Symlink(outside, at))
	t.Cleanup(func() {
		if in, err := os.ReadDir(outside); err != nil || len(in) > 0 {
			t.Errorf("outside there are %v: %v", in, err)
		}
	})
}

func TestHeader(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 20)
	for text, want := range map[string]string{
		"# v2 git bundle\n-" + id + " what it builds on\n" + id + " refs/heads/a\n" + id + " refs/tags/t\n" + id + " HEAD\n\nPACK": fmt.Sprint(map[string]string{"refs/heads/a": id, detached: id}),
		"# v3 git bundle\n@object-format=sha1\n" + id + " refs/heads/a\n\n":                                                        fmt.Sprint(map[string]string{"refs/heads/a": id}),
		"PACK": "first line", "": "first line", "# v2 git bundle\n" + id + " refs/heads/a\n": "no end",
		"# v2 git bundle\n" + id + " refs/heads/../../x\n\n":                          "is no branch",
		"# v2 git bundle\n" + id + " refs/heads/a.lock\n\n":                           "is no branch",
		"# v2 git bundle\n" + id + " refs/heads/" + strings.Repeat("x", 300) + "\n\n": "is no branch",
		"# v2 git bundle\nxyz refs/heads/a\n\n":                                       "is no branch",
		"# v2 git bundle\n" + strings.Repeat("x", 10_000):                             "no end",
	} {
		refs, err := Header(bufio.NewReader(strings.NewReader(text)))
		if got := fmt.Sprint(refs, err); !strings.Contains(got, want) {
			t.Errorf("%.60q: %s, want %s", text, got, want)
		}
	}
	var many strings.Builder
	many.WriteString("# v2 git bundle\n")
	for i := range maxRefs + 1 {
		fmt.Fprintf(&many, "%s refs/heads/b%d\n", id, i)
	}
	if _, err := Header(bufio.NewReader(strings.NewReader(many.String() + "\n"))); err == nil {
		t.Error("too many branches are taken")
	}
}

// The beginning of a bundle, which a cell wrote, is read within bounds, and what is returned is what git takes for names
// and ids: they become lines of git's input.
func FuzzHeader(f *testing.F) {
	id := strings.Repeat("ab", 20)
	f.Add([]byte("# v2 git bundle\n-" + id + " base\n" + id + " refs/heads/a\n" + id + " HEAD\n\nPACK"))
	f.Add([]byte("# v3 git bundle\n@object-format=sha256\n" + id + " refs/heads/a b\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			refs, err := Header(bufio.NewReader(bytes.NewReader(b)))
			if err != nil && refs != nil {
				t.Errorf("%v and %v", refs, err)
			}
			for name, id := range refs {
				if strings.ContainsAny(name, " \n\x00\"") || strings.Trim(id, "0123456789abcdef") != "" || name != detached && !strings.HasPrefix(name, "refs/heads/") {
					t.Errorf("%q %q", name, id)
				}
			}
		})
	})
}
