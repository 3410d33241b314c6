package gvisor

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// missing counts the system calls that a cell's commands made and gVisor does not
// have. pando-runsc writes a line for each into a pipe: number and arguments. Who
// broke out of the application kernel may write there whatever he likes, and as
// much; so names are ours, and few.
type missing struct {
	ours, theirs *os.File

	mu     sync.Mutex // guards what follows
	line   []byte     // what came since the end of the last one
	counts map[string]int64
}

const (
	missingKinds = 32  // that one cell's are told apart, and no more
	missingLine  = 128 // bytes of a line that is ours; gVisor's own are longer, and say no more
)

// newMissing makes the pipe and counts what comes until it is closed.
func newMissing() (*missing, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	m := &missing{ours: r, theirs: w, counts: map[string]int64{}}
	raw, err := r.SyscallConn()
	if err != nil {
		m.close()
		return nil, err
	}
	go raw.Read(func(fd uintptr) bool { // until it is closed
		m.mu.Lock()
		defer m.mu.Unlock()
		m.drain(int(fd))
		return false
	})
	return m, nil
}

// drain takes what is in the pipe now.
func (m *missing) drain(fd int) {
	var b [4096]byte
	for {
		n, err := unix.Read(fd, b[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		m.take(b[:n])
	}
}

// take counts the lines of what came.
func (m *missing) take(b []byte) {
	for len(b) > 0 {
		part, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest
		m.line = append(m.line, part[:min(len(part), missingLine+1-len(m.line))]...)
		if !ended {
			return
		}
		if name := missingName(string(m.line)); name != "" {
			if m.counts[name] == 0 && len(m.counts) >= missingKinds {
				name = keeper.MissingOthers
			}
			m.counts[name]++
		}
		m.line = m.line[:0]
	}
}

// missingName is the call that a line tells of; "" if it tells of none.
func missingName(line string) string {
	f := strings.Fields(line)
	if len(line) > missingLine || len(f) != 4 {
		return ""
	}
	var n [4]uint64
	for i := range n {
		v, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return ""
		}
		n[i] = v
	}
	if n[0] >= uint64(len(callNames())) {
		return ""
	}
	switch name := callNames()[n[0]]; name {
	case "rseq": // glibc makes it for each thread that it starts, and does without
		return ""
	// gVisor has those that follow, but not for everything that can be asked with them.
	case "prctl", "arch_prctl", "membarrier":
		return fmt.Sprintf("%s %#x", name, uint32(n[1]))
	case "ioctl", "futex", "shmctl", "fallocate":
		return fmt.Sprintf("%s %#x", name, uint32(n[2]))
	case "setsockopt", "getsockopt":
		return fmt.Sprintf("%s %#x %#x", name, uint32(n[2]), uint32(n[3]))
	case "semctl":
		return fmt.Sprintf("%s %#x", name, uint32(n[3]))
	default:
		return name
	}
}

// callNames are the names of system calls by their numbers.
var callNames = sync.OnceValue(func() []string {
	arch := linux.AMD64
	if runtime.GOARCH == "arm64" {
		arch = linux.ARM64
	}
	var list []string
	for name, nr := range linux.SeccompNumbers(arch) {
		if nr >= len(list) {
			list = append(list, make([]string, nr+1-len(list))...)
		}
		list[nr] = name
	}
	return list
})

// now is what has been counted, all that was written until now with it.
func (m *missing) now() map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if raw, err := m.ours.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { m.drain(int(fd)) })
	}
	return maps.Clone(m.counts)
}

func (m *missing) close() {
	m.ours.Close()
	m.theirs.Close()
}

// MissingCalls implements keeper.Lacking.
func (d *Driver) MissingCalls(id cell.ID) map[string]int64 {
	s, err := d.sandbox(id)
	if err != nil {
		return nil
	}
	return s.missing.now()
}
