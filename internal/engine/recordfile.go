package engine

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// openRecord opens one of the files in a run's folder. Only regular files are
// records: a FIFO would hold its reader, and a symlink leads to other bytes. The folder
// itself is no symlink either.
func openRecord(folder, name string) (*os.File, error) { return recordAt(folder, name, unix.O_RDONLY) }

// createRecord opens one of the files in a run's folder for reading and writing, empty. It
// writes to no other place, whatever has taken the place of the file.
func createRecord(folder, name string) (*os.File, error) {
	return recordAt(folder, name, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
}

func recordAt(folder, name string, flags int) (*os.File, error) {
	path := filepath.Join(folder, filepath.Base(name))
	dir, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: folder, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, filepath.Base(name), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err == unix.ELOOP || err == unix.ENXIO || err == unix.EISDIR { // a symlink, a FIFO or a socket, a folder
		return nil, noRecord(path)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = noRecord(path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func noRecord(path string) error {
	return cell.Errorf(cell.Internal, "engine.record", "", "%s is no regular file", path)
}

func sumRecord(folder, name string) (cell.Digest, error) {
	f, err := openRecord(folder, name)
	if err != nil {
		return cell.Digest{}, err
	}
	defer f.Close()
	return cell.SumReader(f)
}

// readState reads a file of the state that is no record of a run. It is a regular file,
// too, and nothing that its name leads to.
func readState(path string) ([]byte, error) {
	return durable.ReadFile(durable.Disk(filepath.Dir(path)), filepath.Base(path))
}
