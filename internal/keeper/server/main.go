package server

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// Main is the main function of a keeper process. It waits for a cell, serves it, and returns at
// its end.
func Main(drivers map[string]func() (Driver, error), events NewEvents, networks Networks) error {
	conn, err := reexec.Inherited()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	outliveTerminals()
	var a proto.Assign
	files, err := conn.Recv(&a)
	if err != nil {
		return nil // the daemon dismissed it
	}
	if len(files) != 2 || drivers[a.Backend] == nil {
		return fmt.Errorf("cannot keep a cell of backend %q", a.Backend)
	}
	ln, err := net.FileListener(files[0])
	files[0].Close()
	if err != nil {
		return err
	}
	lock := files[1] // held until the end
	defer lock.Close()
	// The name in ps, truncated to fit. Afterwards the keeper's files in /proc belong to root.
	if err := os.WriteFile("/proc/self/comm", []byte(a.Cell), 0); err != nil {
		log.Warn("cannot name the process", "error", err)
	}
	d, err := drivers[a.Backend]()
	if err != nil {
		return err
	}
	s := &Server{Backend: a.Backend, Driver: d, NewEvents: events, Networks: networks, Log: log.With("cell", a.Cell)}
	if err := s.Serve(ln.(*net.UnixListener)); err != nil {
		return err
	}
	lock.Close() // the cell has ended; clients that still read its events need no lock
	s.Drain()
	return nil
}

// outliveTerminals makes signals of a terminal harmless to this process, also its hang-up. Shells
// make background processes ignore an interrupt. A signal that is handled here is reset to the
// default in the programs executed from here.
func outliveTerminals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGQUIT, unix.SIGHUP)
}
