//go:build unix

package notice

import (
	"os/exec"
	"syscall"
)

// group has a command end with all that it started.
func group(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
