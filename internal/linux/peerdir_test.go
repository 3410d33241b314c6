package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A symlink that a process put into its root leads nowhere, neither in the middle of a path nor
// at its end.
func TestOpenInRootFollowsNoSymlink(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(top, "dir/sub"), 0o755), os.Symlink(filepath.Join(top, "dir"), filepath.Join(top, "link"))); err != nil {
		t.Fatal(err)
	}
	const list = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	for _, c := range []struct {
		path  string
		flags int
		want  error
	}{
		{"dir", list, nil}, {"dir/sub", list, nil}, {"link", unix.O_PATH | unix.O_NOFOLLOW, nil},
		{"link", list, unix.ENOTDIR}, {"link", unix.O_RDONLY, unix.ELOOP}, {"link/sub", list, unix.ELOOP}, {"link/sub", unix.O_PATH | unix.O_NOFOLLOW, unix.ELOOP}, {"none", list, unix.ENOENT},
	} {
		f, err := OpenInRoot(os.Getpid(), filepath.Join(top, c.path), c.flags)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.path, err, c.want)
		}
		f.Close()
	}
	if f, err := OpenInRoot(os.Getpid(), "/", list); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}
