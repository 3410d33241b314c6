//go:build !linux

package home

// Locked is false: there is no daemon here that could hold a lock.
func (h Home) Locked() bool { return false }
