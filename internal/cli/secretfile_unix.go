//go:build unix

package cli

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openSecretFile opens a file for reading. It follows no symbolic link and does not wait for a
// pipe's writer.
func openSecretFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// secretFileRights returns the rule that a file's owner or mode breaks; "" for none.
func secretFileRights(info fs.FileInfo) string {
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to another user (uid %d)", st.Uid)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Sprintf("has mode %04o, and a secret is readable by its owner alone", info.Mode().Perm())
	}
	return ""
}
