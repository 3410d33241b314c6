package fuseproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

func acts(t *testing.T, dir string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGQUIT) }
	cmd.WaitDelay = 2 * time.Second
	cmd.Env = append(os.Environ(), actsEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Split(string(out), "\n")
}

// What programs do has the same outcome as in a plain directory.
func TestActsAreAsInAPlainDirectory(t *testing.T) {
	b := newBed(t)
	plain := filepath.Join(filepath.Dir(b.tree), "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	want, got := acts(t, plain), acts(t, b.mnt)
	if len(want) < 100 {
		t.Fatalf("not much was done: %q", want)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Tools that look at everything find nothing odd, several at once.
func TestTools(t *testing.T) {
	git, python := testenv.Program(t, "git"), testenv.Python(t)
	b := newBed(t)
	src := filepath.Join(filepath.Dir(b.tree), "src")
	for i := range 60 {
		write(t, fmt.Sprintf("%s/p%d/m%d.py", src, i%7, i), fmt.Sprintf("def f(x):\n    return x + %d\n", i))
	}
	id := []string{"-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "init.defaultBranch=main"}
	run(t, src, git, "init", "-q")
	run(t, src, git, "add", ".")
	run(t, src, append(append([]string{git}, id...), "commit", "-qm", "all")...)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			dir := fmt.Sprintf("%s/c%d", b.mnt, i)
			for _, args := range [][]string{{git, "clone", "-q", "--no-hardlinks", src, dir}, {git, "-C", dir, "status", "--porcelain"}, {python, "-m", "compileall", "-q", dir},
				{git, "-C", dir, "fsck", "--strict"}, {"sh", "-c", `cd "$1" && mv p1 q1 && cp -r p2 q2 && rm -rf p3 && tar cf - . | tar tf - >/dev/null && find . -name '*.pyc' -delete`, "sh", dir}} {
				cmd := exec.Command(args[0], args[1:]...)
				cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%q: %v\n%s", args, err, out)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	// The host sees the same.
	if d := run(t, b.tree, "diff", "-r", "--no-dereference", b.tree, b.mnt); d != "" {
		t.Error(d)
	}
	if out := run(t, b.mnt+"/c0", git, "status", "--porcelain", "p4", "p5"); out != "" {
		t.Errorf("status: %q", out)
	}
}

// A mount goes on over a copy of its files, with all that is open in it.
func TestAnotherServerGoesOn(t *testing.T) {
	b := newBed(t)
	write(t, b.tree+"/d/e/known", "known")
	write(t, b.tree+"/d/unknown", "unknown")
	for i := range 300 {
		write(t, fmt.Sprintf("%s/list/%03d", b.tree, i), "")
	}
	open := func(path string, flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(b.mnt+"/"+path, flags, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	read(t, b.mnt+"/d/e/known")
	known := open("d/e/known", os.O_RDWR)
	gone := open("d/e/gone", os.O_RDWR|os.O_CREATE)
	gone.WriteString("gone, not forgotten")
	gone.Sync()
	if err := os.Mkdir(b.mnt+"/leave", 0o755); err != nil {
		t.Fatal(err)
	}
	lost := open("leave/lost", os.O_RDWR|os.O_CREATE) // in a directory that goes, too
	linked := open("linked", os.O_RDWR|os.O_CREATE)
	linked.WriteString("linked")
	linked.Sync()
	for _, err := range []error{os.Link(b.tree+"/linked", b.tree+"/other"), os.Remove(b.mnt + "/linked"), os.Remove(b.mnt + "/d/e/gone"),
		os.Remove(b.mnt + "/leave/lost"), os.Remove(b.mnt + "/leave")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	lost.WriteString("lost")
	lost.Sync()
	write(t, b.mnt+"/twin", "twins")
	if err := os.Link(b.mnt+"/twin", b.mnt+"/twin2"); err != nil {
		t.Fatal(err)
	}
	write(t, b.tree+"/later", "later")
	later := open("later", os.O_RDONLY)
	dirty := open("dirty", os.O_RDWR|os.O_CREATE) // not written back
	dirty.WriteString("dirty")
	list := open("list", os.O_RDONLY)
	part, err := list.Readdirnames(10)
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Stat_t
	if err := unix.Stat(b.mnt+"/d/e/known", &before); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.mnt + "/d/absent"); !os.IsNotExist(err) {
		t.Fatal(err)
	}

	for range 2 { // a copy of a copy
		b.replace()
		for f, want := range map[*os.File]string{known: "known", gone: "gone, not forgotten", lost: "lost", linked: "linked", dirty: "dirty"} {
			if f != dirty { // not from the kernel's cache
				if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
					t.Errorf("%s: %v", f.Name(), err)
				}
			}
			got := make([]byte, 100)
			n, _ := f.ReadAt(got, 0)
			if string(got[:n]) != want {
				t.Errorf("%s: %q", f.Name(), got[:n])
			}
		}
	}
	if err := errors.Join(os.Remove(b.mnt+"/later"), unix.Fadvise(int(later.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Error(err)
	}
	text := make([]byte, 10)
	if n, _ := later.ReadAt(text, 0); string(text[:n]) != "later" {
		t.Errorf("opened before, deleted after: %q", text[:n])
	}
	if _, err := known.WriteAt([]byte("KNOWN, and longer"), 0); err != nil {
		t.Error(err)
	}
	if _, err := gone.WriteAt([]byte("GONE"), 0); err != nil {
		t.Error(err)
	}
	for _, f := range []*os.File{known, dirty} {
		if err := f.Sync(); err != nil {
			t.Error(err)
		}
	}
	for p, want := range map[string]string{"d/e/known": "KNOWN, and longer", "d/unknown": "unknown", "dirty": "dirty", "other": "linked", "twin2": "twins"} {
		if got := read(t, b.mnt+"/"+p); got != want {
			t.Errorf("%s in the mount: %q", p, got)
		}
		if got := read(t, b.tree+"/"+p); got != want {
			t.Errorf("%s in the copy: %q", p, got)
		}
	}
	if got := read(t, filepath.Join(filepath.Dir(b.tree), "tree.old/d/e/known")); got != "known" {
		t.Errorf("the source has %q", got)
	}
	rest, err := list.Readdirnames(-1)
	if err != nil || len(part)+len(rest) != 300 {
		t.Errorf("the listing has %d and %d names, %v", len(part), len(rest), err)
	}
	var after unix.Stat_t
	if err := unix.Stat(b.mnt+"/d/e/known", &after); err != nil || after.Ino != before.Ino {
		t.Errorf("inode %d was %d, %v", after.Ino, before.Ino, err)
	}
	if err := os.Rename(b.mnt+"/d", b.mnt+"/renamed"); err != nil {
		t.Error(err)
	}
	if _, err := known.WriteAt([]byte("!"), 0); err != nil || known.Sync() != nil {
		t.Error(err)
	}
	if got := read(t, b.tree+"/renamed/e/known"); got != "!NOWN, and longer" {
		t.Errorf("after a rename: %q", got)
	}
	for _, tree := range []string{b.tree, b.mnt, strings.TrimSuffix(b.tree, "++") + ".old"} {
		if out := run(t, "/", "find", tree, "-name", HiddenPrefix+"*"); out != "" {
			t.Errorf("left over: %s", out)
		}
	}
}

// While requests are held none reaches the server; then they go on.
func TestHold(t *testing.T) {
	b := newBed(t)
	write(t, b.mnt+"/f", "f")
	b.hold()
	defer b.courier.GoOn()
	done := make(chan error, 1)
	go func() {
		var x unix.Statx_t
		done <- unix.Statx(unix.AT_FDCWD, b.mnt+"/f", unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &x)
	}()
	select {
	case <-done:
		t.Error("a request was answered")
	case <-time.After(100 * time.Millisecond):
	}
	b.courier.GoOn()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("a request that was held has no answer")
	}
}

// Numbers of files are unique over devices, also where devices use high bits.
func TestNumbersAreUnique(t *testing.T) {
	s, err := New(openDir(t, t.TempDir()), Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for _, dev := range []uint64{1, 2, 3} {
		for _, ino := range []uint64{1, 5, 1<<62 | 5, 1<<48 | 5} {
			if n := s.told(dev, ino); seen[n] || n != s.told(dev, ino) {
				t.Errorf("%d of %d is %d", ino, dev, n)
			} else {
				seen[n] = true
			}
		}
	}
}

// What the host changes is seen when it is told, and not before.
func TestRefresh(t *testing.T) {
	b := newBed(t)
	write(t, b.tree+"/d/changed", "before")
	write(t, b.tree+"/d/removed", "x")
	write(t, b.tree+"/d/same", "same")
	write(t, b.tree+"/became", "a file")
	for _, p := range []string{"d/changed", "d/removed", "d/same", "became"} {
		read(t, b.mnt+"/"+p)
	}
	if _, err := os.Stat(b.mnt + "/d/new"); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	run(t, b.mnt, "ls", "-l", "d")

	write(t, b.tree+"/d/changed", "after, and longer")
	write(t, b.tree+"/d/new", "new")
	for _, err := range []error{os.Remove(b.tree + "/d/removed"), os.Remove(b.tree + "/became"), os.Mkdir(b.tree+"/became", 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, b.mnt+"/d/changed"); got != "before" {
		t.Errorf("untold: %q", got)
	}
	if _, err := os.Stat(b.mnt + "/d/new"); !os.IsNotExist(err) {
		t.Errorf("untold: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, path := range []string{"/d/same", "/nowhere/f", "/d/changed"} {
		if got := read(t, b.mnt+"/d/changed"); got != "before" {
			t.Errorf("told of another: %q", got)
		}
		if err := b.server.Refresh(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, b.mnt+"/d/changed"); got != "after, and longer" {
		t.Errorf("told of it alone: %q", got)
	}
	if _, err := os.Stat(b.mnt + "/d/new"); !os.IsNotExist(err) {
		t.Errorf("told of another: %v", err)
	}
	if err := b.server.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{"d/changed": "after, and longer", "d/new": "new", "d/same": "same"} {
		if got := read(t, b.mnt+"/"+p); got != want {
			t.Errorf("%s: %q", p, got)
		}
	}
	if _, err := os.Stat(b.mnt + "/d/removed"); !os.IsNotExist(err) {
		t.Errorf("what was removed: %v", err)
	}
	if i, err := os.Stat(b.mnt + "/became"); err != nil || !i.IsDir() {
		t.Errorf("what became a directory: %v, %v", i, err)
	}
	if got := run(t, b.mnt, "ls", "d"); got != "changed\nnew\nsame\n" {
		t.Errorf("the listing: %q", got)
	}
}

// What is mounted below root is crossed, keeps its attributes, and has numbers of
// its own.
func TestMountsBelow(t *testing.T) {
	b := newBed(t)
	for _, d := range []string{"rw", "ro", "m"} {
		if err := os.Mkdir(b.tree+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, b.tree+"/rw/f", "f")
	for _, m := range []struct {
		src, dst, kind string
		flags          uintptr
	}{{"tmpfs", "/m", "tmpfs", 0}, {b.tree + "/rw", "/ro", "", unix.MS_BIND}, {"", "/ro", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY}} {
		if err := unix.Mount(m.src, b.tree+m.dst, m.kind, m.flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { unix.Unmount(b.tree+"/m", unix.MNT_DETACH); unix.Unmount(b.tree+"/ro", unix.MNT_DETACH) })
	write(t, b.mnt+"/m/x", "x")
	inodes := map[uint64]string{}
	for _, p := range []string{"", "rw", "m", "rw/f", "m/x"} {
		var x unix.Stat_t
		if err := unix.Stat(b.mnt+"/"+p, &x); err != nil {
			t.Fatal(err)
		}
		if o, ok := inodes[x.Ino]; ok {
			t.Errorf("%q and %q have one number", p, o)
		}
		inodes[x.Ino] = p
	}
	for what, got := range map[string][2]error{
		"write":  {os.WriteFile(b.mnt+"/ro/f", nil, 0o644), unix.EROFS},
		"create": {os.WriteFile(b.mnt+"/ro/g", nil, 0o644), unix.EROFS},
		"rmdir":  {os.Remove(b.mnt + "/m"), unix.EBUSY},
		"rename": {os.Rename(b.mnt+"/ro", b.mnt+"/r"), unix.EBUSY},
		"across": {os.Rename(b.mnt+"/m/x", b.mnt+"/x"), unix.EXDEV},
		"rw":     {os.WriteFile(b.mnt+"/rw/f", []byte("g"), 0o644), nil},
	} {
		if !errors.Is(got[0], got[1]) {
			t.Errorf("%s: %v, not %v", what, got[0], got[1])
		}
	}
}

// Links that lead out of the tree are the guest's to follow: the server doesn't.
func TestHostileRequests(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	write(t, tree+"/f", "f")
	write(t, dir+"/secret", "secret")
	for _, err := range []error{os.Symlink("..", tree+"/up"), os.Symlink("/", tree+"/top"), unix.Mkfifo(tree+"/fifo", 0o600), os.Mkdir(tree+"/d", 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(openDir(t, tree), Options{MaxNodes: 12, MaxHandles: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(op uint32, node uint64, body ...any) (unix.Errno, []byte) {
		t.Helper()
		var a answer
		out := s.handle(message(op, node, body...), &a)
		if len(out) < outSize || int(binary.NativeEndian.Uint32(out)) != len(out) {
			t.Fatalf("answer %x", out)
		}
		return unix.Errno(-int32(binary.NativeEndian.Uint32(out[4:]))), out[outSize:]
	}
	find := func(name string) uint64 {
		t.Helper()
		e, out := ask(opLookup, rootNode, name)
		if e != 0 {
			t.Fatalf("%s: %v", name, e)
		}
		return binary.NativeEndian.Uint64(out)
	}
	for _, name := range []string{"", ".", "..", "/", "a/b", "/etc", "../secret", strings.Repeat("x", 256)} {
		for _, op := range []uint32{opLookup, opUnlink, opRmdir} {
			if e, _ := ask(op, rootNode, name); e != unix.EINVAL && e != unix.ENAMETOOLONG {
				t.Errorf("%d of %.10q: %v", op, name, e)
			}
		}
		if e, _ := ask(opMkdir, rootNode, uint64(0o755), name); e != unix.EINVAL && e != unix.ENAMETOOLONG {
			t.Errorf("mkdir %.10q: %v", name, e)
		}
		if e, _ := ask(opRename, rootNode, uint64(rootNode), "f", name); e != unix.EINVAL && e != unix.ENAMETOOLONG {
			t.Errorf("rename to %.10q: %v", name, e)
		}
	}
	// A directory that is gone is listed, which a kernel would not ask for.
	ask(opMkdir, rootNode, uint64(0o755), "gone")
	_, out := ask(opOpendir, find("gone"), uint64(0))
	ask(opRmdir, rootNode, "gone")
	if e, left := ask(opReaddir, rootNode, binary.NativeEndian.Uint64(out), uint64(0), uint32(4096), uint32(0)); e != 0 || len(left) > 0 {
		t.Errorf("a directory that is gone: %v, %q", e, left)
	}
	ask(opReleasedir, rootNode, binary.NativeEndian.Uint64(out))
	up, top, fifo, f, d := find("up"), find("top"), find("fifo"), find("f"), find("d")
	for what, e := range map[string]unix.Errno{
		"a name below a link":   first(ask(opLookup, up, "secret")),
		"below a link to root":  first(ask(opLookup, top, "etc")),
		"open a link":           first(ask(opOpen, top, uint64(0))),
		"list a link":           first(ask(opOpendir, up, uint64(0))),
		"open a fifo":           first(ask(opOpen, fifo, uint64(unix.O_RDWR))),
		"open a directory":      first(ask(opOpen, d, uint64(0))),
		"cut a fifo":            first(ask(opSetattr, fifo, setattrBody(setSize, 5)...)),
		"a node that isn't":     first(ask(opGetattr, 999, uint64(0), uint64(0))),
		"a handle that isn't":   first(ask(opRead, f, uint64(7), uint64(0), uint64(10), uint64(0), uint64(0))),
		"a device":              first(ask(opMknod, rootNode, uint32(unix.S_IFCHR|0o666), uint32(0x103), uint64(0), "null")),
		"a whiteout":            first(ask(opMknod, rootNode, uint32(unix.S_IFCHR), uint32(0), uint64(0), "wh")),
		"a mark of layers":      first(ask(opSetxattr, f, uint32(1), uint32(0), "trusted.overlay.opaque", []byte("y"))),
		"a header alone":        first(ask(opWrite, f)),
		"an operation not ours": first(ask(4711, f)),
	} {
		if e == 0 {
			t.Errorf("%s: no error", what)
		}
	}
	// The host puts a link where the kernel knows a directory.
	write(t, dir+"/in/secret", "secret")
	var e unix.Errno
	e, out = ask(opMkdir, d, uint64(0o755), "in")
	in := binary.NativeEndian.Uint64(append(out, make([]byte, 8)...))
	if err := errors.Join(os.RemoveAll(tree+"/d"), os.Symlink("..", tree+"/d")); err != nil || e != 0 {
		t.Fatal(err, e)
	}
	for _, n := range []uint64{d, in} {
		if e, out := ask(opLookup, n, "secret"); e == 0 && binary.NativeEndian.Uint64(out) != 0 {
			t.Error("the server followed a link")
		}
	}
	// A handle is of the file that it was opened for, and what is read only isn't written.
	e, out = ask(opOpen, f, uint64(unix.O_RDONLY))
	if e != 0 {
		t.Fatal(e)
	}
	fh := binary.NativeEndian.Uint64(out)
	if e, _ := ask(opWrite, f, fh, uint64(0), uint32(1), uint32(0), uint64(0), uint64(0), []byte("x")); e == 0 {
		t.Error("written by a reader's handle")
	}
	if e, _ := ask(opReaddir, f, fh, uint64(0), uint32(4096), uint32(0)); e == 0 {
		t.Error("a file was listed")
	}
	for range 2 {
		ask(opOpen, f, uint64(0))
	}
	if e, _ := ask(opOpen, f, uint64(0)); e != unix.ENFILE {
		t.Errorf("one handle too many: %v", e)
	}
	for i := range 20 {
		write(t, fmt.Sprintf("%s/n%d", tree, i), "")
		e, _ = ask(opLookup, rootNode, fmt.Sprintf("n%d", i))
	}
	if e != unix.ENOMEM {
		t.Errorf("one node too many: %v", e)
	}
	if got := read(t, dir+"/secret"); got != "secret" {
		t.Errorf("outside is %q", got)
	}
}

func first(e unix.Errno, _ []byte) unix.Errno { return e }

func setattrBody(valid uint32, size uint64) []any {
	return []any{valid, uint32(0), uint64(0), size, uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0)}
}

// message is a request with a body of numbers, names and bytes.
func message(op uint32, node uint64, body ...any) []byte {
	b := make([]byte, headSize)
	for _, x := range body {
		switch x := x.(type) {
		case uint32:
			b = binary.NativeEndian.AppendUint32(b, x)
		case uint64:
			b = binary.NativeEndian.AppendUint64(b, x)
		case string:
			b = append(append(b, x...), 0)
		case []byte:
			b = append(b, x...)
		default:
			panic(x)
		}
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], op)
	binary.NativeEndian.PutUint64(b[8:], 2)
	binary.NativeEndian.PutUint64(b[16:], node)
	binary.NativeEndian.PutUint32(b[24:], uint32(os.Geteuid()))
	binary.NativeEndian.PutUint32(b[28:], uint32(os.Getegid()))
	return b
}

// A connection with nonsense ends, and a state with nonsense is refused.
func TestNonsense(t *testing.T) {
	tree := t.TempDir()
	for _, b := range [][]byte{{1, 0, 0, 0}, {255, 255, 255, 255}, message(opLookup, 1, "x")[:20]} {
		s, err := New(openDir(t, tree), Options{})
		if err != nil {
			t.Fatal(err)
		}
		near, far := pair(t)
		near.Write(b)
		near.Close()
		if err := s.Serve(far); err == nil {
			t.Errorf("%x: no error", b)
		}
		far.Close()
	}
	s, err := New(openDir(t, tree), Options{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, tree+"/d/f", "")
	var a answer
	s.handle(message(opLookup, rootNode, "d"), &a)
	s.handle(message(opLookup, 2, "f"), &a)
	s.handle(message(opLookup, 2, "g"), &a)
	s.handle(message(opOpen, 3, uint64(0)), &a)
	saved, err := s.Save()
	if err != nil {
		t.Fatal(err)
	}
	if l, err := Load(openDir(t, tree), saved, Options{}); err != nil || len(l.nodes) != 3 || len(l.handles) != 1 {
		t.Errorf("loaded: %v", err)
	}
	for i := range len(saved) {
		if _, err := Load(openDir(t, tree), saved[:i], Options{}); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("%d of %d bytes: %v", i, len(saved), err)
		}
	}
}

// Whatever a kernel says, the answer is an answer, and nothing outside changes.
func FuzzRequests(f *testing.F) {
	for _, m := range [][]byte{message(opLookup, 1, "f"), message(opMkdir, 1, uint64(0o755), "d"), message(opRename2, 1, uint64(1), uint64(0), "f", "g"),
		message(opCreate, 1, uint32(unix.O_RDWR), uint32(0o644), uint64(0), "c"), message(opWrite, 3, uint64(1), uint64(0), uint32(3), uint32(0), uint64(0), uint64(0), []byte("abc")),
		message(opRead, 3, uint64(1), uint64(0), uint32(100), uint32(0), uint64(0), uint64(0)), message(opInit, 0, uint32(7), uint32(38), uint32(1<<20), uint32(1<<31-1)),
		message(opReaddirplus, 1, uint64(2), uint64(0), uint32(4096), uint32(0)), message(opOpendir, 1, uint64(0)), message(opBatchForget, 0, uint32(1), uint32(0), uint64(2), uint64(1)),
		message(opSetattr, 2, setattrBody(setSize|setMode|setMtime, 10)...), message(opSetxattr, 2, uint32(1), uint32(0), "user.a", []byte("1")), message(opListxattr, 2, uint64(100)),
		message(opCopyFileRange, 2, uint64(1), uint64(0), uint64(2), uint64(1), uint64(5), uint64(10), uint64(0)), message(opUnlink, 1, "f"), message(opLink, 1, uint64(2), "l"),
		message(opSymlink, 1, "s", "..")} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, all []byte) {
		boundtest.Allocates(t, len(all), func() {
			dir := t.TempDir()
			write(t, dir+"/tree/f", "f")
			write(t, dir+"/outside", "outside")
			root := openDir(t, dir+"/tree")
			s, err := New(root, Options{MaxNodes: 100, MaxHandles: 20, MaxKept: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var a answer
			s.handle(message(opLookup, rootNode, "f"), &a)
			s.handle(message(opOpen, 2, uint64(unix.O_RDWR)), &a)
			// One message after the other, as their lengths say, at most 20.
			for range 20 {
				if len(all) < headSize {
					break
				}
				n := min(max(int(binary.NativeEndian.Uint32(all)), headSize), len(all))
				m := append([]byte(nil), all[:n]...)
				all = all[n:]
				if op := binary.NativeEndian.Uint32(m[4:]); op == opFallocate || op == opSyncfs || op == opFsync || op == opFsyncdir {
					continue // they may take long, and that is all that they may do
				}
				binary.NativeEndian.PutUint32(m[24:], uint32(os.Geteuid()))
				binary.NativeEndian.PutUint32(m[28:], uint32(os.Getegid()))
				out := s.handle(m, &a)
				if len(out) > 0 && (len(out) < outSize || int(binary.NativeEndian.Uint32(out)) != len(out) || len(out) > maxMessage) {
					t.Fatalf("%x: %x", m, out)
				}
			}
			saved, err := s.Save()
			if err == nil {
				if l, err := Load(root, saved, Options{}); cell.KindOf(err) == cell.Corrupt && strings.Contains(err.Error(), "damaged") {
					t.Fatal(err)
				} else if err == nil {
					l.Close()
				}
			}
			if got := read(t, dir+"/outside"); got != "outside" {
				t.Fatalf("outside is %q", got)
			}
		})
	})
}
