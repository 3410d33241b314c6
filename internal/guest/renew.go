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

// renewLimit bounds how long a renewal takes: a cell may have many processes. restLimit
// bounds how long of that it waits for processes to stand still, which may be in a system
// call that takes its time, and restPause is between two looks.
const (
	renewLimit = 10 * time.Second
	restLimit  = 2 * time.Second
	restPause  = time.Millisecond
)

// renew has generators of a copy's processes seed themselves anew, where that can be done
// from outside, and notes which. It leaves a process alone that can't be seen to stand
// still.
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

// renewOne is renew of one generator. It reports false when the process may still run.
func (g *inside) renewOne(pid int, of *hazard.Generator) (done bool) {
	g.mu.Lock() // while it is held, nothing lets the processes go on
	defer g.mu.Unlock()
	if !g.still || !g.rests(pid) {
		return false
	}
	of.Renewed = libcrypto.Renew("/proc", pid, of.File) == nil
	return true
}

// rests reports whether no thread of a process can run code of its own: the freezer has
// all of its cgroup, or each thread.
func (g *inside) rests(pid int) bool {
	if !g.place.kernel {
		return g.place.frozen(pid)
	}
	n, err := freezer(freezeRests, pid)
	return err == nil && n == 1
}

// frozen reports whether the freezer has stopped all processes of the cgroup in which one is.
func (p *place) frozen(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false
	}
	var in string
	ok := false
	for l := range strings.Lines(string(b)) { // hierarchies of version 1 may be before it
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
