package fuseproxy

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A file that the host has changed is another one for the guest's kernel, whatever that
// asked of it since, and so is one that has taken its place; one that the guest changes is
// the same.
func TestForeignChanges(t *testing.T) {
	tree := t.TempDir()
	at := tree + "/f"
	write(t, at, "before")
	s, err := New(openDir(t, tree), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(op uint32, node uint64, body ...any) []byte {
		t.Helper()
		var a answer
		out := s.handle(message(op, node, body...), &a)
		if e := unix.Errno(-int32(binary.NativeEndian.Uint32(out[4:]))); e != 0 {
			t.Fatalf("%d: %v", op, e)
		}
		return out[outSize:]
	}
	last := uint64(0)
	look := func(what string, another bool) {
		t.Helper()
		n := binary.NativeEndian.Uint64(ask(opLookup, rootNode, "f"))
		if (n != last) != another {
			t.Errorf("%s: it was %d and is %d", what, last, n)
		}
		last = n
	}
	attributes := func() { ask(opGetattr, last, uint32(0), uint32(0), uint64(0)) }
	look("the first time", true)
	attributes()
	look("again", false)

	write(t, at, "after, and longer")
	attributes()
	look("written by the host", true)
	write(t, at+"2", "in its place")
	if err := os.Rename(at+"2", at); err != nil {
		t.Fatal(err)
	}
	look("replaced by the host", true)

	writes := binary.NativeEndian.Uint64(ask(opOpen, last, uint32(unix.O_WRONLY), uint32(0)))
	put := func(text string) {
		ask(opWrite, last, writes, uint64(0), uint32(len(text)), uint32(0), uint64(0), uint64(0), []byte(text))
	}
	look("open", false)
	put("by the guest, at greater length")
	look("written by the guest", false)
	put("again")
	ask(opRelease, last, writes, uint32(0), uint32(0), uint64(0))
	look("written and closed by the guest", false)
	ask(opSetattr, last, uint32(setMode), uint32(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0),
		uint32(0), uint32(0), uint32(0), uint32(0o600), uint32(0), uint32(0), uint32(0), uint32(0))
	if st, err := os.Stat(at); err != nil || st.Mode() != 0o600 {
		t.Fatal(st.Mode(), err)
	}
	look("another mode by the guest", false)
	if err := os.Chmod(at, 0o644); err != nil {
		t.Fatal(err)
	}
	look("another mode by the host", true)
}

// What the host changes is read by the guest after a second.
func TestForeignChangesAreSeen(t *testing.T) {
	b := newBed(t)
	write(t, b.tree+"/d/f", "before")
	for range 2 {
		if got := read(t, b.mnt+"/d/f"); got != "before" {
			t.Fatal(got)
		}
	}
	write(t, b.tree+"/d/f", "after, and longer")
	read(t, b.mnt+"/d/f")
	time.Sleep((keepFor*1000 + 200) * time.Millisecond)
	if got := read(t, b.mnt+"/d/f"); got != "after, and longer" {
		t.Errorf("%q", got)
	}
	if st, err := os.Stat(b.mnt + "/d/f"); err != nil || st.Size() != 17 {
		t.Error(st, err)
	}
}

// A notice that waits in the kernel for operations in its directory doesn't block
// the answer that they wait for.
func TestNoticeWaitsForARequest(t *testing.T) {
	b := newBed(t)
	write(t, b.tree+"/d/f", "before")
	cmd := exec.Command("sh", "-c", "read go && exec mkdir new")
	cmd.Dir = b.mnt + "/d"
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	run(t, b.mnt+"/d", "stat", "f") // its kernel knows it
	write(t, b.tree+"/d/f", "after, and longer")
	b.hold()
	in.Write([]byte("go\n"))
	time.Sleep(300 * time.Millisecond) // it has d now, and waits
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	heard := make(chan error, 1)
	go func() { heard <- b.server.Refresh(ctx) }()
	time.Sleep(300 * time.Millisecond) // so does the notice
	b.courier.GoOn()
	if err := <-heard; err != nil {
		t.Error(err)
		unix.Unmount(b.mnt, unix.MNT_FORCE) // or everything waits for ever
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
