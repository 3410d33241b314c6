package engine

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
)

// openRecord opens one of the files in a run's folder. Only regular files are
// records: a FIFO would hold its reader, and a symlink leads to other bytes.
func openRecord(folder, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(folder, filepath.Base(name)), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = cell.Errorf(cell.Internal, "engine.record", "", "%s is no regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func sumRecord(folder, name string) (cell.Digest, error) {
	f, err := openRecord(folder, name)
	if err != nil {
		return cell.Digest{}, err
	}
	defer f.Close()
	return cell.SumReader(f)
}
