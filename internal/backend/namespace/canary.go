package namespace

import (
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// A canary is a call that must be refused, made by the very process that then
// becomes the command, with everything in force. A call that is not refused
// ends the process before the command starts.
type canary struct {
	name    string
	bites   string // the enforcement it runs into
	errnos  []unix.Errno
	nr      uintptr
	args    []any
	prepare func(s *linux.Script) linux.Slot // result becomes the first argument
}

var (
	perm     = []unix.Errno{unix.EPERM}
	readonly = []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM}
	absent   = []unix.Errno{unix.ENOENT, unix.EACCES, unix.ENOTDIR}
	noRoute  = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT}
)

// battery is what every command of a cell tries first.
var battery = []canary{
	{name: "mount", bites: "seccomp", errnos: perm, nr: unix.SYS_MOUNT, args: []any{"none", "/tmp", "tmpfs", 0, nil}},
	{name: "new mount API", bites: "seccomp", errnos: perm, nr: unix.SYS_FSOPEN, args: []any{"tmpfs", 0}},
	{name: "unmount", bites: "seccomp", errnos: perm, nr: unix.SYS_UMOUNT2, args: []any{"/proc/sys", unix.MNT_DETACH}},
	{name: "nested user namespace", bites: "seccomp", errnos: perm, nr: unix.SYS_UNSHARE, args: []any{unix.CLONE_NEWUSER}},
	{name: "clone3", bites: "seccomp", errnos: []unix.Errno{unix.ENOSYS}, nr: unix.SYS_CLONE3, args: []any{nil, 0}},
	{name: "enter a namespace", bites: "seccomp", errnos: perm, nr: unix.SYS_SETNS, args: []any{-1, 0}},
	{name: "change the root", bites: "seccomp", errnos: perm, nr: unix.SYS_CHROOT, args: []any{"/tmp"}},
	{name: "trace", bites: "seccomp", errnos: perm, nr: unix.SYS_PTRACE, args: []any{unix.PTRACE_TRACEME, 0, 0, 0}},
	{name: "read another's memory", bites: "seccomp", errnos: perm, nr: unix.SYS_PROCESS_VM_READV, args: []any{1, nil, 0, nil, 0, 0}},
	{name: "kernel keys", bites: "seccomp", errnos: perm, nr: unix.SYS_KEYCTL, args: []any{unix.KEYCTL_GET_KEYRING_ID, -3, 0}},
	{name: "bpf", bites: "seccomp", errnos: perm, nr: unix.SYS_BPF, args: []any{0, nil, 0}},
	{name: "userfaultfd", bites: "seccomp", errnos: perm, nr: unix.SYS_USERFAULTFD, args: []any{0}},
	{name: "raw socket", bites: "capabilities", errnos: perm, nr: unix.SYS_SOCKET, args: []any{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}},
	{name: "packet socket", bites: "seccomp", errnos: []unix.Errno{unix.EPERM, unix.EAFNOSUPPORT}, nr: unix.SYS_SOCKET, args: []any{unix.AF_PACKET, unix.SOCK_RAW, 0}},
	{name: "device node", bites: "capabilities", errnos: perm, nr: unix.SYS_MKNODAT, args: []any{linux.AtCWD, canaryDir + "/mem", unix.S_IFCHR | 0o600, 0x101}},
	{name: "write to /usr", bites: "read-only root", errnos: readonly, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/usr/.pando-canary", unix.O_CREAT | unix.O_WRONLY, 0o600}},
	{name: "write to /", bites: "read-only root", errnos: readonly, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/.pando-canary", unix.O_CREAT | unix.O_WRONLY, 0o600}},
	{name: "write a kernel setting", bites: "read-only root", errnos: readonly, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/proc/sys/kernel/core_pattern", unix.O_WRONLY, 0}},
	{name: "read /etc/shadow", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/etc/shadow", unix.O_RDONLY, 0}},
	{name: "Docker's socket", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/var/run/docker.sock", unix.O_PATH, 0}},
	{name: "reach another host", bites: "network namespace", errnos: noRoute, nr: unix.SYS_CONNECT, args: []any{nil, inet4(192, 0, 2, 1), 16}, prepare: udp(unix.AF_INET)},
	{name: "reach another host over IPv6", bites: "network namespace", errnos: noRoute, nr: unix.SYS_CONNECT, args: []any{nil, inet6(), 28}, prepare: udp(unix.AF_INET6)},
	{name: "metadata service", bites: "network namespace", errnos: noRoute, nr: unix.SYS_CONNECT, args: []any{nil, inet4(169, 254, 169, 254), 16}, prepare: udp(unix.AF_INET)},
}

// landlockCanary is made only where there is Landlock.
var landlockCanary = canary{name: "write where only Landlock forbids it", bites: "landlock", errnos: []unix.Errno{unix.EACCES},
	nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, canaryDir + "/canary", unix.O_CREAT | unix.O_WRONLY, 0o600}}

func (c *liveCell) canaries(s *linux.Script, made *madeProcess) {
	list := battery
	if c.w.Landlock {
		list = append(append([]canary(nil), battery...), landlockCanary)
	}
	seen := map[string]bool{}
	for _, k := range list {
		args := k.args
		if k.prepare != nil {
			args = append([]any{k.prepare(s)}, k.args[1:]...)
		}
		s.Refused(canaryOp+k.name, k.errnos, k.nr, args...)
		if k.prepare != nil {
			s.Try("close", unix.SYS_CLOSE, args[0])
		}
		made.Canaries++
		if !seen[k.bites] {
			seen[k.bites] = true
			made.Bites = append(made.Bites, k.bites)
		}
	}
}

// canaryOp begins the names of canaries in a script.
const canaryOp = "canary: "

func udp(family int) func(*linux.Script) linux.Slot {
	return func(s *linux.Script) linux.Slot {
		return s.Try("socket", unix.SYS_SOCKET, family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
}

// inet4 is a struct sockaddr_in for port 80.
func inet4(a, b, c, d byte) []byte {
	return []byte{unix.AF_INET, 0, 0, 80, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0}
}

// inet6 is a struct sockaddr_in6 for port 80 of 2001:db8::1, an address for
// documentation.
func inet6() []byte {
	b := make([]byte, 28)
	b[0], b[3] = unix.AF_INET6, 80
	b[8], b[9], b[10], b[11], b[23] = 0x20, 0x01, 0x0d, 0xb8, 1
	return b
}
