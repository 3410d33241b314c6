package gvisor

import (
	"bytes"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// told counts the reports of a cell's application kernel about the commands. pando-runsc writes
// a line each into a pipe: missing system calls (number and arguments), executed programs
// ("exec" and the quoted path), connections to other hosts without a route ("away"), and what becomes of the
// processes of commands ("part" and "proc", see report). Code that
// broke out of the application kernel can write anything there. So the names come from this
// package, and their number is limited; of processes it can say what it likes.
type told struct {
	ours, theirs *os.File
	denies       map[string]cell.Denial // denied programs by their path

	mu      sync.Mutex // guards the fields below
	line    []byte     // the incomplete last line
	missing map[string]int64
	denied  map[string]int64 // executions by path
	away    int64
	parts   []byte             // of an incomplete report
	watched map[int64]*watched // commands by their number
}

const (
	missingKinds = 32                  // maximum number of distinct missing calls per cell
	missingLine  = 128                 // size limit of a gVisor line, in bytes; the rest is not needed
	toldLine     = 4*unix.PathMax + 16 // size limit of a line of pando-runsc, in bytes
)

// newTold makes the pipe and counts its lines until it is closed.
func newTold(mounts []cell.Mount) (*told, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t := &told{ours: r, theirs: w, denies: map[string]cell.Denial{}, missing: map[string]int64{}, denied: map[string]int64{}, watched: map[int64]*watched{}}
	for _, m := range mounts {
		if m.Denies != nil {
			t.denies[m.Target] = *m.Denies
		}
	}
	raw, err := r.SyscallConn()
	if err != nil {
		t.close()
		return nil, err
	}
	go raw.Read(func(fd uintptr) bool { // until it is closed
		t.mu.Lock()
		defer t.mu.Unlock()
		t.drain(int(fd))
		return false
	})
	return t, nil
}

// drain reads the data in the pipe.
func (t *told) drain(fd int) {
	var b [4096]byte
	for {
		n, err := unix.Read(fd, b[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		t.take(b[:n])
	}
}

// take counts the lines in b.
func (t *told) take(b []byte) {
	for len(b) > 0 {
		part, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest
		t.line = append(t.line, part[:min(len(part), toldLine+1-len(t.line))]...)
		if !ended {
			return
		}
		if len(t.line) <= toldLine {
			t.count(string(t.line))
		}
		t.line = t.line[:0]
	}
}

func (t *told) count(line string) {
	if quoted, ok := strings.CutPrefix(line, "exec "); ok {
		path, err := strconv.Unquote(quoted)
		if _, denied := t.denies[path]; err == nil && denied {
			t.denied[path]++
		}
		return
	}
	if line == "away" {
		t.away++
		return
	}
	if text, ok := strings.CutPrefix(line, "part "); ok {
		t.part(text, false)
		return
	}
	if text, ok := strings.CutPrefix(line, "proc "); ok {
		t.part(text, true)
		return
	}
	if name := missingName(line); name != "" {
		if t.missing[name] == 0 && len(t.missing) >= missingKinds {
			name = server.MissingOthers
		}
		t.missing[name]++
	}
}

// now calls f with up-to-date counts.
func (t *told) now(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if raw, err := t.ours.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { t.drain(int(fd)) })
	}
	f()
}

func (t *told) close() {
	t.ours.Close()
	t.theirs.Close()
}

// told returns the reports of a cell's kernel, or nil if there is no such cell.
func (d *Driver) told(id cell.ID) *told {
	if s, ok := d.Kernel(id).(*sandbox); ok {
		return s.told
	}
	return nil
}

// MissingCalls implements server.Observer.
func (d *Driver) MissingCalls(id cell.ID) (calls map[string]int64) {
	if t := d.told(id); t != nil {
		t.now(func() { calls = maps.Clone(t.missing) })
	}
	return calls
}

// DeniedPrograms implements server.Observer.
func (d *Driver) DeniedPrograms(id cell.ID) map[server.Denied]int64 {
	t := d.told(id)
	if t == nil || len(t.denies) == 0 {
		return nil
	}
	out := map[server.Denied]int64{}
	t.now(func() {
		for path, n := range t.denied {
			out[server.Denied{Program: path, Denial: t.denies[path]}] = n
		}
	})
	return out
}

// Tried implements server.Observer.
func (d *Driver) Tried(id cell.ID) (n int64) {
	if t := d.told(id); t != nil {
		t.now(func() { n = t.away })
	}
	return n
}
