package repl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Modes of a fork.
const (
	ModeFork = "fork"  // another cell: keeps memory, and no descriptor
	ModeGoOn = "go on" // the source of a branch: keeps its connections
	ModeOnce = "once"  // like ModeFork, for a program that is rarely forked: it does not stand for that
)

// Obstacles are the reasons against a fork, by name.
type Obstacles struct {
	Threads   []string `json:"threads"`
	Processes []string `json:"processes"`
	Shared    []string `json:"shared"`  // shared writable mappings
	Deleted   []string `json:"deleted"` // open files without a name
	Unkept    []string `json:"unkept"`  // kernel state that a fork would lose
	Sockets   []string `json:"sockets"` // no obstacle: connections that a fork finds reset
}

// Any reports whether there is an obstacle.
func (o Obstacles) Any() bool {
	return len(o.Threads)+len(o.Processes)+len(o.Shared)+len(o.Deleted)+len(o.Unkept) > 0
}

// Check asks for the obstacles to a fork.
func (c *Conn) Check(ctx context.Context) (o Obstacles, err error) {
	err = c.ask(ctx, map[string]any{"op": "check"}, &o)
	for _, list := range []*[]string{&o.Threads, &o.Processes, &o.Shared, &o.Deleted, &o.Unkept, &o.Sockets} {
		few(list)
	}
	return o, err
}

// few limits a list made by a program, for display.
func few(list *[]string) {
	if n := len(*list); n > 64 {
		*list = append((*list)[:64:64], fmt.Sprintf("%d more", n-64))
	}
	for i, s := range *list {
		if len(s) > 256 {
			(*list)[i] = s[:256] + "…"
		}
	}
}

// HeldFile is a file that was open for writing.
type HeldFile struct {
	FD     int    `json:"fd"`
	Path   string `json:"path"`
	Flags  int    `json:"flags"`
	Offset int64  `json:"offset"`
}

// Hold makes the program close files that are open for writing, so that their mounts can become
// read-only. With collect it also collects garbage, which takes a while.
func (c *Conn) Hold(ctx context.Context, collect bool) ([]HeldFile, error) {
	var a struct {
		Held []HeldFile `json:"held"`
	}
	err := c.ask(ctx, map[string]any{"op": "hold", "collect": collect}, &a)
	return a.Held, err
}

// Resume undoes Hold: the program reopens the files. It returns those that could not be opened.
func (c *Conn) Resume(ctx context.Context) (lost []string, err error) {
	var a struct {
		Lost []string `json:"lost"`
	}
	err = c.ask(ctx, map[string]any{"op": "resume"}, &a)
	few(&a.Lost)
	return a.Lost, err
}

// Release makes a program that continues in a fork close every descriptor, connections
// included.
func (c *Conn) Release(ctx context.Context) error {
	return c.ask(ctx, map[string]any{"op": "release"}, nil)
}

// Forked is a fork that waits for its adoption.
type Forked struct {
	Conn  *Conn    // after its greeting
	PID   int      // in this process's PID namespace
	PIDFD *os.File // owned by the caller
	Inner int      // PID in its parent's namespace
	Inode uint64   // of its socket
}

// Close closes the connection. The fork then exits.
func (f *Forked) Close() {
	f.Conn.Close()
	f.PIDFD.Close()
}

