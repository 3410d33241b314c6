//go:build linux

package gitdir

import (
	"os/exec"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
)

// Program is the file of the program git on this host, in the usual places or in path, a list as in PATH.
func Program(path string) (string, error) {
	for _, dir := range append([]string{"/usr/bin", "/usr/local/bin"}, filepath.SplitList(path)...) {
		if at := filepath.Join(dir, "git"); filepath.IsAbs(at) {
			if found, err := exec.LookPath(at); err == nil {
				return found, nil
			}
		}
	}
	return "", cell.Errorf(cell.Unsupported, "gitdir.Program", "install git on the daemon's host", "it takes git on the daemon's host, which is not in PATH there")
}
