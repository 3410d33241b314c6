package cli

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// output is standard output. It keeps the first error of a write: what was lost must not look
// like success.
type output struct {
	file *os.File
	mu   sync.Mutex // guards err
	err  error
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// lost returns the first error of a write.
func (o *output) lost() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// fileOf returns the file that w writes to, if it is one.
func fileOf(w io.Writer) (*os.File, bool) {
	if o, ok := w.(*output); ok {
		return o.file, true
	}
	f, ok := w.(*os.File)
	return f, ok
}

// written returns the exit code of a command that ended with code and err. A command of which a
// part of standard output was lost has failed. A reader that went away is no failure.
func (a *app) written(cmd *cobra.Command, o *output, code int, err error) int {
	lost := o.lost()
	gone := errors.Is(lost, syscall.EPIPE) || a.terminalOut && errors.Is(lost, syscall.EIO) // a terminal that was closed
	if lost == nil || gone {
		return code
	}
	if a.json || !errors.Is(err, lost) {
		reason := lost
		if p, ok := errors.AsType[*os.PathError](lost); ok {
			reason = p.Err
		}
		a.say("pando: cannot write standard output, a part of it is lost: %v", reason)
	}
	switch {
	case code != 0:
		return code
	case startsProgram(cmd):
		return api.ExitPandoFailed
	}
	return api.ReasonOf("internal").Exit
}
