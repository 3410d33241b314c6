//go:build !linux

package paths

// Locked is false: there is no daemon here that could hold a lock.
func (h Home) Locked() bool { return false }
