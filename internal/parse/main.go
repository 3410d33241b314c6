package parse

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/reexec"
)

// The limits of a process that parses. RLIMIT_DATA counts what is mapped
// writable and private, which is all that Go's heap takes; RLIMIT_AS would count
// what Go reserves and never uses, too.
const (
	hardMemory = 512 << 20 // RLIMIT_DATA: beyond it the process ends
	softMemory = 256 << 20 // beyond it garbage is collected all the time
	cpuSeconds = 60
)

// Main is the life of a process that parses.
func Main(funcs map[string]Func) error {
	conn, err := reexec.Inherited()
	if err != nil {
		return err
	}
	if err := confine(); err != nil {
		return err
	}
	var job Job
	files, err := conn.Recv(&job)
	if err != nil {
		return err
	}
	if len(files) != 1 || funcs[job.Name] == nil {
		return fmt.Errorf("cannot parse: there is no parser %q", job.Name)
	}
	go func() { // it ends with its parent, which says nothing more
		conn.Raw().Read(make([]byte, 1))
		os.Exit(1)
	}()
	out, err := call(funcs[job.Name], files[0], job)
	if err != nil {
		return conn.Send(answer{Kind: cell.KindOf(err), Hint: cell.HintOf(err), Error: err.Error(), Limit: bound.Exceeded(err)})
	}
	if err := conn.Send(answer{Size: int64(len(out))}); err != nil {
		return err
	}
	_, err = conn.Raw().Write(out)
	return err
}

// Exit codes of a process that ends without an answer. A Go program that gets
// no memory has the first.
const (
	exitMemory = 2
	exitTime   = 3
	exitPanic  = 4
)

// call runs a parser. A panic has an exit code of its own.
func call(f Func, r io.Reader, job Job) ([]byte, error) {
	defer func() {
		if v := recover(); v != nil {
			fmt.Fprintf(os.Stderr, "cannot parse: panic in parser %q: %v\n%s", job.Name, v, debug.Stack())
			os.Exit(exitPanic)
		}
	}()
	return f(r, job)
}

// confine sets the limits of this process, before it has seen any input.
func confine() error {
	debug.SetMemoryLimit(softMemory)
	// Go's runtime ignores this signal. If nothing runs that could take it, the
	// kernel ends the process at the hard limit.
	late := make(chan os.Signal, 1)
	signal.Notify(late, unix.SIGXCPU)
	go func() {
		<-late
		os.Exit(exitTime)
	}()
	// The first process to go when the host has no memory left. Only a wish.
	if f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0); err == nil {
		f.WriteString("1000")
		f.Close()
	}
	for _, l := range []struct {
		name     string
		resource int
		soft     uint64
		hard     uint64
	}{
		{"memory", unix.RLIMIT_DATA, hardMemory, hardMemory},
		{"processor time", unix.RLIMIT_CPU, cpuSeconds, cpuSeconds + 5},
		{"file size", unix.RLIMIT_FSIZE, 0, 0},
		{"core", unix.RLIMIT_CORE, 0, 0},
		{"open files", unix.RLIMIT_NOFILE, 32, 32},
	} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.soft, Max: l.hard}); err != nil {
			return fmt.Errorf("cannot limit the %s of a parser: %w", l.name, err)
		}
	}
	return nil
}
