package bound

import (
	"archive/tar"
	"strings"
)

// Sparse reports whether an entry of a tar archive is a file with holes (GNU tar's, also
// in PAX records): a few bytes of the archive can be a file of any length, so that a limit
// on the archive is none on what it holds.
func Sparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return false
}
