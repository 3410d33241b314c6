// Package client is the daemon's end of keepers. It starts keepers ahead, finds them again
// after a restart, and implements backend.Instance over the keepers' protocol. A backend with
// cells in keepers has a Host, and adds what its technology needs.
//
// Liveness is a held lock (see lock.go).
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// Host starts and finds keepers of one backend.
type Host struct {
	Backend string
	Dir     string // sockets and locks
	Log     *slog.Logger
	// Attr returns the attributes for cloning one keeper process.
	Attr func() (*syscall.SysProcAttr, error)
	// Ahead is the number of spare keeper processes.
	Ahead int
	// FromMemory starts keepers from a sealed copy of this program (see reexec.Copy). It is for
	// hosts where nothing else denies a cell access to the file of the program that its
	// commands are forked from.
	FromMemory bool
	// Measure adds what a keeper measured of a new cell to its assurance. It is nil if keepers
	// measure nothing.
	Measure func(a *cell.Assurance, measured json.RawMessage) error

	mu     sync.Mutex // guards the fields below
	copied *os.File   // FromMemory: made on first use
	from   string     // path to execute
	spares []*Keeper
	shared map[cell.ID]*Client // by family
	closed bool
	filler sync.WaitGroup
}

// Keeper is a keeper process that this daemon started.
type Keeper struct {
	PID   int
	cmd   *exec.Cmd
	conn  *reexec.Conn
	alive chan struct{} // closed when the process has ended
}

// Take returns a keeper process without a cell: a spare, or a new one.
func (h *Host) Take() (*Keeper, error) {
	h.mu.Lock()
	var k *Keeper
	for len(h.spares) > 0 && k == nil {
		k = h.spares[0]
		h.spares = h.spares[1:]
		select {
		case <-k.alive:
			k = nil
		default:
		}
	}
	h.mu.Unlock()
	h.Fill()
	if k != nil {
		return k, nil
	}
	return h.start()
}

// Put returns a keeper that was taken and got no cell.
func (h *Host) Put(k *Keeper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		k.Discard()
		return
	}
	h.spares = append([]*Keeper{k}, h.spares...)
}

// Fill starts spare processes in the background.
func (h *Host) Fill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.spares) >= h.Ahead {
		return
	}
	h.filler.Go(func() {
		// Delayed: the run that took the last spare needs the processor now.
		time.Sleep(60 * time.Millisecond)
		k, err := h.start()
		if err != nil {
			h.Log.Warn("cannot start a keeper ahead", "backend", h.Backend, "error", err)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.closed || len(h.spares) >= h.Ahead {
			k.Discard()
			return
		}
		h.spares = append(h.spares, k)
	})
}

