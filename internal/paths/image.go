package paths

import "strings"

// IsImage reports whether the name of an image of the OCI kind is a path of this host.
func IsImage(s string) bool {
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "/") {
		return true
	}
	for _, end := range []string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(s, end) {
			return true
		}
	}
	return false
}
