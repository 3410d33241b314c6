package sftpd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"
)

// bed is a session on a directory.
type bed struct {
	*sftp.Client
	t       *testing.T
	dir     string // outside
	root    string // the cell's
	changed *atomic.Int32
	served  chan error
}

func newBed(t *testing.T) *bed {
	b := &bed{t: t, dir: t.TempDir(), changed: new(atomic.Int32), served: make(chan error, 1)}
	b.root = filepath.Join(b.dir, "root")
	b.must(os.MkdirAll(b.root+"/work", 0o755))
	b.must(os.WriteFile(b.dir+"/secret", []byte("secret"), 0o644))
	root, err := os.OpenFile(b.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	b.must(err)
	ours, theirs := net.Pipe()
	go func() {
		defer root.Close()
		b.served <- Serve(theirs, Request{Root: root, Start: "/work", UID: os.Getuid(), GID: os.Getgid(), Changed: func() { b.changed.Add(1) }})
	}()
	b.Client, err = sftp.NewClientPipe(ours, ours)
	b.must(err)
	t.Cleanup(func() { b.Close(); ours.Close() })
	return b
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) put(at, text string) {
	b.t.Helper()
	f, err := b.Create(at)
	b.must(err)
	_, err = f.Write([]byte(text))
	b.must(errors.Join(err, f.Close()))
}

func (b *bed) has(at, want string) {
	b.t.Helper()
	if got, err := os.ReadFile(filepath.Join(b.root, at)); err != nil || string(got) != want {
		b.t.Errorf("%s: %q %v, want %q", at, got, err, want)
	}
}

func TestFiles(t *testing.T) {
	b := newBed(t)
	if wd, err := b.Getwd(); err != nil || wd != "/work" {
		t.Error(wd, err)
	}
	b.put("a", "one")
	b.has("work/a", "one")
	b.put("a", "2")
	b.has("work/a", "2")
	f, err := b.OpenFile("a", os.O_WRONLY|os.O_APPEND)
	b.must(err)
	f.Write([]byte("3"))
	b.must(f.Close())
	b.has("work/a", "23")
	f, err = b.OpenFile("a", os.O_RDWR)
	b.must(err)
	f.WriteAt([]byte("x"), 5)
	back := make([]byte, 6)
	if n, err := f.ReadAt(back, 0); n != 6 || err != nil && err != io.EOF {
		t.Error(n, err)
	}
	b.must(f.Close())
	if !bytes.Equal(back, []byte("23\x00\x00\x00x")) {
		t.Errorf("%q", back)
	}
	if _, err := b.OpenFile("a", os.O_WRONLY|os.O_CREATE|os.O_EXCL); err == nil {
		t.Error("a file that is there was made")
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	b.put("/work/large", string(large))
	b.has("work/large", string(large))
	r, err := b.Open("large")
	b.must(err)
	var got bytes.Buffer
	r.WriteTo(&got)
	if !bytes.Equal(got.Bytes(), large) {
		t.Error("it is read as something else")
	}

	b.must(b.Mkdir("d"))
	b.must(b.Symlink("../a", "d/l"))
	if to, err := b.ReadLink("d/l"); to != "../a" || err != nil {
		t.Error(to, err)
	}
	if st, err := b.Stat("d/l"); err != nil || !st.Mode().IsRegular() || st.Size() != 6 {
		t.Error(st, err)
	}
	if st, err := b.Lstat("d/l"); err != nil || st.Mode()&fs.ModeSymlink == 0 || st.Name() != "l" {
		t.Error(st, err)
	}
	b.must(b.Link("a", "b"))
	if err := b.Rename("a", "b"); err == nil {
		t.Error("renaming replaced a file")
	}
	b.must(b.PosixRename("large", "b"))
	b.has("work/b", string(large))
	b.must(b.Chmod("b", 0o4751))
	at := time.Unix(1_700_000_000, 0)
	b.must(b.Chtimes("b", at, at))
	b.must(b.Truncate("b", 4))
	if st, err := os.Stat(b.root + "/work/b"); err != nil || st.Mode() != 0o751 || st.Size() != 4 {
		t.Error(st.Mode(), st.Size(), err)
	}
	b.must(b.Chtimes("b", at, at))
	if st, _ := b.Stat("b"); !st.ModTime().Equal(at) {
		t.Error(st.ModTime())
	}
	list, err := b.ReadDir(".")
	b.must(err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"a", "b", "d"}) {
		t.Error(names)
	}
	if err := b.RemoveDirectory("d"); err == nil {
		t.Error("a directory with something in it was removed")
	}
	b.must(b.Remove("d/l"))
	b.must(b.RemoveDirectory("d"))
	if _, err := b.Stat("d"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	b.Close()
	if err := <-b.served; err != nil {
		t.Error(err)
	}
	if b.changed.Load() == 0 {
		t.Error("nobody was told of changes")
	}
}

// What lies outside of the root is out of reach, wherever symlinks lead.
func TestPathsStayInside(t *testing.T) {
	b := newBed(t)
	for _, to := range []string{b.dir, "../..", "/../../..", b.dir + "/secret"} {
		os.Remove(b.root + "/work/l")
		b.must(os.Symlink(to, b.root+"/work/l"))
		for _, at := range []string{"l", "l/secret", "/work/l/secret", "../../secret", "l/../../secret"} {
			if f, err := b.Open(at); err == nil {
				text, _ := io.ReadAll(f)
				t.Errorf("%s by %s: read %q", at, to, text)
			}
			if at == "l" {
				continue
			}
			b.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
			b.Remove(at)
			b.PosixRename(at, "taken")
			b.Link(at, "taken")
			b.Mkdir(at)
			b.Truncate(at, 0)
		}
	}
	if text, err := os.ReadFile(b.dir + "/secret"); string(text) != "secret" {
		t.Errorf("%q %v", text, err)
	}
	if list, _ := os.ReadDir(b.dir); len(list) != 2 {
		t.Error(list)
	}
}

// What is no regular file is neither opened nor waited for.
func TestOnlyRegularFiles(t *testing.T) {
	b := newBed(t)
	b.must(unix.Mkfifo(b.root+"/work/pipe", 0o644))
	l, err := net.Listen("unix", b.root+"/work/sock")
	b.must(err)
	defer l.Close()
	for _, at := range []string{"pipe", "sock", "/work"} {
		if _, err := b.Open(at); err == nil {
			t.Errorf("%s is open", at)
		}
		if _, err := b.OpenFile(at, os.O_RDWR|os.O_CREATE); err == nil {
			t.Errorf("%s is open to be written", at)
		}
	}
	if err := b.Chmod("pipe", 0); err == nil {
		t.Error("the mode of a pipe was changed")
	}
	for _, act := range []func() error{func() error { return b.RemoveDirectory("/") }, func() error { return b.PosixRename("/", "x") }, func() error { return b.Mkdir("/") }, func() error { return b.Link("/work", "y") }} {
		if act() == nil {
			t.Error("the root was changed")
		}
	}
}

// What is appended comes to the end, in order, whether a client counts from there or from the beginning.
func TestAppends(t *testing.T) {
	b := newBed(t)
	long := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	b.put("a", "begin")
	f, err := b.OpenFile("a", os.O_WRONLY|os.O_APPEND)
	b.must(err)
	for part := range slices.Chunk(long, 30_000) {
		_, err = f.Write(part)
		b.must(err)
	}
	b.must(f.Close())
	b.has("work/a", "begin"+string(long))
	f, err = b.OpenFile("a", os.O_WRONLY|os.O_APPEND)
	b.must(err)
	at := int64(5 + len(long))
	_, err = f.Seek(at, io.SeekStart)
	b.must(err)
	_, err = f.ReadFrom(bytes.NewReader(long)) // several requests at once
	b.must(err)
	b.must(f.Close())
	b.has("work/a", "begin"+string(long)+string(long))
}

func TestSessionsHaveBounds(t *testing.T) {
	b := newBed(t)
	b.put("a", "x")
	var many []*sftp.File
	for {
		f, err := b.Open("a")
		if err != nil {
			break
		}
		if many = append(many, f); len(many) > mostFiles {
			t.Fatal("there is no end")
		}
	}
	for _, f := range many {
		f.Close()
	}
	for range 2 * mostLists {
		if _, err := b.ReadDir("/work"); err != nil {
			t.Fatal(err)
		}
	}
	f, err := b.Open("a")
	b.must(err)
	f.Close()
}

// packet is a packet of the protocol.
func packet(kind byte, id uint32, body ...[]byte) []byte {
	p := []byte{0, 0, 0, 0, kind}
	p = binary.BigEndian.AppendUint32(p, id)
	for _, b := range body {
		p = append(p, b...)
	}
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	return p
}

func text(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }

// FuzzSession: whatever a client sends, the process goes on, and nothing outside of the root is touched.
func FuzzSession(f *testing.F) {
	const open, lstat, setstat, fsetstat, opendir, readdir, mkdir, rename, symlink, extended = 3, 7, 9, 10, 11, 12, 14, 18, 20, 200
	word := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for _, p := range [][]byte{
		packet(setstat, 1, text("a"), word(1)), packet(setstat, 1, text("a"), word(4), []byte{1}), packet(setstat, 1, text("a"), word(8), word(1)), packet(setstat, 1, text("a"), word(1<<31), word(9)),
		packet(open, 1, text("a"), word(1), word(0)), append(packet(open, 1, text("a"), word(1), word(0)), packet(fsetstat, 2, text("0"), word(1))...),
		packet(opendir, 1, text("/")), append(packet(opendir, 1, text("/")), packet(readdir, 2, text("0"))...), packet(lstat, 1, text("../../secret")),
		packet(mkdir, 1, text("d"), word(4)), packet(rename, 1, text("a"), text("../../b")), packet(symlink, 1, text("/"), text("l")), packet(extended, 1, text("posix-rename@openssh.com"), text("a")),
		packet(extended, 1, text("hardlink@openssh.com"), text("a")), packet(1, 9), packet(255, 9), {0, 0, 0, 1}, {255, 255, 255, 255, 3},
	} {
		f.Add(p)
	}
	dir := f.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root+"/work", 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(root+"/work/a", []byte("x"), 0o644); err != nil {
			t.Skip(err) // it is a directory by now
		}
		at, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
		in := io.MultiReader(bytes.NewReader([]byte{0, 0, 0, 5, 1, 0, 0, 0, 3}), bytes.NewReader(data))
		Serve(struct {
			io.Reader
			io.WriteCloser
		}{in, discard{}}, Request{Root: at, Start: "/work", UID: os.Getuid(), GID: os.Getgid()})
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
	})
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) Close() error                { return nil }