func (h *Host) start() (*Keeper, error) {
	attr, err := h.Attr()
	if err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(filepath.Join(h.Dir, "keeper.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	program, err := h.program()
	if err != nil {
		return nil, err
	}
	cmd, conn, err := reexec.StartFrom(program, proto.Role, attr, logFile)
	if err != nil {
		return nil, err
	}
	k := &Keeper{PID: cmd.Process.Pid, cmd: cmd, conn: conn, alive: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(k.alive)
	}()
	return k, nil
}

// program returns the path that keepers execute.
func (h *Host) program() (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from == "" {
		h.from = reexec.Self
		if h.FromMemory {
			var err error
			if h.copied, h.from, err = reexec.Copy(); err != nil {
				h.from = ""
				return "", fmt.Errorf("cannot copy this program into memory: %w", err)
			}
		}
	}
	return h.from, nil
}

// Discard ends a keeper without a cell.
func (k *Keeper) Discard() {
	k.conn.Close() // it exits when its parent's socket closes
}

// Kill kills the keeper and waits for its end.
func (k *Keeper) Kill() {
	k.cmd.Process.Kill()
	<-k.alive
	k.conn.Close()
}

// Assign gives the keeper a cell, and returns its client. The keeper has the version of this
// program and is not greeted: the first request makes the cell.
func (h *Host) Assign(k *Keeper, id cell.ID) (*Client, error) {
	lock, err := h.lock(id, os.O_CREATE)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	failpoint.Step("make the socket of a keeper")
	l, err := listen(h.Dir, h.socket(id))
	if err != nil {
		return nil, err
	}
	lf, err := l.File()
	l.SetUnlinkOnClose(false)
	l.Close()
	if err != nil {
		return nil, err
	}
	defer lf.Close()
	failpoint.Step("give a cell to a keeper")
	if err := k.conn.Send(proto.Assign{Backend: h.Backend, Cell: id}, lf, lock); err != nil {
		return nil, fmt.Errorf("cannot hand over the cell: %w", err)
	}
	// Only the keeper has them from here on. When it dies, the socket has no listener, and the
	// lock is free.
	lf.Close()
	lock.Close()
	c, err := reach(h.Dir, h.socket(id), k.PID)
	if err == nil {
		h.share(id, c)
	}
	return c, err
}

// OpenDir opens a directory with the caller's rights.
func OpenDir(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// WatchDisk returns how a cell's disk limit is applied, and what the keeper must count for it:
// nil if nothing, else with directories, which the caller closes. open opens a directory so that
// the keeper can read it.
func WatchDisk(spec cell.Spec, open func(path string) (*os.File, error)) (lim cell.AppliedLimit, w *proto.Watch, dirs []*os.File, err error) {
	lim = cell.AppliedLimit{Name: "disk", Applied: strconv.FormatInt(spec.Limits.Disk, 10), How: "accounted: what is written is counted, and a cell above its limit is ended"}
	if slices.Contains(spec.Asked, "disk") {
		lim.Asked = lim.Applied
	}
	if spec.Sized {
		lim.How = "a file system of its own"
		return lim, nil, nil, nil
	}
	for _, p := range spec.Writes {
		f, err := open(p)
		if err != nil {
			proto.CloseAll(dirs)
			return lim, nil, nil, err
		}
		dirs = append(dirs, f)
	}
	if len(dirs) == 0 {
		return lim, nil, nil, nil
	}
	return lim, &proto.Watch{Dirs: len(dirs), Limit: spec.Limits.Disk, Exact: lim.Asked != ""}, dirs, nil
}

// Close ends the spare processes. Cells live on.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	spares := h.spares
	h.spares = nil
	h.mu.Unlock()
	defer func() {
		if h.copied != nil {
			h.copied.Close()
		}
	}()
	for _, k := range spares {
		k.Discard()
	}
	h.filler.Wait()
}

// listen makes a socket at dir/name. The path may be longer than a socket address.
func listen(dir, name string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	os.Remove(filepath.Join(dir, name))
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)})
}

// Make makes a cell in a keeper. The files are the driver's, and then the directories of n.Watch.
// a is what is known of the cell, to which Make adds what the keeper measures. The caller fills
// in what the technology needs of the instance.
func (h *Host) Make(ctx context.Context, c *Client, family cell.ID, n proto.NewCell, a cell.Assurance, files ...*os.File) (*Instance, error) {
	n.Note = Describe(a)
	made, err := Ask(ctx, c, proto.Create, n, files...)
	if err == nil {
		err = h.measure(&a, made.Measured)
	}
	if err != nil {
		return nil, err
	}
	return &Instance{Host: h, Client: c, Cell: n.Cell, Family: family, Known: a}, nil
}

func (h *Host) measure(a *cell.Assurance, measured json.RawMessage) error {
	if h.Measure == nil || measured == nil {
		return nil
	}
	return h.Measure(a, measured)
}

// Describe packs the assurance for a note, from which Attach restores it.
func Describe(a cell.Assurance) json.RawMessage {
	b, _ := json.Marshal(a)
	return b
}

var _ backend.Instance = (*Instance)(nil)
