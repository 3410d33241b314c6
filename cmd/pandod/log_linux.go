package main

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// logMax bounds the daemon's log, in bytes; a full one is renamed to daemon.log.1, which
// replaces the former one.
const logMax = 64 << 20

// daemonLog is the daemon's log. If standard error is the file, it stays so: a crash of the
// daemon is written there, too.
type daemonLog struct {
	path string // "": standard error belongs to another program, such as a journal

	mu   sync.Mutex // guards the fields below
	size int64
	max  int64
}

// openLog returns the log of a daemon; its standard error may be the file at path.
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

// turn renames the log to daemon.log.1, and begins another. The caller holds mu.
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
