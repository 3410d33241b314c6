package isolation

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// A Jail confines a program that is started on a stage. It has a read-only root with /proc and
// the directories in See, and an empty network namespace. It has at most the capabilities in
// Caps, gains none by execve, and has a seccomp filter. It stays in the cell's cgroups and
// other namespaces, and keeps the files it was given.
//
// A process in a jail cannot inspect others: the cell's first process is not dumpable, and the
// kernel refuses access to processes with more capabilities. The keeper, with all capabilities
// in the family's user namespace, can inspect it.
type Jail struct {
	// Caps is a bit set of capabilities in the family's user namespace.
	Caps uint64
	// See lists directories of the stage.
	See []string
	// Links maps the paths of symlinks in the jail's root to their targets.
	Links map[string]string
	// Refuse lists further system calls to refuse with EPERM.
	Refuse []string
	// Taken allows taking its memory while it runs (package vmm/ram).
	Taken bool
	// Slack is the timer slack; 0 is the kernel's default.
	Slack time.Duration
}

// inNoJail lists the system calls that every jail refuses: new connections, new processes, and
// access to other processes.
var inNoJail = strings.Fields("socket bind listen accept accept4 connect fork vfork execve " +
	"kill tkill pidfd_open pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo " +
	"shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink")

// filter returns the jail's seccomp filter, cached per set of refused calls.
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

// enclose adds the setup of the jail to s. The new root covers /tmp while it is built.
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
	s.Call("pivot_root", unix.SYS_PIVOT_ROOT, ".", ".") // the old root is now mounted over the new one
	s.Call("umount the old root", unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	s.Call("chdir", unix.SYS_CHDIR, "/")
	remount(s, "/", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
}

// shed drops capabilities for good and installs the filter.
func (j *Jail) shed(s *linux.Script, caps uint64, lastCap int, filter *linux.SeccompProgram) {
	s.KeepCaps(caps, lastCap)
	s.NoNewPrivs()
	address, _ := filter.Prog()
	s.Call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, address)
}
