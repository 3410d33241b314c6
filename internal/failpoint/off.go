//go:build !faults

package failpoint

// Step says that what is about to be changed.
func Step(what string) {}

// Program is what a copy in memory of this program is called: short.
func Program(short string) string { return short }
