package evidence

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// SealedFiles are the files in a run's folder that its receipt has the digests of, as far as
// they are there.
func SealedFiles() []string {
	return []string{"manifest.json", "stdout", "stderr", eventsFile, patchFile, "check", callsFile, RecordingFile}
}

// eventsFile is the name of a run's event stream in its folder.
const eventsFile = "events.jsonl"

// RecordingFile is the name of the recording of a run's network, in its folder.
const RecordingFile = "wire.age"

// patchFile is the name of what accept would apply, in a run's folder and among the subjects of its receipt.
const patchFile = "patch"

// OpenRecord opens one of the files in a run's folder. Only regular files are
// records: a FIFO would hold its reader, and a symlink leads to other bytes. The folder
// itself is no symlink either.
func OpenRecord(folder, name string) (*os.File, error) { return recordAt(folder, name, unix.O_RDONLY) }

// CreateRecord opens one of the files in a run's folder for reading and writing, empty. It
// writes to no other place, whatever has taken the place of the file.
func CreateRecord(folder, name string) (*os.File, error) {
	return recordAt(folder, name, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
}

func recordAt(folder, name string, flags int) (*os.File, error) {
	path := filepath.Join(folder, filepath.Base(name))
	dir, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: folder, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, filepath.Base(name), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
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
	return cell.Errorf(cell.Internal, "evidence.record", "", "%s is no regular file", path)
}

func sumRecord(folder, name string) (cell.Digest, error) {
	f, err := OpenRecord(folder, name)
	if err != nil {
		return cell.Digest{}, err
	}
	defer f.Close()
	return cell.SumReader(f)
}

// SealedFile opens one of the files of a run and says which digest its receipt names. There being no such file in the receipt is
// NotFound.
func (m *Manager) SealedFile(r *state.Run, name string) (*os.File, cell.Digest, error) {
	const opName = "evidence.SealedFile"
	entry, err := m.cfg.Ledger.Lookup(runKey(r))
	if err != nil {
		return nil, cell.Digest{}, cell.Errorf(cell.NotFound, opName, "", "run %s has no receipt: %w", r.ID, err)
	}
	p, err := predicate[runPredicate](entry)
	if err != nil {
		return nil, cell.Digest{}, err
	}
	d, ok := p.Files[name]
	if !ok {
		return nil, d, cell.Errorf(cell.NotFound, opName, "", "the receipt of run %s names no %s", r.ID, name)
	}
	f, err := OpenRecord(r.Folder, name)
	if os.IsNotExist(err) {
		err = m.gone(opName, r, name, name, "")
	}
	return f, d, err
}
