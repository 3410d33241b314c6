package namespace

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// A Jail is what a program keeps of the stage that it is started on. It has a root of
// its own, which can't be written to and has /proc and what See names, and a network
// of its own, which leads nowhere. It never has other capabilities than Caps, nor
// gets any by executing something, and a filter of system calls. It stays in the
// cell's cgroups and other namespaces, and has the files that it was given.
//
// Who is in a jail can't look into another's processes: the cell's first process
// shows nothing of itself, and the kernel lets nobody look into who has more
// capabilities. The keeper, which has all of the family's user namespace, can.
type Jail struct {
	// Caps are capabilities of the family's user namespace, a bit each.
	Caps uint64
	// See are directories of the stage.
	See []string
	// Links are symlinks in its root, by their paths.
	Links map[string]string
	// Refuse are system calls that it is refused (EPERM) beside those of a cell's
	// commands, and beside those that no jail has.
	Refuse []string
	// Taken says that its memory may be taken while it runs (package vmm/ram).
	Taken bool
	// Slack is how late its timers may be; 0 is the kernel's default.
	Slack time.Duration
}

// inNoJail are the calls that nobody in a jail makes: connections are what it was
// given, and other processes nothing to it.
var inNoJail = strings.Fields("socket bind listen accept accept4 connect fork vfork execve " +
	"kill tkill pidfd_open pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo " +
	"shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink")

// filter is the jail's, made once for all who are refused the same.
func (d *Driver) filter(j *Jail) (*linux.SeccompProgram, error) {
	key := fmt.Sprint(j.Taken, j.Refuse)
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.jails[key]; p != nil {
		return p, nil
	}
	code, err := linux.SeccompFilter(linux.SeccompOptions{AllowUserfault: j.Taken, Refuse: append(j.Refuse[:len(j.Refuse):len(j.Refuse)], inNoJail...)})
	if err != nil {
		return nil, err
	}
	p, err := linux.NewSeccompProgram(code)
	if err != nil {
		return nil, fmt.Errorf("cannot make a jail: %w", err)
	}
	if d.jails == nil {
		d.jails = map[string]*linux.SeccompProgram{}
	}
	d.jails[key] = p
	return p, nil
}

// enclose makes the jail around who is on the stage. /tmp is covered by the new root
// while that is built.
func (j *Jail) enclose(s *linux.Script) {
	s.Call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWNS|unix.CLONE_NEWNET)
	s.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k")
	made := map[string]bool{}
	mkdir := func(dirs ...string) {
		for _, dir := range dirs {
			if !made[dir] {
				made[dir] = true
				s.Mkdir("/tmp"+dir, 0o755)
			}
		}
	}
	for at, to := range j.Links {
		mkdir(above(at)...)
		s.Symlink(to, "/tmp"+at)
	}
	for _, p := range append([]string{"/proc"}, j.See...) {
		mkdir(append(above(p), p)...)
		s.Mount(p, "/tmp"+p, "", unix.MS_BIND|unix.MS_REC, "")
	}
	remount(s, "/tmp/proc", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	s.Call("chdir", unix.SYS_CHDIR, "/tmp")
	s.Call("pivot_root", unix.SYS_PIVOT_ROOT, ".", ".") // the old root lies above the new one then
	s.Call("umount the old root", unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	s.Call("chdir", unix.SYS_CHDIR, "/")
	remount(s, "/", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
}

// shed takes from the process what it doesn't keep, for good.
func (j *Jail) shed(s *linux.Script, caps uint64, lastCap int, filter *linux.SeccompProgram) {
	s.KeepCaps(caps, lastCap)
	s.NoNewPrivs()
	address, _ := filter.Prog()
	s.Call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, address)
}
