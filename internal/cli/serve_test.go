//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/paths"
)

// holding makes an installation and takes its lock; release gives the lock back.
func holding(t *testing.T) (h paths.Home, release func()) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "x58") // short enough for the address of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h = paths.Home{State: dir, Run: dir}
	f, err := os.Create(h.Lock())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	f.WriteString(`{"pid": 4321}`)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return h, func() { f.Close() }
}

// onceWritten calls then when something is written for the first time.
type onceWritten struct {
	text bytes.Buffer
	then func()
}

func (w *onceWritten) Write(b []byte) (int, error) {
	n, err := w.text.Write(b)
	if w.then != nil {
		w.then()
		w.then = nil
	}
	return n, err
}

// A daemon that holds the lock and does not answer is waited for, and a line says so.
func TestX58ServeWaitsForTheLock(t *testing.T) {
	h, release := holding(t)
	said := &onceWritten{then: release}
	a := &app{home: h, stderr: said}
	if err := a.takeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := said.text.String(); !strings.Contains(s, "waiting for daemon 4321, which is ending, to release "+h.Lock()) {
		t.Errorf("it says %q", s)
	}
}

// A daemon that answers is refused at once with its address, unless it says that it
// is ending.
func TestX58ServeRefusesADaemonThatLives(t *testing.T) {
	h, release := holding(t)
	l, err := net.Listen("unix", h.Socket())
	if err != nil {
		t.Fatal(err)
	}
	var ending atomic.Bool
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ending.Load() {
			release()
		}
		json.NewEncoder(w).Encode(api.Daemon{PID: 4321, Listen: []string{"http://127.0.0.1:7070"}, Ending: ending.Load()})
	})}
	go srv.Serve(l)
	defer srv.Close()
	var said bytes.Buffer
	a := &app{home: h, stderr: &said}
	err = a.takeOver(t.Context())
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != "exists" || !strings.Contains(e.Message, "4321") || !strings.Contains(e.Message, "http://127.0.0.1:7070") || e.Hint == "" {
		t.Errorf("one that lives: %v", err)
	}
	if said.Len() > 0 {
		t.Errorf("it says %q", said.String())
	}
	ending.Store(true)
	if err := a.takeOver(t.Context()); err != nil {
		t.Errorf("one that is ending: %v", err)
	}
}
