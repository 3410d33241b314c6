//go:build !faults

package fault

// Step says that what is about to be changed.
func Step(what string) {}
