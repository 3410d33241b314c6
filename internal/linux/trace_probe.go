package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// ProbeTrace has a forked child ask to be traced by its parent. nil means that
// programs may trace their children here.
func ProbeTrace() error {
	s := &Script{}
	s.Stdio([3]*os.File{})
	s.Probe("trace", unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0)
	s.Report()
	s.Exit()
	c, err := Spawn(s, SpawnOptions{})
	if err != nil {
		return err
	}
	c.Wait()
	c.PIDFD.Close()
	for _, p := range c.Probes {
		if p.Errno != 0 {
			return os.NewSyscallError("ptrace", p.Errno)
		}
	}
	return nil
}
