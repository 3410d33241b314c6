package api

// The values of Isolation in runs, cells and their parts.
const (
	Isolated    = "isolated"
	NotIsolated = "not isolated" // backend none: commands run on the host, as the daemon's user
)

// IsolationOf returns the value for a backend.
func IsolationOf(backend string) string {
	if backend == "none" {
		return NotIsolated
	}
	return Isolated
}
