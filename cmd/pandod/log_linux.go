package main

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// logMax is how long the daemon's log may become, in bytes; then it becomes
// daemon.log.1, in the place of the former one.
const logMax = 64 << 20

// daemonLog is the daemon's log. Where it goes to standard error, which is the
// file, that is what it keeps to be: also what the daemon dies of is written there.
type daemonLog struct {
	path string // "": standard error is somebody else's, a journal

	mu   sync.Mutex // guards what follows
	size int64
	max  int64
}

// openLog returns the log of a daemon whose standard error may be the file at path.
func openLog(path string) *daemonLog {
	l := &daemonLog{max: logMax}
	if at, err := os.Stat(path); err == nil {
		if out, err := os.Stderr.Stat(); err == nil && os.SameFile(at, out) {
			l.path, l.size = path, at.Size()
		}
	}
	return l
}

// Write implements io.Writer.
func (l *daemonLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != "" && l.size+int64(len(b)) > l.max {
		if err := l.turn(); err != nil {
			l.size = 0 // not with each line
			fmt.Fprintf(os.Stderr, "cannot begin another log: %v\n", err)
		}
	}
	n, err := os.Stderr.Write(b)
	l.size += int64(n)
	return n, err
}

// turn makes the log daemon.log.1, and begins another. The caller holds mu.
func (l *daemonLog) turn() error {
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return err
	}
	return l.reopen()
}

// Reopen opens the log by its name again, so that another program can move it.
func (l *daemonLog) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		return nil
	}
	return l.reopen()
}

func (l *daemonLog) reopen() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(f.Fd()), int(os.Stderr.Fd()), 0); err != nil {
		return os.NewSyscallError("dup3", err)
	}
	l.size = st.Size()
	return nil
}
