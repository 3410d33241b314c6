package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/vmm"
)

type machine struct {
	m *monitor

	moving   sync.Mutex  // held by Save and Load
	sets     int         // number of descriptor sets, one per Save
	migrated chan string // status of the migration

	loaded atomic.Bool // it no longer waits for devices

	mu  sync.Mutex
	why string
}

// Open implements vmm.Driver.
func (*Driver) Open(ctx context.Context, conn net.Conn) (vmm.Machine, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, cell.Errorf(cell.Invalid, "qemu.Open", "", "cannot drive a machine over %T: files are sent, too", conn)
	}
	v := &machine{migrated: make(chan string, 8)}
	v.m = newMonitor(u, v.event)
	err := v.begin(ctx)
	if err != nil {
		v.m.close()
		return nil, err
	}
	return v, nil
}

func (v *machine) begin(ctx context.Context) error {
	select {
	case <-v.m.hello:
	case <-v.m.done:
		return gone("greeting")
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for the machine's monitor: %w", context.Cause(ctx))
	}
	if _, err := v.m.do(ctx, "qmp_capabilities", nil); err != nil {
		return err
	}
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	_, err := v.m.do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{{"events", true}}})
	return err
}

// ends maps QEMU's causes of a shutdown (qapi/run-state.json, ShutdownCause) to words.
var ends = map[string]string{
	"guest-shutdown": "the guest shut down",
	"guest-reset":    "the guest restarted, or its kernel panicked",
	"guest-panic":    "the guest's kernel panicked",
	"host-qmp-quit":  "it was told to",
	"host-signal":    "a signal told it to",
	"host-error":     "a device failed",
}

func (v *machine) event(name string, data json.RawMessage) {
	switch name {
	case "SHUTDOWN":
		var x struct{ Reason string }
		if json.Unmarshal(data, &x) != nil {
			return
		}
		why := ends[x.Reason]
		if why == "" {
			why = "QEMU says " + x.Reason
		}
		v.mu.Lock()
		v.why = why
		v.mu.Unlock()
	case "MIGRATION":
		var x struct{ Status string }
		if json.Unmarshal(data, &x) == nil && (x.Status == "completed" || x.Status == "failed") {
			select {
			case v.migrated <- x.Status:
			default: // more than were requested
			}
		}
	}
}

func (v *machine) Status(ctx context.Context) (vmm.State, error) {
	got, err := v.m.do(ctx, "query-status", nil)
	if err != nil {
		return "", err
	}
	var x struct{ Status string }
	if err := json.Unmarshal(got, &x); err != nil {
		return "", fmt.Errorf("cannot understand the machine's monitor: %w", err)
	}
	switch x.Status {
	case "running":
		return vmm.Running, nil
	case "inmigrate":
		return vmm.Waiting, nil
	}
	return vmm.Stopped, nil // paused, prelaunch, …: no processor runs
}

func (v *machine) Stop(ctx context.Context) error {
	_, err := v.m.do(ctx, "stop", nil)
	return err
}

func (v *machine) Continue(ctx context.Context) error {
	if !v.loaded.Load() { // otherwise it never waits again
		if err := v.must(ctx, "continue", func(s vmm.State) bool { return s != vmm.Waiting }); err != nil {
			return err
		}
		v.loaded.Store(true)
	}
	_, err := v.m.do(ctx, "cont", nil)
	return err
}

// must fails unless ok accepts the machine's state.
func (v *machine) must(ctx context.Context, what string, ok func(vmm.State) bool) error {
	s, err := v.Status(ctx)
	if err == nil && !ok(s) {
		err = cell.Errorf(cell.Conflict, "qemu."+what, "", "cannot %s a machine that is %s", what, s)
	}
	return err
}

// Save makes the program write into a file in memory, so that its devices' state needs no other
// file. A descriptor set takes no pipe: the program truncates the file that it opens, and
// accepts only a descriptor with the same open flags.
func (v *machine) Save(ctx context.Context, w io.Writer) error {
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := v.must(ctx, "save", func(s vmm.State) bool { return s == vmm.Stopped }); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("devices", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot save a machine's devices: %w", err)
	}
	devices := os.NewFile(uintptr(fd), "devices")
	defer devices.Close()
	itsEnd, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot save a machine's devices: %w", err)
	}
	v.sets++
	set := map[string]any{"fdset-id": consoleSet + v.sets}
	_, err = v.m.do(ctx, "add-fd", set, itsEnd)
	itsEnd.Close()
	if err != nil {
		return err
	}
	_, err = v.m.do(ctx, "xen-save-devices-state", map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", set["fdset-id"]), "live": false})
	if _, gone := v.m.do(ctx, "remove-fd", set); err == nil {
		err = gone
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, devices); err != nil { // its own offset: from the start
		return fmt.Errorf("cannot save a machine's devices: %w", err)
	}
	return nil
}

func (v *machine) Load(ctx context.Context, r io.Reader) error {
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := v.must(ctx, "load", func(s vmm.State) bool { return s == vmm.Waiting }); err != nil {
		return err
	}
	p, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot load a machine's devices: %w", err)
	}
	defer w.Close()
	_, err = v.m.do(ctx, "getfd", map[string]any{"fdname": "devices"}, p)
	p.Close()
	if err != nil {
		return err
	}
	if _, err := v.m.do(ctx, "migrate-incoming", map[string]any{"uri": "fd:devices"}); err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, r)
		w.Close()
		if errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) { // the program has read enough, or the caller has given up
			err = nil
		}
		copied <- err
	}()
	select {
	case status := <-v.migrated:
		if err = <-copied; err == nil && status != "completed" {
			err = errNotThose()
		}
	case <-v.m.done: // the program refuses by exiting
		w.Close()
		if err = <-copied; err == nil {
			err = errNotThose()
		}
	case <-ctx.Done():
		w.Close()
		<-copied
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("cannot load a machine's devices: %w", err)
	}
	return nil
}

func errNotThose() error {
	return cell.Errorf(cell.Corrupt, "qemu.Load", "", "cannot load the machine's devices: they are damaged, or belong to another machine or version of QEMU")
}

func (v *machine) Quit(ctx context.Context) error {
	if _, err := v.m.do(ctx, "quit", nil); err != nil && cell.KindOf(err) != cell.Unavailable {
		return err
	}
	select {
	case <-v.m.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for a machine's end: %w", context.Cause(ctx))
	}
}

func (v *machine) Done() <-chan struct{} { return v.m.done }

func (v *machine) Why() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.why
}

func (v *machine) Close() error {
	v.m.close()
	return nil
}
