package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bait are things of the host that a process in a cell must not reach.
type bait struct {
	Files     []string // on the host: nothing of them may be there
	Sockets   []string // of the host, by path
	Abstract  string   // an abstract socket of the host
	TCP       string   // a listener of the host
	PIDs      []int    // of the host: this test, the daemon, keepers
	SharedKey int      // of a System V segment of the host
	Talks     bool     // the cell has a gateway
	HomeFD    uint64   // inode of a host directory, for open_by_handle_at
}

const probeEnv = "PANDO_E2E_PROBE" // set in the process inside

// try is one attempt. It returns nil on success, which must not happen, else the error.
type try struct {
	name string
	do   func() error
}

// attempt is the outcome of one attempt.
type attempt struct {
	Name    string
	Refused string // "" when it worked
}

// probe is the main function of this program as a process in a cell.
func probe() {
	var b bait
	if err := json.Unmarshal([]byte(os.Getenv(probeEnv)), &b); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	runtime.LockOSThread()
	var out []attempt
	for _, list := range [][]try{fileTries(b), namespaceTries(b), processTries(b), kernelTries(), socketTries(b)} {
		for _, t := range list {
			a := attempt{Name: t.name}
			if err := t.do(); err != nil {
				a.Refused = err.Error()
			}
			out = append(out, a)
		}
	}
	json.NewEncoder(os.Stdout).Encode(out)
}

// call makes a system call by number: nil on success.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

func str(s string) uintptr {
	p, _ := unix.BytePtrFromString(s)
	return uintptr(unsafe.Pointer(p))
}

