package archive

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// place is a root with a file beside it that nothing may reach.
func place(t *testing.T) (root *os.File, dir string) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "root")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(top, "outside"), []byte("secret"), 0o644)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	root = os.NewFile(uintptr(fd), "/")
	t.Cleanup(func() { root.Close() })
	return root, dir
}

func act(root *os.File, a cell.FileAct, in string) (string, error) {
	var out bytes.Buffer
	a.UID, a.GID = os.Getuid(), os.Getgid()
	err := Manage(root, a, strings.NewReader(in), &out, nil)
	return out.String(), err
}

func infos(t *testing.T, s string) (paths []string) {
	t.Helper()
	for dec := json.NewDecoder(strings.NewReader(s)); ; {
		var i cell.FileInfo
		err := dec.Decode(&i)
		if errors.Is(err, io.EOF) {
			return paths
		}
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, i.Type+" "+i.Path)
	}
}

func TestManage(t *testing.T) {
	root, dir := place(t)
	if _, err := act(root, cell.FileAct{Act: cell.FileWrite, Path: "/a/b/c"}, "hello"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a/b/c")); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	os.Chmod(filepath.Join(dir, "a/b/c"), 0o755)
	if _, err := act(root, cell.FileAct{Act: cell.FileWrite, Path: "/a/b/c"}, "hi"); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(filepath.Join(dir, "a/b/c")); st.Mode().Perm() != 0o755 || st.Size() != 2 {
		t.Errorf("a file that is written again is %v, %d bytes", st.Mode(), st.Size())
	}
	if got, err := act(root, cell.FileAct{Act: cell.FileRead, Path: "/a/b/c"}, ""); err != nil || got != "hi" {
		t.Errorf("read %q, %v", got, err)
	}
	got, err := act(root, cell.FileAct{Act: cell.FileList, Path: "/", Depth: 2}, "")
	if want := []string{"directory /a", "directory /a/b"}; err != nil || !slices.Equal(infos(t, got), want) {
		t.Errorf("list: %v, %v", infos(t, got), err)
	}
	if _, err := act(root, cell.FileAct{Act: cell.FileMkdir, Path: "/a/b"}, ""); cell.KindOf(err) != cell.Exists {
		t.Errorf("mkdir of what is there: %v", err)
	}
	if _, err := act(root, cell.FileAct{Act: cell.FileMove, Path: "/a/b", To: "/x/y"}, ""); err != nil {
		t.Error(err)
	}
	if _, err := act(root, cell.FileAct{Act: cell.FileRead, Path: "/a/b/c"}, ""); cell.KindOf(err) != cell.NotFound {
		t.Errorf("what was moved away: %v", err)
	}
	if _, err := act(root, cell.FileAct{Act: cell.FileRemove, Path: "/x"}, ""); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was removed: %v", err)
	}
}

