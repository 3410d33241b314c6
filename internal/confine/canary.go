package confine

import (
	"encoding/binary"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// CanaryDir is pando's own directory in a cell: writable for mounts, and forbidden by Landlock.
const CanaryDir = "/.pando"

// A canary is a call that must be refused. The process that becomes the command makes it with
// all restrictions in force. If the call is not refused, the process exits before the command
// starts.
type canary struct {
	name    string
	bites   string // the restriction that refuses it
	errnos  []unix.Errno
	nr      uintptr
	args    []any
	prepare func(s *linux.Script) linux.Slot // its result becomes the first argument
	path    string                           // its path; the canary is skipped if the cell may write there or its image has it
}

var (
	perm     = []unix.Errno{unix.EPERM}
	readonly = []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM}
	absent   = []unix.Errno{unix.ENOENT, unix.EACCES, unix.ENOTDIR}
	noIoctl  = []unix.Errno{unix.EPERM, unix.ENOTTY} // gVisor has none that change anything
	noRoute  = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT}
)

// battery lists the canaries of every command.
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
	{name: "device node", bites: "capabilities", errnos: perm, nr: unix.SYS_MKNODAT, args: []any{linux.AtCWD, CanaryDir + "/mem", unix.S_IFCHR | 0o600, 0x101}},
	{name: "write to /usr", bites: "read-only root", errnos: []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM, unix.ENOENT}, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/usr/.pando-canary", unix.O_CREAT | unix.O_WRONLY, 0o600}, path: "/usr/.pando-canary"},
	{name: "write to /", bites: "read-only root", errnos: readonly, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/.pando-canary", unix.O_CREAT | unix.O_WRONLY, 0o600}, path: "/.pando-canary"},
	{name: "write a kernel setting", bites: "read-only root", errnos: append(readonly, unix.ENOENT), nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/proc/sys/kernel/core_pattern", unix.O_WRONLY, 0}},
	{name: "read /etc/shadow", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/etc/shadow", unix.O_RDONLY, 0}, path: "/etc/shadow"},
	{name: "take back a capability", bites: "capabilities", errnos: perm, nr: unix.SYS_PRCTL, args: []any{unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0}},
	{name: "raise a limit", bites: "limits", errnos: perm, nr: unix.SYS_PRLIMIT64, args: []any{0, unix.RLIMIT_CORE, rlimit(1 << 20), nil}},
	{name: "write a cgroup's limits", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/sys/fs/cgroup/cgroup.procs", unix.O_WRONLY, 0}},
	{name: "change an interface", bites: "capabilities", errnos: noIoctl, nr: unix.SYS_IOCTL, args: []any{nil, unix.SIOCSIFFLAGS, ifreq("lo")}, prepare: socket(unix.AF_INET, unix.SOCK_DGRAM)},
	{name: "change a route", bites: "capabilities", errnos: noIoctl, nr: unix.SYS_IOCTL, args: []any{nil, unix.SIOCADDRT, make([]byte, 128)}, prepare: socket(unix.AF_INET, unix.SOCK_DGRAM)},
	{name: "the host's SSH key", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/etc/ssh/ssh_host_ed25519_key", unix.O_RDONLY, 0}, path: "/etc/ssh/ssh_host_ed25519_key"},
	{name: "root's .netrc", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/root/.netrc", unix.O_RDONLY, 0}, path: "/root/.netrc"},
	{name: "the host's memory", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, "/dev/mem", unix.O_RDONLY, 0}},
}

// hostSockets are sockets of the host in /run. A new cell has none of them; later the cell may
// have made its own.
var hostSockets = []struct{ name, path string }{
	{"Docker's socket", "/run/docker.sock"}, {"containerd's socket", "/run/containerd/containerd.sock"},
	{"Podman's socket", "/run/podman/podman.sock"}, {"D-Bus", "/run/dbus/system_bus_socket"},
}

// HostSockets adds the canaries of a new cell, before anything runs in it.
func HostSockets(s *linux.Script) {
	for _, k := range hostSockets {
		s.Refused(CanaryOp+k.name, absent, unix.SYS_OPENAT, linux.AtCWD, k.path, unix.O_PATH, 0)
	}
}

// landlockCanary needs Landlock.
var landlockCanary = canary{name: "write where only Landlock forbids it", bites: "landlock", errnos: []unix.Errno{unix.EACCES},
	nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, CanaryDir + "/canary", unix.O_CREAT | unix.O_WRONLY, 0o600}}

// silent lists the canaries of a cell with only loopback.
var silent = []canary{
	{name: "reach another host", bites: "network namespace", errnos: noRoute, nr: unix.SYS_CONNECT, args: []any{nil, inet4(192, 0, 2, 1), 16}, prepare: socket(unix.AF_INET, unix.SOCK_DGRAM)},
	{name: "reach another host over IPv6", bites: "network namespace", errnos: noRoute, nr: unix.SYS_CONNECT, args: []any{nil, inet6(), 28}, prepare: socket(unix.AF_INET6, unix.SOCK_DGRAM)},
	{name: "metadata service", bites: "network namespace", errnos: noRoute, nr: unix.SYS_CONNECT, args: []any{nil, inet4(169, 254, 169, 254), 16}, prepare: socket(unix.AF_INET, unix.SOCK_DGRAM)},
}

// Add counts a canary, and returns the name of its call.
func (m *Measured) Add(name, bites string) string {
	m.Canaries++
	if !slices.Contains(m.Bites, bites) {
		m.Bites = append(m.Bites, bites)
	}
	return CanaryOp + name
}

// Place is what the canaries must know about their cell.
type Place struct {
	Landlock bool     `json:"landlock,omitempty"` // a domain is in force
	Silent   bool     `json:"silent,omitempty"`   // it has only loopback
	Writable []string `json:"writable"`           // paths where mounts allow writing
	State    string   `json:"state"`              // a directory of pando on the host
	Bait     []byte   `json:"bait"`               // address of a listening socket on the host
}

// Canaries adds all canaries that need no gateway.
func (p *Place) Canaries(s *linux.Script, made *Measured) {
	list := slices.Clone(battery)
	if p.Landlock {
		list = append(list, landlockCanary)
	}
	list = append(list,
		canary{name: "pando's own state", bites: "mount namespace", errnos: absent, nr: unix.SYS_OPENAT, args: []any{linux.AtCWD, p.State, unix.O_PATH, 0}, path: p.State},
		canary{name: "a socket of the host", bites: "network namespace", errnos: []unix.Errno{unix.ECONNREFUSED}, nr: unix.SYS_CONNECT,
			args: []any{nil, p.Bait, len(p.Bait)}, prepare: socket(unix.AF_UNIX, unix.SOCK_STREAM)})
	if p.Silent {
		list = append(list, silent...)
	}
	for _, k := range list {
		if k.path != "" && slices.ContainsFunc(p.Writable, func(w string) bool { return writes(w, k.path) }) {
			continue
		}
		args := k.args
		if k.prepare != nil {
			args = append([]any{k.prepare(s)}, k.args[1:]...)
		}
		s.Refused(made.Add(k.name, k.bites), k.errnos, k.nr, args...)
		if k.prepare != nil {
			s.Try("close", unix.SYS_CLOSE, args[0])
		}
	}
}

// writes reports whether a mount at a writable path allows writing at p. The root directory's has mounts at all that is below it.
func writes(at, p string) bool {
	if at == "/" {
		return path.Dir(p) == "/"
	}
	return p == at || strings.HasPrefix(p, at+"/")
}

// CanaryOp is the prefix of canaries in a script.
const CanaryOp = "canary: "

func socket(family, kind int) func(*linux.Script) linux.Slot {
	return func(s *linux.Script) linux.Slot {
		return s.Try("socket", unix.SYS_SOCKET, family, kind|unix.SOCK_CLOEXEC, 0)
	}
}

// ifreq returns a struct ifreq that takes an interface down.
func ifreq(name string) []byte {
	b := make([]byte, 40)
	copy(b, name)
	return b
}

// rlimit returns a struct rlimit.
func rlimit(n uint64) []byte {
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, n), n)
}

// inet4 returns a struct sockaddr_in for port 80.
func inet4(a, b, c, d byte) []byte {
	return []byte{unix.AF_INET, 0, 0, 80, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0}
}

// inet6 returns a struct sockaddr_in6 for port 80 of 2001:db8::1, a documentation address.
func inet6() []byte {
	b := make([]byte, 28)
	b[0], b[3] = unix.AF_INET6, 80
	b[8], b[9], b[10], b[11], b[23] = 0x20, 0x01, 0x0d, 0xb8, 1
	return b
}
