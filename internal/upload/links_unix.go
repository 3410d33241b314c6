//go:build unix

package upload

import (
	"io/fs"
	"syscall"
)

// idOf identifies a file that has several names.
func idOf(st fs.FileInfo) (fileID, bool) {
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.IsDir() || s.Nlink < 2 {
		return fileID{}, false
	}
	return fileID{uint64(s.Dev), s.Ino}, true
}
