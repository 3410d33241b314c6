package cli

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/image"
)

// checkSource refuses a directory that cannot be a source: see image.CheckSource.
func checkSource(dir, home string, state ...string) error {
	return image.CheckSource(dir, home, state...)
}

// forwarded are the signals that the client passes on to a command in a cell.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// resized are the signals for a new size of the terminal.
var resized = []os.Signal{unix.SIGWINCH}

// signalName returns the API's name of a signal.
func signalName(s os.Signal) string {
	n, _ := s.(unix.Signal)
	return unix.SignalName(n)
}

// hideInput turns the terminal's echo off, also for input typed before.
func hideInput(fd int) (restore func(), err error) {
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	quiet := *old
	quiet.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETSF, &quiet); err != nil {
		return nil, err
	}
	return func() { unix.IoctlSetTermios(fd, unix.TCSETSF, old) }, nil
}