// Fork makes the program fork itself, by clone with flags and SIGCHLD. stdio are the fork's
// streams. The fork writes "0" to each of enter, the tasks files of cgroups. The kernel
// identifies the process; the program's own report is ignored.
func (c *Conn) Fork(ctx context.Context, flags uintptr, mode string, stdio [3]*os.File, enter ...*os.File) (_ *Forked, err error) {
	child, theirs, err := Pair()
	if err != nil {
		return nil, err
	}
	child.large = c.large
	defer func() {
		theirs.Close()
		if err != nil {
			child.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(theirs.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	files := append([]*os.File{theirs, stdio[0], stdio[1], stdio[2]}, enter...)
	inner, err := c.clone(ctx, flags, mode, files)
	if err != nil {
		return nil, err
	}
	theirs.Close() // so that the end of the fork closes the connection
	f := &Forked{Conn: child, Inner: inner, Inode: st.Ino}
	if f.PID, f.PIDFD, err = child.greeted(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// clone requests a fork: by the stand, which is cheapest, or else by an ordinary question.
func (c *Conn) clone(ctx context.Context, flags uintptr, mode string, files []*os.File) (pid int, err error) {
	if mode == ModeFork {
		c.standing.Lock()
		st := c.stands(ctx, flags)
		if st != nil {
			defer c.standing.Unlock()
			pid, err = st.clone(ctx, files)
			if err != nil {
				c.rise() // a later answer belongs to no question
			}
			return pid, err
		}
		c.standing.Unlock()
	}
	var a struct {
		PID int `json:"pid"`
	}
	if mode == ModeOnce {
		mode = ModeFork // the same for the program
	}
	err = c.ask(ctx, map[string]any{"op": "fork", "flags": uint64(flags), "mode": mode}, &a, files...)
	return a.PID, err
}

// greeted reads the first line of a fork, with the kernel's identification of its sender. It
// needs no turn, because the connection is not shared yet.
func (c *Conn) greeted(ctx context.Context) (pid int, pidfd *os.File, err error) {
	back := c.until(ctx)
	defer back()
	buf, oob := make([]byte, 512), make([]byte, 512)
	n, oobn, _, _, err := c.c.ReadMsgUnix(buf, oob)
	msgs, perr := unix.ParseSocketControlMessage(oob[:oobn])
	if err == nil {
		err = perr
	}
	for _, m := range msgs {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			for _, fd := range fds {
				unix.Close(fd) // files were not requested
			}
		}
		if cred, err := unix.ParseUnixCredentials(&m); err == nil {
			pid = int(cred.Pid)
		}
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, nil, cell.Errorf(cell.Timeout, "interp.Fork", "", "cannot fork the interpreter: the fork says nothing")
	case err != nil, n == 0:
		return 0, nil, cell.Errorf(cell.Unavailable, "interp.Fork", "", "cannot fork the interpreter: the fork ended at once")
	case pid <= 0:
		return 0, nil, cell.Errorf(cell.Unavailable, "interp.Fork", "", "cannot fork the interpreter: the kernel does not identify the fork")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("pidfd_open", err)
	}
	pidfd = os.NewFile(uintptr(fd), "fork")
	c.buf = append(c.buf, buf[:n]...)
	line, err := c.line()
	var a struct {
		Forked *struct{} `json:"forked"`
	}
	if err == nil && (json.Unmarshal(line, &a) != nil || a.Forked == nil) {
		err = c.broken("its first message is not a fork's: %.100q", line)
	}
	if err != nil {
		pidfd.Close()
		return 0, nil, err
	}
	return pid, pidfd, nil
}

// Adoption is the identity and the rights of a fork.
type Adoption struct {
	Workdir  string            // "" keeps the current directory
	Env      map[string]string // "" unsets a variable
	Caps     uint64            // capabilities that it keeps, in its own user namespace
	UID, GID int               // -1 keeps the current ones
	Name     string            // process name in ps
	Landlock *os.File          // nil for none
}

// Settle makes a fork do the work that needs no identity: confine itself, change its directory,
// open its own files. If the program cannot do that in advance, ok is false, and Adopt does it.
func (c *Conn) Settle(ctx context.Context, a Adoption) (ok bool, err error) {
	var got struct {
		Settled bool `json:"settled"`
	}
	err = c.ask(ctx, map[string]any{"op": "settle", "workdir": a.Workdir, "caps": a.Caps}, &got)
	if cell.KindOf(err) == cell.Unsupported {
		return false, nil
	}
	return got.Settled, err
}

// Rehearse makes a copy of an interpreter, which waits for its adoption, run the code of an
// adoption and an evaluation once. It calls no hooks. A program without rehearsal does nothing.
func (c *Conn) Rehearse(ctx context.Context) error {
	err := c.ask(ctx, map[string]any{"op": "rehearse"}, &struct{}{})
	if cell.KindOf(err) == cell.Unsupported {
		return nil
	}
	return err
}

// Inherit asks which random number generators, made by code, copies will share. A program that
// cannot tell returns none.
func (c *Conn) Inherit(ctx context.Context) ([]cell.Hazard, error) {
	var a struct {
		Hazards []cell.Hazard `json:"hazards"`
	}
	err := c.ask(ctx, map[string]any{"op": "inherit"}, &a)
	if cell.KindOf(err) == cell.Unsupported {
		return nil, nil
	}
	return fewHazards(a.Hazards), err
}

// fewHazards limits a list made by a program.
func fewHazards(list []cell.Hazard) []cell.Hazard {
	list = list[:min(len(list), 32)]
	for i := range list {
		h := &list[i]
		h.Name, h.Value, h.Seen = bounded(h.Name), bounded(h.Value), "inside"
	}
	return list
}

// Adopted is a fork's report of its adoption.
type Adopted struct {
	Hazards []cell.Hazard `json:"hazards"` // all seen from inside
	Dropped []string      `json:"dropped"`
}

// Adopt makes a fork confine itself unless Settle did, discard shared state, and call the hooks
// of its code.
func (c *Conn) Adopt(ctx context.Context, a Adoption) (Adopted, error) {
	req := map[string]any{"op": "adopt", "workdir": a.Workdir, "caps": a.Caps, "env": a.Env, "argv0": a.Name}
	if a.UID >= 0 {
		req["uid"] = a.UID
	}
	if a.GID >= 0 {
		req["gid"] = a.GID
	}
	var files []*os.File
	if a.Landlock != nil {
		files = append(files, a.Landlock)
	}
	var got struct {
		Adopted *Adopted `json:"adopted"`
	}
	began := time.Now()
	if err := c.ask(ctx, req, &got, files...); err != nil {
		if cell.KindOf(err) == cell.Unsupported { // it reports what went wrong
			return Adopted{}, cell.Errorf(cell.Invalid, "interp.Adopt", "fix the code that runs in each fork, and build the template again", "cannot adopt the fork: %w", errors.Unwrap(err))
		}
		return Adopted{}, err
	}
	if got.Adopted == nil {
		return Adopted{}, cell.Errorf(cell.Unavailable, "interp.Adopt", "", "cannot adopt the fork: it does not say what it did in %v", time.Since(began))
	}
	out := *got.Adopted
	out.Hazards = fewHazards(out.Hazards)
	few(&out.Dropped)
	return out, nil
}
