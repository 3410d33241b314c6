package oci

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/linux"
)

// Made says how an image was made here.
type Made struct {
	From cell.Digest `json:"from,omitzero"`  // the image below its layer; zero: none
	Step string      `json:"step,omitempty"` // the instruction that made its layer
	Run  string      `json:"run,omitempty"`  // the run that did
	Ref  string      `json:"ref,omitempty"`  // what it was made as, on the way to: the Dockerfile
}

// Derive makes an image of another one and a layer over it, which write writes as a tar (OCI image-spec,
// layer.md). img has what is said of it: ID, Made, Env, User, Workdir. The files of base are links to
// the same files, none of which any cell or store changes; nil is an image without files. An image that
// is kept already is not made again, and write is not called.
func (s *Store) Derive(ctx context.Context, base *Image, img Image, write func(*tar.Writer) error) (Image, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return img, err
	}
	unlock := s.lock(img.ID)
	defer unlock()
	if have, err := s.Get(img.ID); err == nil {
		s.Use(img.ID)
		return have, nil
	} else if k := cell.KindOf(err); k != cell.NotFound && k != cell.Corrupt {
		return img, err
	}
	stage := filepath.Join(s.dir, random()+partial)
	failpoint.Step("make the folder of an image's step")
	if err := os.Mkdir(stage, 0o700); err != nil {
		return img, err
	}
	err := s.derive(ctx, stage, base, img, write)
	if err = errors.Join(err, linux.RemoveTree(stage)); err != nil {
		return img, err
	}
	return s.Get(img.ID)
}

func (s *Store) derive(ctx context.Context, stage string, base *Image, img Image, write func(*tar.Writer) error) (err error) {
	made := filepath.Join(stage, "image")
	root := filepath.Join(made, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	u, err := newUnpacker(root, s.lim, s.own)
	if err != nil {
		return err
	}
	defer u.close()
	u.spare = func(n int64) error { return room(stage, n) }
	if base != nil {
		unlock := s.lock(base.ID) // it is not removed meanwhile; an image is locked before the one below it
		err := u.adopt(ctx, base.Root)
		unlock()
		if errors.Is(err, fs.ErrNotExist) {
			err = cell.Errorf(cell.NotFound, "oci.Derive", "try again", "the image below was removed: %w", err)
		}
		if err != nil {
			return err
		}
		u.count, img.Layers = base.Counts, base.Layers
		u.count.Files = 0 // finish counts them
	}
	if err := u.spare(0); err != nil {
		return err
	}
	if write != nil {
		if err := u.written(ctx, write); err != nil {
			return err
		}
		img.Layers++
	}
	if err := u.finish(); err != nil {
		return err
	}
	img.Created, img.Pulled = time.Now().UTC(), time.Now().UTC()
	img.Counts, img.OneID, img.Refs = u.count, !s.own, nil
	return s.place(made, img)
}

// written unpacks a layer while it is written.
func (u *unpacker) written(ctx context.Context, write func(*tar.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		t := tar.NewWriter(w)
		err := write(t)
		if err == nil {
			err = t.Close()
		}
		done <- err
		w.CloseWithError(err)
	}()
	_, err := u.layer(ctx, r, descriptor{MediaType: typeLayer, file: "the step's"})
	r.CloseWithError(context.Canceled)
	if werr := <-done; werr != nil && !errors.Is(werr, context.Canceled) {
		return werr // which is why it could not be read
	}
	return err
}

// adopt makes the files of another image this one's: folders anew, everything else as links.
func (u *unpacker) adopt(ctx context.Context, dir string) error {
	from, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(from), dir)
	defer f.Close()
	to, err := u.openDir("")
	if err != nil {
		return err
	}
	defer to.Close()
	return u.adoptDir(ctx, f, to, "")
}

// openDir opens a folder of the image for making names in it.
func (u *unpacker) openDir(real string) (*os.File, error) {
	fd, err := u.openReal(real)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), real), nil
}

func (u *unpacker) adoptDir(ctx context.Context, from, to *os.File, real string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: real, Err: err}
	}
	u.dirs[real] = rights{mode: st.Mode & 0o7777, uid: int(st.Uid), gid: int(st.Gid), mtime: time.Unix(st.Mtim.Unix())}
	entries, err := from.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, at := e.Name(), join(real, e.Name())
		if u.names++; u.names > u.lim.Files {
			return tooMuch("it has more than %d names", u.lim.Files)
		}
		if err := u.text.Spend(int64(len(at))); err != nil {
			return tooMuch("%w", err)
		}
		if !e.IsDir() {
			if err := u.adoptFile(from, to, name, at); err != nil {
				return err
			}
			continue
		}
		if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: at, Err: err}
		}
		if err := u.adoptBelow(ctx, from, to, name, at); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) adoptBelow(ctx context.Context, from, to *os.File, name, at string) error {
	const how = unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW
	a, err := unix.Openat(int(from.Fd()), name, unix.O_RDONLY|how, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: at, Err: err}
	}
	f := os.NewFile(uintptr(a), name)
	defer f.Close()
	b, err := unix.Openat(int(to.Fd()), name, unix.O_PATH|how, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: at, Err: err}
	}
	t := os.NewFile(uintptr(b), at)
	defer t.Close()
	return u.adoptDir(ctx, f, t, at)
}

// adoptFile links a file, or copies it where it has as many links as it can have.
func (u *unpacker) adoptFile(from, to *os.File, name, at string) error {
	err := unix.Linkat(int(from.Fd()), name, int(to.Fd()), name, 0)
	if err == unix.EMLINK {
		err = copyFile(from, to, name, u.own, u.spare)
	}
	if err != nil {
		return &os.PathError{Op: "link", Path: at, Err: err}
	}
	return nil
}

// copyFile copies a file with its rights and its time, and with its owner if own. spare says whether there is room for it.
func copyFile(from, to *os.File, name string, own bool, spare func(int64) error) error {
	a, err := unix.Openat(int(from.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(a), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(a, &st); err != nil {
		return err
	}
	if err := spare(st.Size); err != nil {
		return err
	}
	b, err := unix.Openat(int(to.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	t := os.NewFile(uintptr(b), name)
	defer t.Close()
	if _, err := io.Copy(t, f); err != nil {
		return err
	}
	if own {
		if err := unix.Fchown(b, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(b, st.Mode&0o777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(int(to.Fd()), name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// place gives an image that is complete its name.
func (s *Store) place(made string, img Image) error {
	b, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(made, "image.json"), append(b, '\n'), 0o600); err != nil {
		return err
	}
	// What has its final name is complete, also after a loss of power.
	d, err := os.Open(made)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	failpoint.Step("put an image in its place")
	if err := linux.RemoveTree(s.folder(img.ID)); err != nil { // one that can't be read
		return err
	}
	return os.Rename(made, s.folder(img.ID))
}
