package api

// What Isolation says of runs, cells and all that is told of them.
const (
	Isolated    = "isolated"
	NotIsolated = "not isolated" // backend none: commands run on the host, as the daemon's user
)

// IsolationOf is the word for a backend.
func IsolationOf(backend string) string {
	if backend == "none" {
		return NotIsolated
	}
	return Isolated
}
