//go:build !unix

package cli

import (
	"io/fs"
	"os"
)

// openSecretFile opens a file for reading.
func openSecretFile(path string) (*os.File, error) { return os.Open(path) }

// secretFileRights returns "": file modes have no meaning here.
func secretFileRights(fs.FileInfo) string { return "" }
