//go:build !unix

package notice

import "os/exec"

// group does nothing: no daemon runs here.
func group(*exec.Cmd) {}
