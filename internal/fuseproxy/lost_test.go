package fuseproxy

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Writes that the kernel had cached and for which there is no room are not taken for
// written, not in part either, and the next write reports it, once; no other does.
func TestCachedWritesThatFail(t *testing.T) {
	if why := os.Getenv(insideEnv); why != "" {
		t.Skip("needs mounts")
	}
	tree := t.TempDir()
	if err := unix.Mount("tmpfs", tree, "tmpfs", 0, "size=64k,mode=755"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(tree, unix.MNT_DETACH)
	write(t, filepath.Join(tree, "f"), "")
	s, err := New(openDir(t, tree), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ask := func(op uint32, node uint64, body ...any) (unix.Errno, []byte) {
		t.Helper()
		var a answer
		out := s.handle(message(op, node, body...), &a)
		return unix.Errno(-int32(binary.NativeEndian.Uint32(out[4:]))), out[outSize:]
	}
	_, out := ask(opLookup, rootNode, "f")
	f := binary.NativeEndian.Uint64(out)
	open := func(flags uint32) uint64 {
		_, out := ask(opOpen, f, flags, uint32(0))
		return binary.NativeEndian.Uint64(out)
	}
	writes, reads := open(unix.O_WRONLY), open(unix.O_RDONLY)
	put := func(at uint64, n int, flags uint32) (unix.Errno, []byte) {
		return ask(opWrite, f, writes, at, uint32(n), flags, uint64(0), uint64(0), make([]byte, n))
	}
	look := func(want unix.Errno, flags uint32, fh uint64) {
		t.Helper()
		if e, _ := ask(opGetattr, f, flags, uint32(0), fh); e != want {
			t.Errorf("%v, not %v", e, want)
		}
	}
	if e, out := put(0, 32<<10, writeCached); e != 0 || binary.NativeEndian.Uint32(out) != 32<<10 {
		t.Fatal("there is room", e)
	}
	look(0, byFile, writes)
	if e, out := put(32<<10, 64<<10, 0); e != 0 || binary.NativeEndian.Uint32(out) != 32<<10 {
		t.Error("a waiting writer learns how much was written", e)
	}
	look(0, byFile, writes)
	if err := os.Truncate(filepath.Join(tree, "f"), 32<<10); err != nil {
		t.Fatal(err)
	}
	if e, _ := put(32<<10, 64<<10, writeCached); e != unix.ENOSPC {
		t.Error("half of it is not all", e)
	}
	look(0, 0, 0)
	look(0, byFile, reads)
	look(0, byFile, 999)
	look(unix.ENOSPC, byFile, writes)
	look(0, byFile, writes)
	put(64<<10, 4096, writeCached)
	if err := os.Truncate(filepath.Join(tree, "f"), 0); err != nil {
		t.Fatal(err)
	}
	put(0, 4096, writeCached)
	look(0, byFile, writes)
}