func opens(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func writes(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// anyOf works when one of them works.
func anyOf[T any](list []T, do func(T) error) error {
	var errs []error
	for _, x := range list {
		err := do(x)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, errors.New("none"))...)
}

func fileTries(b bait) (list []try) {
	for _, f := range b.Files {
		list = append(list,
			try{"see " + f, func() error { return opens(f, unix.O_PATH) }},
			try{"read " + f, func() error { return opens(f, unix.O_RDONLY) }},
			try{"write " + f, func() error { return opens(f, unix.O_WRONLY) }})
	}
	for _, f := range []string{"/x", "/usr/x", "/usr/bin/x", "/etc/x", "/dev/x", "/proc/x", "/.pando/x", "/opt/x", "/root/x", "/home/x"} {
		list = append(list, try{"create " + f, func() error { return opens(f, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL) }})
	}
	for _, f := range []string{"/etc/passwd", "/etc/hostname", "/etc/machine-id", "/usr/bin/env", "/bin/sh", "/etc/ld.so.cache"} {
		list = append(list, try{"change " + f, func() error { return opens(f, unix.O_WRONLY) }},
			try{"change the mode of " + f, func() error { return unix.Chmod(f, 0o777) }})
	}
	for _, f := range []string{"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/ssh_host_ed25519_key", "/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/dev/mem", "/dev/port", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/userfaultfd", "/dev/sda", "/dev/vda", "/dev/loop-control",
		"/sys", "/sys/fs/cgroup", "/sys/kernel/security", "/oldroot", "/boot", "/srv/..data", "/var/lib/docker", "/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/root/etc", "/proc/1/cwd/etc", "/proc/1/exe"} {
		list = append(list, try{"read " + f, func() error { return opens(f, unix.O_RDONLY) }})
	}
	for f, text := range map[string]string{
		"/proc/sys/kernel/core_pattern": "|/tmp/x", "/proc/sys/kernel/hostname": "x", "/proc/sys/kernel/modprobe": "/tmp/x", "/proc/sys/vm/overcommit_memory": "1",
		"/proc/sys/user/max_user_namespaces": "100", "/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/fs/binfmt_misc/register": ":x:", "/proc/sys/kernel/randomize_va_space": "0",
		"/proc/sysrq-trigger": "h", "/proc/self/uid_map": "0 0 1", "/proc/self/gid_map": "0 0 1", "/proc/self/setgroups": "allow", "/proc/self/oom_score_adj": "-1000", "/proc/irq/0/smp_affinity": "1",
	} {
		if f == "/proc/sysrq-trigger" { // covered by /dev/null: writing to it does nothing
			list = append(list, try{"reach " + f, func() error {
				var st, null unix.Stat_t
				if unix.Stat(f, &st) == nil && unix.Stat("/dev/null", &null) == nil && st.Rdev == null.Rdev {
					return errors.New("it is /dev/null")
				}
				return opens(f, unix.O_WRONLY)
			}})
			continue
		}
		list = append(list, try{"write " + f, func() error { return writes(f, text) }})
	}
	list = append(list,
		try{"leave the root by ..", func() error {
			var here, there unix.Stat_t
			unix.Stat("/", &here)
			if err := unix.Stat(strings.Repeat("../", 100), &there); err != nil {
				return err
			}
			if here.Dev == there.Dev && here.Ino == there.Ino {
				return errors.New("it is the same root")
			}
			return nil
		}},
		try{"have a descriptor from outside", func() error {
			fds, _ := os.ReadDir("/proc/self/fd")
			for _, e := range fds {
				to, err := os.Readlink("/proc/self/fd/" + e.Name())
				n, _ := strconv.Atoi(e.Name())
				if err != nil || strings.HasPrefix(to, "anon_inode:[event") || strings.HasSuffix(to, "/fd") || n < 3 && (strings.HasPrefix(to, "pipe:") || to == "/dev/null") {
					continue
				}
				fmt.Fprintf(os.Stderr, "descriptor %d is %s\n", n, to)
				return nil
			}
			return errors.New("there are only the three")
		}},
		try{"see a mount that may have set-uid programs or devices", func() error { return mountsAllow() }},
		try{"see a mount that the host's mounts reach", func() error {
			info, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil || strings.Contains(string(info), " master:") || strings.Contains(string(info), " shared:") {
				return err
			}
			return errors.New("all are private")
		}},
		try{"make a device", func() error {
			return anyOf([]uint32{unix.S_IFCHR, unix.S_IFBLK}, func(kind uint32) error {
				return anyOf([]int{0, 0x101, 0x0800}, func(dev int) error { return unix.Mknod("device", kind|0o666, dev) })
			})
		}},
		try{"open by handle", func() error {
			h := unix.NewFileHandle(1, handleOf(b.HomeFD))
			fd, err := unix.Open("/usr", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.OpenByHandleAt(fd, h, unix.O_RDONLY)
			return err
		}},
		try{"open by handle through the workspace", func() error {
			h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, ".", 0)
			if err != nil {
				return err
			}
			fd, err := unix.Open(".", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.OpenByHandleAt(fd, h, unix.O_RDONLY)
			return err
		}},
	)
	return list
}

// handleOf is a file handle of ext4: inode and generation.
func handleOf(ino uint64) []byte {
	b := make([]byte, 8)
	for i := range 4 {
		b[i] = byte(ino >> (8 * i))
	}
	return b
}

// mountsAllow is nil when a mount of the cell allows what none may.
func mountsAllow() error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for l := range strings.Lines(string(info)) {
		f := strings.Fields(l)
		opts := "," + f[5] + ","
		device := strings.HasPrefix(f[4], "/dev/") || f[3] == "/null" // one file each
		ofDev := strings.HasPrefix(f[4], "/dev") || f[3] == "/.empty" // an empty directory of the cell's own /dev
		if !device && !strings.Contains(opts, ",nosuid,") || !device && !ofDev && !strings.Contains(opts, ",nodev,") {
			fmt.Fprint(os.Stderr, l)
			return nil
		}
	}
	return errors.New("none does")
}

// cloned makes a child with flags that ends at once.
func cloned(flags uintptr) error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	unix.Wait4(int(pid), nil, 0, nil)
	return nil
}

