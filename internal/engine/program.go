package engine

import (
	"path/filepath"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
)

// program is a file that a template is made of, such as that of its interpreter:
// where it lies on the host, what it holds, and what it looked like when that was
// found out.
type program struct {
	Path  string      `json:"path"` // on the host
	Sum   cell.Digest `json:"sum"`
	Looks looks       `json:"looks"`
}

// looks tell whether a file was changed, without reading it.
type looks struct {
	Dev, Ino     uint64
	Size         int64
	MTime, CTime int64 // nanoseconds
}

func looksOf(st *syscall.Stat_t) looks {
	return looks{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// programAt finds the first of the paths in a cell that is there.
func programAt(mounts []cell.Mount, paths []string) (program, error) {
	for _, at := range paths {
		host, ok := fileOf(mounts, at)
		if !ok {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(host, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		return fileAt(host)
	}
	return program{}, nil // in a part of the cell that is its own
}

// fileAt is what a file of the host is now.
func fileAt(path string) (program, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return program{}, err
	}
	sum, err := sumFile(path)
	return program{path, sum, looksOf(&st)}, err
}

// changedSince reports what the file is now, if it is not what it was.
func changedSince(p *program) (now cell.Digest, changed bool) {
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

// fileOf is where the file that a path of the cell leads to lies on the host.
func fileOf(mounts []cell.Mount, at string) (string, bool) {
	_, disk, ok := onHost(mounts, at)
	if root := image.RootOf(mounts); !ok || root != "/" {
		return disk, ok
	}
	real, err := filepath.EvalSymlinks(disk)
	return real, err == nil
}
