package namespace

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// familyLink names the namespace by which a command and everything that it
// started are known.
const familyLink = "/proc/self/ns/cgroup"

// family is the namespace of a command, held open: its number is given to no
// other as long as it is asked by it who belongs to the command.
type family struct {
	name string // as familyLink says
	hold *os.File
}

// holdFamily opens the namespace of a command that was just started. It is not
// there when the command has ended already.
func holdFamily(child *linux.Child) *family {
	f, err := os.Open(procPath(child.PID, "ns/cgroup"))
	if err != nil {
		return nil
	}
	name := child.Captured[familyLink]
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || name != fmt.Sprintf("cgroup:[%d]", st.Ino) {
		f.Close()
		return nil
	}
	return &family{name, f}
}

// Release implements keeper.Releaser.
func (p *process) Release() {
	if p.family != nil {
		p.family.hold.Close()
	}
}

// calm is how long processes may go on forking faster than they are killed
// before the whole cell is frozen for it.
const calm = time.Second

// EndRest implements keeper.Process.
func (p *process) EndRest() (int, error) {
	if p.family == nil {
		return 0, cell.Errorf(cell.Internal, "namespace.EndRest", "", "cannot tell what the command started")
	}
	ended := map[int]bool{}
	began, frozen := time.Now(), false
	defer func() {
		if frozen {
			p.cell.thaw()
		}
	}()
	for {
		found, err := p.cell.endFamily(p.family.name, ended)
		if err != nil || found == 0 {
			return len(ended), err
		}
		if frozen { // they die as soon as they are thawed
			return len(ended), nil
		}
		if frozen = time.Since(began) > calm; frozen {
			if err := p.cell.freeze(); err != nil {
				return len(ended), err
			}
			continue
		}
		time.Sleep(time.Millisecond)
	}
}

// endFamily kills the processes of a family once, notes them in ended, and
// returns how many were alive.
func (c *liveCell) endFamily(family string, ended map[int]bool) (alive int, err error) {
	dir, err := os.Open(procPath(c.init.PID, "root/proc"))
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
		// The directory stands for this one process, as a pidfd does.
		fd, err := unix.Openat(int(dir.Fd()), n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // gone
		}
		buf := make([]byte, 64)
		k, err := unix.Readlinkat(fd, "ns/cgroup", buf)
		if err == nil && string(buf[:k]) == family && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			ended[pid] = true
			alive++
		}
		unix.Close(fd)
	}
	return alive, nil
}