func namespaceTries(b bait) (list []try) {
	for name, flag := range map[string]uintptr{"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP} {
		list = append(list,
			try{"unshare " + name, func() error { return call(unix.SYS_UNSHARE, flag) }},
			try{"unshare user and " + name, func() error { return call(unix.SYS_UNSHARE, flag|unix.CLONE_NEWUSER) }},
			try{"clone into a new " + name, func() error { return cloned(flag) }},
			try{"clone into a new user and " + name, func() error { return cloned(flag | unix.CLONE_NEWUSER) }})
	}
	list = append(list,
		try{"unshare time", func() error { return call(unix.SYS_UNSHARE, unix.CLONE_NEWTIME) }},
		try{"clone3", func() error {
			args := [11]uint64{unix.CLONE_NEWUSER}
			args[4] = uint64(unix.SIGCHLD)
			return call(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), 88)
		}},
		try{"child of the keeper", func() error { return cloned(unix.CLONE_PARENT) }},
		try{"setns to what /proc shows", func() error {
			ns, _ := filepath.Glob("/proc/[0-9]*/ns/*")
			return anyOf(ns, func(p string) error {
				fd, err := unix.Open(p, unix.O_RDONLY, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return call(unix.SYS_SETNS, uintptr(fd), 0)
			})
		}},
		try{"setns by pidfd", func() error {
			return anyOf([]int{1, os.Getpid()}, func(pid int) error {
				fd, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return call(unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWNS)
			})
		}},
		try{"mount tmpfs", func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") }},
		try{"mount proc", func() error { return unix.Mount("proc", "/tmp", "proc", 0, "") }},
		try{"mount sysfs", func() error { return unix.Mount("sysfs", "/tmp", "sysfs", 0, "") }},
		try{"mount cgroup", func() error { return unix.Mount("cgroup2", "/tmp", "cgroup2", 0, "") }},
		try{"mount overlay", func() error { return unix.Mount("overlay", "/tmp", "overlay", 0, "lowerdir=/usr:/etc") }},
		try{"bind", func() error { return unix.Mount("/usr", "/tmp", "", unix.MS_BIND, "") }},
		try{"make / writable", func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
		try{"make /usr writable", func() error { return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
		try{"umount /proc/sys", func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) }},
		try{"umount /proc/kcore", func() error { return unix.Unmount("/proc/kcore", unix.MNT_DETACH) }},
		try{"umount /etc", func() error { return unix.Unmount("/etc", unix.MNT_DETACH) }},
		try{"umount /", func() error { return unix.Unmount("/", unix.MNT_DETACH) }},
		try{"pivot_root", func() error { return unix.PivotRoot(".", ".") }},
		try{"chroot", func() error { return unix.Chroot("/tmp") }},
		try{"open_tree", func() error {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/usr", unix.OPEN_TREE_CLONE)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		try{"fsopen", func() error { _, err := unix.Fsopen("tmpfs", 0); return err }},
		try{"fspick", func() error { _, err := unix.Fspick(unix.AT_FDCWD, "/", 0); return err }},
		try{"mount_setattr", func() error { return unix.MountSetattr(unix.AT_FDCWD, "/usr", 0, &unix.MountAttr{}) }},
		try{"move_mount", func() error { return unix.MoveMount(unix.AT_FDCWD, "/usr", unix.AT_FDCWD, "/tmp", 0) }},
		try{"sethostname", func() error { return unix.Sethostname([]byte("x")) }},
		try{"setdomainname", func() error { return unix.Setdomainname([]byte("x")) }},
	)
	return list
}

func processTries(b bait) []try {
	// others are the processes that /proc shows, first of all the cell's first.
	others := func() (pids []int) {
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, d := range dirs {
			if n, _ := strconv.Atoi(filepath.Base(d)); n != os.Getpid() {
				pids = append(pids, n)
			}
		}
		return pids
	}
	of := func(name string) func(int) error {
		return func(pid int) error { return opens(fmt.Sprintf("/proc/%d/%s", pid, name), unix.O_RDONLY) }
	}
	list := []try{
		{"see the host's processes", func() error {
			return anyOf(b.PIDs, func(pid int) error {
				cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if err != nil || strings.HasPrefix(string(cmd), "pando-") || strings.Contains(string(cmd), "e2e.test") {
					return err
				}
				return errors.New("it is one of the cell's")
			})
		}},
		{"signal the host's processes", func() error { return anyOf(b.PIDs, func(pid int) error { return unix.Kill(pid, 0) }) }},
		{"end the cell's first process", func() error {
			if err := unix.Kill(1, unix.SIGKILL); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
			return errors.New("it and everything in the cell live on")
		}},
		{"ptrace", func() error {
			return anyOf(others(), func(pid int) error { return unix.PtraceSeize(pid) })
		}},
		{"ptrace a child", func() error { return call(unix.SYS_PTRACE, unix.PTRACE_TRACEME) }},
		{"process_vm_readv", func() error {
			return anyOf(others(), func(pid int) error {
				b := make([]byte, 8)
				l := []unix.Iovec{{Base: &b[0], Len: 8}}
				_, err := unix.ProcessVMReadv(pid, l, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
				return err
			})
		}},
		{"process_vm_writev", func() error { return call(unix.SYS_PROCESS_VM_WRITEV, 1, 0, 0, 0, 0, 0) }},
		{"pidfd_getfd", func() error {
			return anyOf(others(), func(pid int) error {
				fd, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				_, err = unix.PidfdGetfd(fd, 0, 0)
				return err
			})
		}},
		{"kcmp", func() error { return call(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 0, 0) }},
		{"raise a limit", func() error {
			var l unix.Rlimit
			unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
			return unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: l.Max + 1, Max: l.Max + 1}, nil)
		}},
		{"get a capability", func() error {
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
			return unix.Capset(&head, &data[0])
		}},
		{"run without no_new_privs, filter, or with a strong capability", func() error {
			st, err := os.ReadFile("/proc/self/status")
			if err != nil {
				return err
			}
			field := func(k string) string {
				_, rest, _ := strings.Cut(string(st), "\n"+k+":")
				v, _, _ := strings.Cut(rest, "\n")
				return strings.TrimSpace(v)
			}
			const strong = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SYS_MODULE | 1<<unix.CAP_MKNOD | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_BPF | 1<<unix.CAP_DAC_READ_SEARCH
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				n, err := strconv.ParseUint(field(set), 16, 64)
				if err != nil || n&strong != 0 {
					return nil
				}
			}
			if field("NoNewPrivs") != "1" || field("Seccomp") != "2" {
				return nil
			}
			return errors.New("all are in force")
		}},
		{"find the first process without filter", func() error {
			st, err := os.ReadFile("/proc/1/status")
			if err != nil || !strings.Contains(string(st), "\nSeccomp:\t2\n") || !strings.Contains(string(st), "\nCapEff:\t0000000000000000\n") {
				return err
			}
			return errors.New("it has the filter, and no capability")
		}},
		{"gain by a set-uid file", func() error {
			if err := os.WriteFile("suid", []byte("#!/bin/sh\n"), 0o755); err != nil {
				return err
			}
			if err := os.Chmod("suid", 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
				return err
			}
			var fs unix.Statfs_t
			if err := unix.Statfs("suid", &fs); err != nil || fs.Flags&unix.ST_NOSUID == 0 {
				return err
			}
			return errors.New("its mount is nosuid")
		}},
	}
	for _, n := range []string{"mem", "root/etc", "cwd/.", "environ", "maps", "fd/0", "exe", "ns/mnt"} {
		list = append(list, try{"open " + n + " of the first process", func() error { return of(n)(1) }})
	}
	return list
}

func kernelTries() (list []try) {
	zero := make([]byte, 256)
	buf := uintptr(unsafe.Pointer(&zero[0]))
	for _, c := range []struct {
		name string
		nr   uintptr
		args []uintptr
	}{
		{"keyctl", unix.SYS_KEYCTL, []uintptr{unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 0}},
		{"add_key", unix.SYS_ADD_KEY, []uintptr{str("user"), str("x"), buf, 1, ^uintptr(2)}},
		{"request_key", unix.SYS_REQUEST_KEY, []uintptr{str("user"), str("x"), 0, ^uintptr(2)}},
		{"bpf", unix.SYS_BPF, []uintptr{0, buf, 72}},
		{"userfaultfd", unix.SYS_USERFAULTFD, []uintptr{1}},
		{"io_uring", unix.SYS_IO_URING_SETUP, []uintptr{8, buf}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, []uintptr{buf, 0, ^uintptr(0), ^uintptr(0), 0}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, nil},
		{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, []uintptr{^uintptr(0), ^uintptr(0), 0, 0, 0}},
		{"init_module", unix.SYS_INIT_MODULE, []uintptr{buf, 8, buf}},
		{"finit_module", unix.SYS_FINIT_MODULE, []uintptr{0, buf, 0}},
		{"delete_module", unix.SYS_DELETE_MODULE, []uintptr{str("x"), 0}},
		{"personality without address randomisation", unix.SYS_PERSONALITY, []uintptr{0x0040000}},
		{"reboot", unix.SYS_REBOOT, []uintptr{unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF, 0}},
		{"swapoff", unix.SYS_SWAPOFF, []uintptr{str("/x")}},
		{"acct", unix.SYS_ACCT, []uintptr{0}},
		{"syslog", unix.SYS_SYSLOG, []uintptr{3, buf, 16}},
		{"quotactl", unix.SYS_QUOTACTL, []uintptr{0x800001 << 8, 0, 0, 0}},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, []uintptr{0, buf}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, []uintptr{buf, 0}},
		{"adjtimex", unix.SYS_ADJTIMEX, []uintptr{buf}},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, []uintptr{0, 0}},
		{"memfd_secret", 447, []uintptr{0}},
		{"process_madvise", unix.SYS_PROCESS_MADVISE, []uintptr{0, buf, 0, 0, 0}},
		{"move_pages", unix.SYS_MOVE_PAGES, []uintptr{1, 0, 0, 0, 0, 0}},
		{"migrate_pages", unix.SYS_MIGRATE_PAGES, []uintptr{1, 0, 0, 0}},
		{"vhangup", unix.SYS_VHANGUP, nil},
		{"a listener for a filter", unix.SYS_SECCOMP, []uintptr{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, buf}},
	} {
		list = append(list, try{c.name, func() error { return call(c.nr, c.args...) }})
	}
	return append(list,
		try{"type into a terminal", func() error { return onTerminal(unix.TIOCSTI) }},
		try{"TIOCLINUX", func() error { return onTerminal(0x541c) }},
		try{"TIOCCONS", func() error { return onTerminal(unix.TIOCCONS) }},
		try{"TIOCSETD", func() error { return onTerminal(unix.TIOCSETD) }})
}

