// Package reexec starts this same executable in another role and talks to it.
//
// The role is argv[0], decided before flags, configuration or logging exist.
// The parent hands over one socket as descriptor 3:
//
//	parent                         child
//	  │ start, argv[0] = role        │
//	  │ ── message + files ────────▶ │   typed, see Conn
//	  │ ◀─────────── ready / failed  │
//
// A role that finds no socket at descriptor 3 must exit at once (Inherited
// fails).
package reexec

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// prefix begins argv[0] of every role.
const prefix = "pando-"

// Role returns the role that argv0 names, if it names one.
func Role(argv0 string) (string, bool) {
	return strings.CutPrefix(filepath.Base(argv0), prefix)
}

// Self is this executable.
const Self = "/proc/self/exe"

// Start runs this executable in a role with attr, and returns the process and
// the parent's end of the socket. The child has an empty environment, no
// standard input, and writes what it has to say to stderr.
func Start(role string, attr *syscall.SysProcAttr, stderr *os.File) (*exec.Cmd, *Conn, error) {
	return StartFrom(Self, role, attr, stderr)
}

// StartFrom is Start with the executable to use: a copy of this one.
func StartFrom(program, role string, attr *syscall.SysProcAttr, stderr *os.File) (*exec.Cmd, *Conn, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(program)
	cmd.Args = []string{prefix + role}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stderr = stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("cannot start %s%s: %w", prefix, role, err)
	}
	return cmd, ours, nil
}

// Inherited returns the socket that a parent handed over as descriptor 3.
func Inherited() (*Conn, error) {
	f := os.NewFile(3, "parent")
	c, err := FromFile(f)
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, "reexec.Inherited", "", "this program has no role without its parent")
	}
	return c, nil
}

func pair() (*Conn, *os.File, error) {
	mine, theirs, err := Pair()
	if err != nil {
		return nil, nil, err
	}
	ours, err := FromFile(mine)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// Pair makes two connected unix stream sockets.
func Pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// FromFile makes a Conn of a connected unix stream socket and closes f.
func FromFile(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("descriptor is no unix socket")
	}
	return NewConn(u), nil
}
