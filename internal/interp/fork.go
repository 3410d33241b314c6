package interp

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

// What a fork is to be.
const (
	ModeFork = "fork"  // another cell: it keeps memory, and no descriptor
	ModeGoOn = "go on" // the source itself, in a branch: it keeps its connections
	ModeOnce = "once"  // as ModeFork, of a program that is not forked often: it does not stand for that
)

// Obstacles are what stands in the way of a fork, by name.
type Obstacles struct {
	Threads   []string `json:"threads"`
	Processes []string `json:"processes"`
	Shared    []string `json:"shared"`  // writable mappings that are shared
	Deleted   []string `json:"deleted"` // open files that have no name any more
	Unkept    []string `json:"unkept"`  // what the kernel holds for it, and a fork would not have
	Sockets   []string `json:"sockets"` // no obstacle: a fork finds them reset
}

// Any reports whether there is one.
func (o Obstacles) Any() bool {
	return len(o.Threads)+len(o.Processes)+len(o.Shared)+len(o.Deleted)+len(o.Unkept) > 0
}

// Check asks what stands in the way of a fork.
func (c *Conn) Check(ctx context.Context) (o Obstacles, err error) {
	err = c.ask(ctx, map[string]any{"op": "check"}, &o)
	for _, list := range []*[]string{&o.Threads, &o.Processes, &o.Shared, &o.Deleted, &o.Unkept, &o.Sockets} {
		few(list)
	}
	return o, err
}

// few bounds what is shown to people of a list that a program made.
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

// Hold makes the program let go of files that are open for writing, so that
// what they lie on can become read-only. With collect it also tidies its memory,
// which takes a while.
func (c *Conn) Hold(ctx context.Context, collect bool) ([]HeldFile, error) {
	var a struct {
		Held []HeldFile `json:"held"`
	}
	err := c.ask(ctx, map[string]any{"op": "hold", "collect": collect}, &a)
	return a.Held, err
}

// Resume undoes Hold: the files are open again. It returns those that could not
// be opened.
func (c *Conn) Resume(ctx context.Context) (lost []string, err error) {
	var a struct {
		Lost []string `json:"lost"`
	}
	err = c.ask(ctx, map[string]any{"op": "resume"}, &a)
	few(&a.Lost)
	return a.Lost, err
}

// Release makes a program that goes on elsewhere let go of every descriptor,
// connections included.
func (c *Conn) Release(ctx context.Context) error {
	return c.ask(ctx, map[string]any{"op": "release"}, nil)
}

// Forked is a fork that waits to be adopted.
type Forked struct {
	Conn  *Conn    // it is ready
	PID   int      // as this process sees it
	PIDFD *os.File // the caller's
	Inner int      // its number in what it was forked from
	Inode uint64   // of the socket that it was given
}

// Close lets go of it: nobody talks to it any more, and it ends.
func (f *Forked) Close() {
	f.Conn.Close()
	f.PIDFD.Close()
}

// Fork has the program make a copy of itself, by clone with flags (beside
// SIGCHLD). stdio are the copy's streams; it writes "0" to each of enter, the
// tasks files of cgroups. The kernel says which process it is;
// what the program itself says of that is not looked at.
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
	theirs.Close() // so that a fork that died is the end of what it could say
	f := &Forked{Conn: child, Inner: inner, Inode: st.Ino}
	if f.PID, f.PIDFD, err = child.greeted(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// clone asks for a fork: of a program that stands in the way that costs least,
// else by a question like others.
func (c *Conn) clone(ctx context.Context, flags uintptr, mode string, files []*os.File) (pid int, err error) {
	if mode == ModeFork {
		c.standing.Lock()
		st := c.stands(ctx, flags)
		if st != nil {
			defer c.standing.Unlock()
			pid, err = st.clone(ctx, files)
			if err != nil {
				c.rise() // what may still come is nobody's
			}
			return pid, err
		}
		c.standing.Unlock()
	}
	var a struct {
		PID int `json:"pid"`
	}
	if mode == ModeOnce {
		mode = ModeFork // to the program it is the same
	}
	err = c.ask(ctx, map[string]any{"op": "fork", "flags": uint64(flags), "mode": mode}, &a, files...)
	return a.PID, err
}

// greeted reads the first line of a fork, with what the kernel says of its
// sender. It has the turn, because nobody else knows the connection.
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
				unix.Close(fd) // nobody has asked for files
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
		return 0, nil, cell.Errorf(cell.Unavailable, "interp.Fork", "", "cannot fork the interpreter: the kernel does not say who the fork is")
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
		err = c.broken("it did not begin by saying that it is a fork, but %.100q", line)
	}
	if err != nil {
		pidfd.Close()
		return 0, nil, err
	}
	return pid, pidfd, nil
}

// Adoption is what a fork becomes.
type Adoption struct {
	Workdir  string            // "": where it was
	Env      map[string]string // "" takes a variable away
	Caps     uint64            // what it may keep, in its own user namespace
	UID, GID int               // -1: as they are
	Name     string            // what ps calls it
	Landlock *os.File          // nil for none
}

// Settle has a fork do what need not wait until it is known who it is to be:
// confine itself, go to its folder, have files of its own. One that can't do that
// ahead does it when it is adopted; then ok is false.
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

// Rehearse has a copy of a whole interpreter, which waits to be adopted, do once what
// an adoption and an evaluation will have it do. Hooks of its code are not called. One
// that knows no rehearsal does nothing.
func (c *Conn) Rehearse(ctx context.Context) error {
	err := c.ask(ctx, map[string]any{"op": "rehearse"}, &struct{}{})
	if cell.KindOf(err) == cell.Unsupported {
		return nil
	}
	return err
}

// Inherit asks what generators of random numbers, that code has made, copies will have in
// common. One that can't tell says nothing.
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

// fewHazards bounds what a program says.
func fewHazards(list []cell.Hazard) []cell.Hazard {
	list = list[:min(len(list), 32)]
	for i := range list {
		h := &list[i]
		h.Name, h.Value, h.Seen = bounded(h.Name), bounded(h.Value), "inside"
	}
	return list
}

// Adopted is what a fork says that it did.
type Adopted struct {
	Hazards []cell.Hazard `json:"hazards"` // all seen from inside
	Dropped []string      `json:"dropped"`
}

// Adopt has a fork confine itself if it has not been settled, leave behind what it
// shares with others, and call the hooks of its code.
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
		if cell.KindOf(err) == cell.Unsupported { // it says what went wrong
			return Adopted{}, cell.Errorf(cell.Invalid, "interp.Adopt", "mend what runs in each fork, and build the template again", "cannot adopt the fork: %w", errors.Unwrap(err))
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
