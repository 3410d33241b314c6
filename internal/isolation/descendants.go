package isolation

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// cgroupNSLink names the cgroup namespace that a command shares with its descendants.
const cgroupNSLink = "/proc/self/ns/cgroup"

// descendants is the cgroup namespace of a command. The open file prevents the kernel from
// reusing its number.
type descendants struct {
	name string // target of cgroupNSLink
	ns   *os.File
}

// openDescendants opens the cgroup namespace of a command that was just started, or returns nil
// if the command has ended.
func openDescendants(child *linux.Child) *descendants {
	f, err := os.Open(procPath(child.PID, "ns/cgroup"))
	if err != nil {
		return nil
	}
	name := child.Captured[cgroupNSLink]
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || name != fmt.Sprintf("cgroup:[%d]", st.Ino) {
		f.Close()
		return nil
	}
	return &descendants{name, f}
}

// Release implements server.Releaser.
func (p *Process) Release() {
	if p.descendants != nil {
		p.descendants.ns.Close()
	}
}

// freezeAfter is how long processes may fork faster than they are killed before the whole cell
// is frozen.
const freezeAfter = time.Second

// EndRest implements server.Process.
func (p *Process) EndRest() (int, error) {
	if p.descendants == nil {
		return 0, cell.Errorf(cell.Internal, "isolation.EndRest", "", "cannot tell what the command started")
	}
	ended := map[int]bool{}
	began, frozen := time.Now(), false
	defer func() {
		if frozen {
			p.cell.thaw()
		}
	}()
	for {
		found, err := p.cell.killDescendants(p.descendants.name, ended)
		if err != nil || found == 0 {
			return len(ended), err
		}
		if frozen { // they die once they are thawed
			return len(ended), nil
		}
		if frozen = time.Since(began) > freezeAfter; frozen {
			if err := p.cell.freeze(); err != nil {
				return len(ended), err
			}
			continue
		}
		time.Sleep(time.Millisecond)
	}
}

// killDescendants kills the processes of a cgroup namespace once, records them in ended, and
// returns how many were alive.
func (c *Cell) killDescendants(family string, ended map[int]bool) (alive int, err error) {
	dir, err := linux.OpenInRoot(c.Init.PID, "/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil || pid == 1 {
			continue
		}
		// The open directory refers to this one process, as a pidfd does.
		fd, err := unix.Openat(int(dir.Fd()), n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // ended
		}
		if cgroupNS(fd) == family && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			ended[pid] = true
			alive++
		}
		unix.Close(fd)
	}
	return alive, nil
}

// cgroupNS names the cgroup namespace of a process by its open directory in /proc, "" for one that has ended.
// A process goes on, with its namespaces, when its first thread alone ends, which has none then.
func cgroupNS(fd int) string {
	buf := make([]byte, 64)
	read := func(name string) string {
		n, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return ""
		}
		return string(buf[:n])
	}
	if ns := read("ns/cgroup"); ns != "" {
		return ns
	}
	for range churn {
		task, err := unix.Openat(fd, "task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return ""
		}
		dir := os.NewFile(uintptr(task), "task")
		threads, _ := dir.Readdirnames(-1)
		dir.Close()
		for _, t := range threads {
			if ns := read("task/" + t + "/ns/cgroup"); ns != "" {
				return ns
			}
		}
		if len(threads) < 2 { // the first one alone, which has ended
			return ""
		}
	}
	return ""
}

// churn is how often the threads of a process are listed that are gone when they are looked at: each may have made
// another before.
const churn = 100
