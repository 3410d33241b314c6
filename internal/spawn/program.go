package spawn

import (
	"os"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

func looksOf(st *syscall.Stat_t) state.FileStamp {
	return state.FileStamp{Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano()}
}

// programAt finds the first of the paths in a cell that is there.
func (m *Manager) programAt(mounts []cell.Mount, paths []string) (state.Program, error) {
	for _, at := range paths {
		host, ok := m.cfg.FileOf(mounts, at)
		if !ok {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(host, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		return fileAt(host)
	}
	return state.Program{}, nil // in a part of the cell that is its own
}

// fileAt is what a file of the host is now.
func fileAt(path string) (state.Program, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return state.Program{}, err
	}
	sum, err := sumFile(path)
	return state.Program{Path: path, Sum: sum, Looks: looksOf(&st)}, err
}

// changedSince reports what the file is now, if it is not what it was.
func changedSince(p *state.Program) (now cell.Digest, changed bool) {
	if p.Path == "" {
		return now, false
	}
	var st syscall.Stat_t
	if err := syscall.Stat(p.Path, &st); err == nil && looksOf(&st) == p.Looks {
		return p.Sum, false
	}
	now, err := sumFile(p.Path)
	return now, err != nil || now != p.Sum
}

func sumFile(path string) (cell.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return cell.Digest{}, err
	}
	defer f.Close()
	return cell.SumReader(f)
}