// No symlink of a cell leads out of it, whatever is done with it.
func TestManageStaysInside(t *testing.T) {
	root, dir := place(t)
	for name, to := range map[string]string{"up": "../outside", "abs": filepath.Join(dir, "../outside"), "dir": ".."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(dir, "../outside")
	for _, a := range []cell.FileAct{
		{Act: cell.FileRead, Path: "/up"}, {Act: cell.FileRead, Path: "/abs"}, {Act: cell.FileRead, Path: "/dir/outside"}, {Act: cell.FileRead, Path: "/../outside"},
		{Act: cell.FileWrite, Path: "/up"}, {Act: cell.FileWrite, Path: "/dir/outside"},
		{Act: cell.FileMove, Path: "/dir/outside", To: "/got"}, {Act: cell.FileRemove, Path: "/dir/outside"},
	} {
		got, _ := act(root, a, "changed")
		if strings.Contains(got, "secret") {
			t.Errorf("%s %s reads what is outside", a.Act, a.Path)
		}
		if b, err := os.ReadFile(outside); err != nil || string(b) != "secret" {
			t.Fatalf("%s %s reached what is outside: %q, %v", a.Act, a.Path, b, err)
		}
	}
	if _, err := act(root, cell.FileAct{Act: cell.FileRemove, Path: "/dir"}, ""); err != nil { // the link, not where it leads
		t.Error(err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}

func TestManageRefusesWhatIsNoFile(t *testing.T) {
	root, dir := place(t)
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644), os.Mkdir(filepath.Join(dir, "d"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, a := range []cell.FileAct{
		{Act: cell.FileRead, Path: "/fifo"}, {Act: cell.FileRead, Path: "/d"}, {Act: cell.FileWrite, Path: "/d"}, {Act: cell.FileList, Path: "/fifo"},
		{Act: cell.FileMove, Path: "/", To: "/x"}, {Act: cell.FileRemove, Path: "/"}, {Act: "burn", Path: "/d"},
	} {
		done := make(chan error, 1)
		go func() {
			_, err := act(root, a, "")
			done <- err
		}()
		if err, _ := testenv.Receive(t, done, fmt.Sprintf("the end of %s %s", a.Act, a.Path)); err == nil {
			t.Errorf("%s %s was done", a.Act, a.Path)
		}
	}
}

// A path that leads nowhere, or where nothing can be made, is an error about the request, and no
// fault of pando.
func TestPathsThatLeadNowhere(t *testing.T) {
	root, dir := place(t)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), []byte("as it was"), 0o644), os.MkdirAll(filepath.Join(dir, "d/sub"), 0o755),
		os.Symlink("loop", filepath.Join(dir, "loop")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644)); err != nil {
		t.Fatal(err)
	}
	long := "/" + strings.Repeat("n", 300)
	for _, p := range []string{"/f/x", "/f/x/y", long, "/d/" + long, "/loop/x", "/fifo/x"} {
		for _, a := range []cell.FileAct{{Act: cell.FileStat, Path: p}, {Act: cell.FileRead, Path: p}, {Act: cell.FileRemove, Path: p}, {Act: cell.FileMove, Path: p, To: "/new"}} {
			if _, err := act(root, a, ""); cell.KindOf(err) != cell.NotFound {
				t.Errorf("%s %.20s: %s, %v", a.Act, p, cell.KindOf(err), err)
			}
		}
		for _, a := range []cell.FileAct{{Act: cell.FileWrite, Path: p}, {Act: cell.FileMkdir, Path: p}, {Act: cell.FileMove, Path: "/f", To: p}} {
			if _, err := act(root, a, "x"); cell.KindOf(err) != cell.Invalid {
				t.Errorf("%s %.20s %.20s: %s, %v", a.Act, a.Path, a.To, cell.KindOf(err), err)
			}
		}
		if err := Send(root, p, io.Discard); cell.KindOf(err) != cell.NotFound {
			t.Errorf("send %.20s: %v", p, err)
		}
		if err := Take(root, p, os.Getuid(), os.Getgid(), pack(t)); cell.KindOf(err) != cell.Invalid {
			t.Errorf("take %.20s: %v", p, err)
		}
	}
	for _, c := range []struct {
		a    cell.FileAct
		want cell.Kind
	}{
		{cell.FileAct{Act: cell.FileWrite, Path: "/fifo"}, cell.Invalid},
		{cell.FileAct{Act: cell.FileWrite, Path: "/loop"}, cell.Invalid},
		{cell.FileAct{Act: cell.FileStat, Path: "/f\x00/x"}, cell.Invalid},
		{cell.FileAct{Act: cell.FileWrite, Path: "/f\x00x"}, cell.Invalid},
		{cell.FileAct{Act: cell.FileMove, Path: "/d", To: "/d/sub/in"}, cell.Invalid},
		{cell.FileAct{Act: cell.FileMove, Path: "/f", To: "/d"}, cell.Exists},
		{cell.FileAct{Act: cell.FileMove, Path: "/d", To: "/f"}, cell.Exists},
	} {
		if _, err := act(root, c.a, "x"); cell.KindOf(err) != c.want {
			t.Errorf("%s %s %s: %s, %v", c.a.Act, c.a.Path, c.a.To, cell.KindOf(err), err)
		}
	}
	if err := Send(root, "/fifo", io.Discard); cell.KindOf(err) != cell.Invalid {
		t.Errorf("an archive of a named pipe: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(b) != "as it was" {
		t.Errorf("%q, %v", b, err)
	}
}

// Where a move would copy, it looks first whether the destination is in the source.
func TestLeadsInto(t *testing.T) {
	root, dir := place(t)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755), os.Mkdir(filepath.Join(dir, "ab"), 0o755), os.Symlink("a/b", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, p string
		want   bool
	}{{"/a", "/a", true}, {"/a/b/c", "/a", true}, {"/link/c", "/a", true}, {"/link", "/a/b", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/", "/a", false}, {"/link", "/link", false}} {
		if got, err := leadsInto(root, c.dir, c.p); got != c.want || err != nil {
			t.Errorf("%s in %s: %v, %v", c.dir, c.p, got, err)
		}
	}
}

// A folder of more files than a list may have is refused: its list is not cut.
func TestListsAreNotCut(t *testing.T) {
	root, dir := place(t)
	for _, n := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := list(root, "/", 1, 3, json.NewEncoder(&out)); err != nil || len(infos(t, out.String())) != 3 {
		t.Errorf("3 files: %v", err)
	}
	if err := list(root, "/", 1, 2, json.NewEncoder(io.Discard)); cell.KindOf(err) != cell.Invalid {
		t.Errorf("3 files in a list of 2: %v", err)
	}
}

func TestWatch(t *testing.T) {
	root, dir := place(t)
	stop := make(chan struct{})
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Manage(root, cell.FileAct{Act: cell.FileWatch, Path: "/", Depth: 1}, nil, w, stop)
		w.Close()
	}()
	dec := json.NewDecoder(r)
	next := func() (ev cell.FileEvent) {
		if err := dec.Decode(&ev); err != nil {
			t.Fatal(err)
		}
		return ev
	}
	if ev := next(); ev != (cell.FileEvent{Path: "/"}) {
		t.Fatalf("first: %+v", ev)
	}
	os.Mkdir(filepath.Join(dir, "sub"), 0o755)
	if ev := next(); ev != (cell.FileEvent{Path: "/sub", What: "create"}) {
		t.Errorf("%+v", ev)
	}
	time.Sleep(50 * time.Millisecond) // it is watched from then on
	os.WriteFile(filepath.Join(dir, "sub/f"), []byte("x"), 0o644)
	if ev := next(); ev != (cell.FileEvent{Path: "/sub/f", What: "create"}) {
		t.Errorf("%+v", ev)
	}
	if ev := next(); ev != (cell.FileEvent{Path: "/sub/f", What: "write"}) {
		t.Errorf("%+v", ev)
	}
	close(stop)
	go io.Copy(io.Discard, r)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// cut is a stream that breaks off.
type cut struct{ r io.Reader }

func (c cut) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// What breaks off leaves nothing of itself: no file, or the one that was there.
func TestC28WritesAreWholeOrNotAtAll(t *testing.T) {
	root, dir := place(t)
	if err := write(root, "/d/new", owner{os.Getuid(), os.Getgid()}, cut{strings.NewReader("half")}); err == nil {
		t.Error("no error")
	}
	if list, _ := os.ReadDir(filepath.Join(dir, "d")); len(list) > 0 {
		t.Errorf("there is %v", list)
	}
	at := filepath.Join(dir, "d", "old")
	if err := os.WriteFile(at, []byte("as it was"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := write(root, "/d/old", owner{os.Getuid(), os.Getgid()}, cut{strings.NewReader("half")}); err == nil {
		t.Error("no error")
	}
	if err := Take(root, "/d", os.Getuid(), os.Getgid(), cut{io.LimitReader(pack(t, tar.Header{Name: "old", Typeflag: tar.TypeReg, Mode: 0o600}), 514)}); err == nil {
		t.Error("no error")
	}
	if b, err := os.ReadFile(at); string(b) != "as it was" {
		t.Errorf("%q, %v", b, err)
	}
	before, _ := os.Stat(at)
	if err := write(root, "/d/old", owner{os.Getuid(), os.Getgid()}, strings.NewReader("whole")); err != nil {
		t.Error(err)
	}
	if after, err := os.Stat(at); err != nil || !os.SameFile(before, after) || after.Mode() != 0o640 || after.Size() != 5 {
		t.Errorf("%v, %v", after, err)
	}
}

// A file that the cell created meanwhile is not removed when its write fails, and keeps no tail of
// what it held. What a failed write created is removed.
func TestWritesThatFail(t *testing.T) {
	root, dir := place(t)
	who := owner{os.Getuid(), os.Getgid()}
	theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
	if err := errors.Join(os.WriteFile(theirs, []byte("0123456789"), 0o640), os.Symlink("led", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	testenv.FileSize(t, 4)
	for _, p := range []string{"/theirs", "/ours"} { // putInPlace is told that nothing is there
		if err := putInPlace(root, p, nil, who, nil, strings.NewReader("abcdefgh"), 8); !errors.Is(err, unix.EFBIG) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if b, err := os.ReadFile(theirs); string(b) != "abcd" {
		t.Errorf("%q, %v", b, err)
	}
	if st, err := os.Stat(theirs); err != nil || st.Mode() != 0o640 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := os.Lstat(ours); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := write(root, "/link", who, strings.NewReader("abc")); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "led")); string(b) != "abc" {
		t.Errorf("%q, %v", b, err)
	}
}

// A tree deeper than any path is listed to its end, sent and removed. An error of
// looking into it never makes a list short.
func TestX08DeepTree(t *testing.T) {
	const depth = 2600
	root, dir := place(t)
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i <= depth && err == nil; i++ {
		var next int
		if err = unix.Mkdirat(at, "d", 0o755); err == nil {
			next, err = unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		at = next
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
	out, err := act(root, cell.FileAct{Act: "list", Path: "/", Depth: 2 * depth}, "")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(infos(t, out)); n != depth+1 {
		t.Errorf("%d of %d folders are listed", n, depth+1)
	}
	if err := Send(root, "/d", io.Discard); err != nil {
		t.Error(err)
	}
	if _, err := act(root, cell.FileAct{Act: "remove", Path: "/d"}, ""); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "d")); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
