package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/failpoint"
)

// Disk returns the FS of a directory of the host, which must exist.
func Disk(dir string) FS { return disk{dir} }

type disk struct{ dir string }

// path turns a name into a path of the host.
func (d disk) path(op, name string) (string, error) {
	local := filepath.FromSlash(name)
	if !filepath.IsLocal(local) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return filepath.Join(d.dir, local), nil
}

func (d disk) CreateTemp(name string, perm fs.FileMode) (File, error) {
	if _, err := d.path("create", name); err != nil {
		return nil, err
	}
	failpoint.Step("create " + name)
	for {
		var random [4]byte
		rand.Read(random[:])
		temp := name + "." + hex.EncodeToString(random[:]) + partialSuffix
		p, err := d.path("create", temp)
		if err != nil {
			return nil, err
		}
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := f.Chmod(perm); err != nil { // whatever the umask is
			f.Close()
			os.Remove(p)
			return nil, err
		}
		return diskFile{f, temp}, nil
	}
}

func (d disk) OpenAppend(name string) (File, error) {
	p, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := openRegular(p, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	return diskFile{f, name}, nil
}

func (d disk) Open(name string) (Reader, error) {
	p, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := openRegular(p, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return diskReader{f}, nil
}

var errNotRegular = errors.New("it is no regular file")

// openRegular opens a file that is there. What has taken its place is an error.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|asItIs, 0)
	if err != nil {
		if st, lerr := os.Lstat(path); lerr == nil && !st.Mode().IsRegular() {
			err = &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
		}
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (d disk) Rename(from, to string) error {
	p, err := d.path("rename", from)
	if err != nil {
		return err
	}
	q, err := d.path("rename", to)
	if err != nil {
		return err
	}
	if filepath.Dir(p) != filepath.Dir(q) {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrInvalid}
	}
	failpoint.Step("rename " + from)
	return os.Rename(p, q)
}

func (d disk) Remove(name string) error {
	p, err := d.path("remove", name)
	if err != nil {
		return err
	}
	failpoint.Step("remove " + name)
	return os.Remove(p)
}

func (d disk) Mkdir(name string, perm fs.FileMode) error {
	p, err := d.path("mkdir", name)
	if err != nil {
		return err
	}
	failpoint.Step("mkdir " + name)
	return os.Mkdir(p, perm)
}

func (d disk) SyncDir(name string) error {
	p, err := d.path("sync", name)
	if err != nil {
		return err
	}
	failpoint.Step("sync directory " + name)
	f, err := os.OpenFile(p, os.O_RDONLY|directoryOnly, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d disk) List(name string) ([]Info, error) {
	p, err := d.path("list", name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(p)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, infoOf(fi))
	}
	return infos, nil
}

func infoOf(fi fs.FileInfo) Info {
	return Info{Name: fi.Name(), Size: fi.Size(), Perm: fi.Mode().Perm(), Dir: fi.IsDir()}
}

type diskFile struct {
	*os.File
	name string
}

func (f diskFile) Name() string { return f.name }

func (f diskFile) Write(b []byte) (int, error) {
	failpoint.Step("write " + f.name)
	return f.File.Write(b)
}

func (f diskFile) SyncData() error {
	failpoint.Step("sync " + f.name)
	return pathError("sync", f.name, syncData(f.File))
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

type diskReader struct{ *os.File }

func (r diskReader) Info() (Info, error) {
	fi, err := r.Stat()
	if err != nil {
		return Info{}, err
	}
	return infoOf(fi), nil
}
