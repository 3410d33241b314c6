package guest

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/libcrypto"
)

// renewLimit is the time limit of a renewal. restLimit is the part of it for processes to stop,
// which may be in a long system call. restPause is the poll interval.
const (
	renewLimit = 10 * time.Second
	restLimit  = 2 * time.Second
	restPause  = time.Millisecond
)

// renew makes generators of a copy's processes reseed themselves, if that is possible from
// outside, and marks them. It skips processes that are not verifiably stopped.
func (g *inside) renew(list []hazard.Process) {
	began := time.Now()
	for _, p := range list {
		for i := range p.Generators {
			of := &p.Generators[i]
			if of.Family != hazard.OpenSSL || time.Since(began) > renewLimit {
				continue
			}
			for !g.renewOne(p.PID, of) && time.Since(began) < restLimit {
				time.Sleep(restPause)
			}
		}
	}
}

// renewOne renews one generator. It returns false if the process may still run.
func (g *inside) renewOne(pid int, of *hazard.Generator) (done bool) {
	g.mu.Lock() // while it is held, the processes stay frozen
	defer g.mu.Unlock()
	if !g.still || !g.rests(pid) {
		return false
	}
	of.Renewed = libcrypto.Renew("/proc", pid, of.File) == nil
	return true
}

// rests reports whether no thread of a process can run its own code: the freezer has its whole
// cgroup, or each thread.
func (g *inside) rests(pid int) bool {
	if !g.place.kernel {
		return g.place.frozen(pid)
	}
	n, err := freezer(freezeRests, pid)
	return err == nil && n == 1
}

// frozen reports whether the freezer has stopped all processes in the cgroup of pid.
func (p *place) frozen(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false
	}
	var in string
	ok := false
	for l := range strings.Lines(string(b)) { // version 1 hierarchies may precede it
		if !ok {
			in, ok = strings.CutPrefix(strings.TrimSpace(l), "0::/")
		}
	}
	if !ok || path.Clean("/"+in) != "/"+in {
		return false
	}
	f, err := p.all.up.file(in+"/cgroup.events", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	events := make([]byte, 4096)
	n, _ := f.Read(events)
	for l := range strings.Lines(string(events[:n])) {
		if strings.TrimSpace(l) == "frozen 1" {
			return true
		}
	}
	return false
}