// onTerminal makes a request of a terminal that the cell itself made.
func onTerminal(req uintptr) error {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("a cell has terminals of its own: %w", err)
	}
	defer unix.Close(m)
	unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0)
	n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if e != 0 {
		return fmt.Errorf("a cell has terminals of its own: %w", e)
	}
	s := int(n)
	defer unix.Close(s)
	b := []byte{0, 0, 0, 0}
	return call(unix.SYS_IOCTL, uintptr(s), req, uintptr(unsafe.Pointer(&b[0])))
}

func socketTries(b bait) (list []try) {
	for _, s := range []struct {
		name         string
		family, kind int
		proto        int
	}{
		{"raw IPv4", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6}, {"raw TCP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0x300}, {"packet datagram", unix.AF_PACKET, unix.SOCK_DGRAM, 0x300}, {"netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{"audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, {"crypto netlink", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_CRYPTO}, {"kernel crypto", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0}, {"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 1}, {"ipsec key", unix.AF_KEY, unix.SOCK_RAW, 2}, {"xdp", unix.AF_XDP, unix.SOCK_RAW, 0},
		{"can", unix.AF_CAN, unix.SOCK_RAW, 1}, {"sctp", unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP}, {"tipc", unix.AF_TIPC, unix.SOCK_RDM, 0}, {"rds", unix.AF_RDS, unix.SOCK_SEQPACKET, 0},
	} {
		list = append(list, try{s.name + " socket", func() error {
			fd, err := unix.Socket(s.family, s.kind, s.proto)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}})
	}
	dial := func(network, addr string) error {
		c, err := net.DialTimeout(network, addr, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, s := range b.Sockets {
		list = append(list, try{"connect to " + s, func() error { return dial("unix", s) }})
	}
	return append(list,
		try{"connect to an abstract socket of the host", func() error { return dial("unix", b.Abstract) }},
		try{"connect to the host", func() error { return dial("tcp", b.TCP) }},
		try{"connect to the world", func() error { return dial("tcp", "192.0.2.1:80") }},
		try{"ask a name server", func() error {
			c, err := net.Dial("udp", "192.0.2.53:53")
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Second))
			if _, err := c.Write(make([]byte, 12)); err != nil {
				return err
			}
			_, err = c.Read(make([]byte, 12))
			return err
		}},
		try{"find an interface", func() error {
			list, err := net.Interfaces()
			if err != nil {
				return nil
			}
			for _, i := range list {
				if i.Name != "lo" && !(b.Talks && i.Name == "pando0") {
					return nil
				}
			}
			return errors.New("there is nothing but the cell's own")
		}},
		try{"take its interface down", func() error { return setFlags("pando0", 0) }},
		try{"take its loopback down", func() error { return setFlags("lo", 0) }},
		try{"find the host's shared memory", func() error {
			_, err := unix.SysvShmGet(b.SharedKey, 0, 0)
			return err
		}},
	)
}

// setFlags sets the flags of an interface, as `ip link set` does.
func setFlags(name string, flags uint16) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}
