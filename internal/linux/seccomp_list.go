package linux

import "golang.org/x/sys/unix"

// A SeccompGroup is one row of the table of system calls: calls that share a
// fate and a reason. Every call we have a number for is in exactly one row.
type SeccompGroup struct {
	Name  string
	Why   string         // one sentence
	Calls string         // names, separated by blanks
	Fate  SeccompFate    // what happens when no check says otherwise
	Check []SeccompCheck // conditions on the arguments, in order
	Opens SeccompOption  // the downgrade that allows these calls; "" for none
}

// A SeccompFate is a return value of the filter.
type SeccompFate uint32

// The fates. A filter may also return SeccompErrno of other errors.
const (
	SeccompAllow SeccompFate = unix.SECCOMP_RET_ALLOW
	SeccompKill  SeccompFate = unix.SECCOMP_RET_KILL_PROCESS

	failEPERM  SeccompFate = unix.SECCOMP_RET_ERRNO | SeccompFate(unix.EPERM)
	failENOSYS SeccompFate = unix.SECCOMP_RET_ERRNO | SeccompFate(unix.ENOSYS)
)

// SeccompErrno is the fate of a call that fails with e without being made.
func SeccompErrno(e unix.Errno) SeccompFate { return unix.SECCOMP_RET_ERRNO | SeccompFate(e) }

func (f SeccompFate) String() string {
	switch {
	case f == SeccompAllow:
		return "allow"
	case f == SeccompKill:
		return "kill"
	case f&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(f & unix.SECCOMP_RET_DATA))
	}
	return "unknown"
}

// A SeccompOption is a named downgrade of the filter.
type SeccompOption string

// The downgrades, named after the fields of SeccompOptions.
const (
	optPtrace       SeccompOption = "AllowPtrace"
	optNestedUserNS SeccompOption = "AllowNestedUserNS"
	optFork         SeccompOption = "AllowFork"
	optUserfault    SeccompOption = "AllowUserfault"
)

// A SeccompMatch holds when the low 32 bits of an argument, masked, are one of
// In (or none of them, with Not). The low 32 bits are all the kernel looks at
// in every argument tested here: int, unsigned int, umode_t, and the flags of
// clone, which it cuts to 32 bits itself. Looking at more would let
// a program past a check by setting bits that the kernel then ignores.
type SeccompMatch struct {
	Arg  int
	Mask uint32 // 0 means all 32 bits
	In   []uint32
	Not  bool
}

// A SeccompCheck demands Must of a call for which If holds (always, when If is
// nil); a call that does not comply gets Else.
type SeccompCheck struct {
	If    *SeccompMatch
	Must  SeccompMatch
	Else  SeccompFate
	Says  string        // the check in words
	Opens SeccompOption // the downgrade that lifts this check

	// Except are the calls that the downgrade Excepts frees of this check, which
	// then has no If of its own. Exempt is that in words.
	Except  *SeccompMatch
	Excepts SeccompOption
	Exempt  string
}

// Namespace flags of clone. CLONE_NEWTIME is not among them: clone takes that
// bit for a part of the exit signal, only clone3 and unshare know it.
const cloneNewFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

const (
	personaOld26     = 0x0020000 // UNAME26
	personaLinux32   = 0x0000008 // PER_LINUX32
	personaQuery     = 0xffffffff
	renameWhiteout   = unix.RENAME_WHITEOUT
	socketTypeMask   = 0xf // SOCK_TYPE_MASK; the rest are SOCK_CLOEXEC and SOCK_NONBLOCK
	tiocstI, tiocset = unix.TIOCSTI, unix.TIOCSETD
	tiocLinux        = 0x541c // TIOCLINUX, on amd64 and arm64
	tiocCons         = unix.TIOCCONS
)

func isINET() *SeccompMatch {
	return &SeccompMatch{Arg: 0, In: []uint32{unix.AF_INET, unix.AF_INET6}}
}

// seccompTable is the policy. Docker's default profile for a container without
// extra capabilities is the yardstick: nothing is allowed here that it denies
// (a test holds the two together). Rows that deny are for the reader and for
// the choice between EPERM and ENOSYS: what no row names is denied as well.
var seccompTable = []SeccompGroup{
	{Name: "read and write", Fate: SeccompAllow,
		Why: "moving bytes through descriptors the process already holds",
		Calls: "read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 lseek sendfile splice tee vmsplice " +
			"copy_file_range readahead fadvise64 sync_file_range sync syncfs fsync fdatasync close close_range dup dup2 dup3 fcntl flock " +
			"pipe pipe2 io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents cachestat"},
	{Name: "files", Fate: SeccompAllow,
		Why: "names, contents and attributes of files; permissions, mounts and Landlock decide which",
		Calls: "open openat openat2 creat stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat " +
			"getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir rename renameat link linkat symlink symlinkat unlink unlinkat " +
			"chmod fchmod fchmodat fchmodat2 chown fchown fchownat lchown umask utime utimes futimesat utimensat truncate ftruncate fallocate " +
			"statfs fstatfs name_to_handle_at " +
			"setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat " +
			"removexattr lremovexattr fremovexattr removexattrat " +
			"inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"},
	{Name: "memory", Fate: SeccompAllow,
		Why: "the process's own address space",
		Calls: "brk mmap munmap mremap mprotect madvise mincore msync mlock mlock2 munlock mlockall munlockall mseal membarrier " +
			"memfd_create pkey_alloc pkey_free pkey_mprotect map_shadow_stack shmget shmat shmdt shmctl"},
	{Name: "processes", Fate: SeccompAllow,
		Why: "children, programs, identity and limits; without capabilities the kernel lets a process only give rights away",
		Calls: "fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal prctl arch_prctl " +
			"getpid getppid gettid getpgid setpgid getpgrp getsid setsid getuid geteuid getresuid setuid setreuid setresuid setfsuid " +
			"getgid getegid getresgid setgid setregid setresgid setfsgid getgroups setgroups capget capset " +
			"getrlimit setrlimit prlimit64 getrusage times getpriority setpriority ioprio_get ioprio_set getcpu uname sysinfo " +
			"set_tid_address set_robust_list get_robust_list rseq restart_syscall uretprobe"},
	{Name: "scheduling and waiting", Fate: SeccompAllow,
		Why: "threads, clocks, timers, signals and events of the process itself",
		Calls: "futex futex_wait futex_wake futex_requeue futex_waitv sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam " +
			"sched_getscheduler sched_setscheduler sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval " +
			"time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm pause getitimer setitimer " +
			"timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime " +
			"rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack " +
			"signalfd signalfd4 eventfd eventfd2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2"},
	{Name: "sockets and messages", Fate: SeccompAllow,
		Why: "sockets that exist, and System V and POSIX messages of the cell's own namespace",
		Calls: "bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt shutdown " +
			"sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg " +
			"msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"},
	{Name: "looking around", Fate: SeccompAllow,
		Why:   "randomness, and what /proc/self/mountinfo tells as well",
		Calls: "getrandom statmount listmount"},
	{Name: "sandboxing oneself", Fate: SeccompAllow,
		Why:   "rules of one's own can only narrow what is left",
		Calls: "landlock_create_ruleset landlock_add_rule landlock_restrict_self"},

	{Name: "filters of one's own", Fate: SeccompAllow,
		Why:   "filters only narrow; but a thread that waits for a listener in the cell can't be frozen, so that no checkpoint could be taken",
		Calls: "seccomp",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 1, Mask: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, In: []uint32{0}},
			Else: failEPERM, Says: "flags without SECCOMP_FILTER_FLAG_NEW_LISTENER"}}},
	{Name: "new processes", Fate: SeccompAllow,
		Why:   "threads and children, not namespaces, and not siblings of the command (CLONE_PARENT)",
		Calls: "clone",
		Check: []SeccompCheck{
			{Must: SeccompMatch{Arg: 0, Mask: unix.CLONE_PARENT, In: []uint32{0}}, Else: failEPERM, Says: "flags without CLONE_PARENT"},
			{Must: SeccompMatch{Arg: 0, Mask: cloneNewFlags, In: []uint32{0}}, Else: failEPERM, Says: "flags without CLONE_NEW*", Opens: optNestedUserNS,
				Except: &SeccompMatch{Arg: 0, In: []uint32{ForkFlags, GoOnFlags}}, Excepts: optFork,
				Exempt: "exactly those of a fork (every CLONE_NEW*) or of a source that goes on (CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNS), for as long as the limit of user namespaces is not 0"}}},
	{Name: "terminals and devices", Fate: SeccompAllow,
		Why:   "ioctl is what terminals, sockets and file systems answer to; typing into a terminal and changing its driver are not",
		Calls: "ioctl",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 1, In: []uint32{tiocstI, tiocLinux, tiocCons, tiocset}, Not: true},
			Else: failEPERM, Says: "not TIOCSTI, TIOCLINUX, TIOCCONS or TIOCSETD"}}},
	{Name: "special files", Fate: SeccompAllow,
		Why:   "fifos, sockets and regular files; a device is a way round the file system, and 0:0 is overlayfs's mark of deletion",
		Calls: "mknod",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 1, Mask: unix.S_IFMT, In: []uint32{0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK}},
			Else: failEPERM, Says: "mode of a regular file, fifo or socket"}}},
	{Name: "special files at", Fate: SeccompAllow,
		Why:   "as mknod",
		Calls: "mknodat",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 2, Mask: unix.S_IFMT, In: []uint32{0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK}},
			Else: failEPERM, Says: "mode of a regular file, fifo or socket"}}},
	{Name: "rename", Fate: SeccompAllow,
		Why:   "RENAME_WHITEOUT would leave a 0:0 device, overlayfs's mark of deletion; EINVAL is what overlayfs itself answers",
		Calls: "renameat2",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 4, Mask: renameWhiteout, In: []uint32{0}},
			Else: SeccompErrno(unix.EINVAL), Says: "flags without RENAME_WHITEOUT"}}},
	{Name: "personality", Fate: SeccompAllow,
		Why:   "asking, and the values Docker permits; others switch address randomisation off",
		Calls: "personality",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 0, In: []uint32{0, personaLinux32, personaOld26, personaOld26 | personaLinux32, personaQuery}},
			Else: failEPERM, Says: "persona is 0, 8, 0x20000, 0x20008 or 0xffffffff"}}},
	{Name: "new sockets", Fate: SeccompAllow,
		Why:   "what the gateway can carry; each further family or protocol is a kernel module that a cell could have loaded and attacked",
		Calls: "socket",
		Check: []SeccompCheck{
			{Must: SeccompMatch{Arg: 0, In: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}},
				Else: SeccompErrno(unix.EAFNOSUPPORT), Says: "family is AF_UNIX, AF_INET, AF_INET6 or AF_NETLINK"},
			{If: isINET(), Must: SeccompMatch{Arg: 1, Mask: socketTypeMask, In: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW}},
				Else: SeccompErrno(unix.ESOCKTNOSUPPORT), Says: "AF_INET, AF_INET6: type is SOCK_STREAM, SOCK_DGRAM or SOCK_RAW"},
			{If: isINET(), Must: SeccompMatch{Arg: 2, In: []uint32{0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6}},
				Else: SeccompErrno(unix.EPROTONOSUPPORT), Says: "AF_INET, AF_INET6: protocol is 0, TCP, UDP, ICMP or ICMPv6"},
			{If: &SeccompMatch{Arg: 0, In: []uint32{unix.AF_NETLINK}}, Must: SeccompMatch{Arg: 2, In: []uint32{unix.NETLINK_ROUTE, unix.NETLINK_KOBJECT_UEVENT}},
				Else: SeccompErrno(unix.EPROTONOSUPPORT), Says: "AF_NETLINK: protocol is NETLINK_ROUTE or NETLINK_KOBJECT_UEVENT"}}},
	{Name: "socket pairs", Fate: SeccompAllow,
		Why:   "only AF_UNIX has pairs that programs use",
		Calls: "socketpair",
		Check: []SeccompCheck{{
			Must: SeccompMatch{Arg: 0, In: []uint32{unix.AF_UNIX}},
			Else: SeccompErrno(unix.EAFNOSUPPORT), Says: "family is AF_UNIX"}}},

	{Name: "namespaces and mounts", Fate: failEPERM, Opens: optNestedUserNS,
		Why: "a nested user namespace brings every capability back, and with it most of the kernel's privileged code",
		Calls: "unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr " +
			"sethostname setdomainname"},
	{Name: "clone3", Fate: failENOSYS,
		Why:   "its flags lie in memory, where a filter can't see them; libcs fall back to clone",
		Calls: "clone3"},
	{Name: "other processes' memory", Fate: failEPERM, Opens: optPtrace,
		Why:   "debuggers need it; between the processes of a cell nothing else does",
		Calls: "ptrace process_vm_readv process_vm_writev"},
	{Name: "other processes' descriptors", Fate: failEPERM,
		Why:   "taking descriptors or advice into another process, comparing kernel objects",
		Calls: "pidfd_getfd process_madvise kcmp"},
	{Name: "keys", Fate: failEPERM,
		Why:   "keyrings are not part of any namespace a cell has",
		Calls: "add_key request_key keyctl"},
	{Name: "large attack surface", Fate: failEPERM,
		Why:   "programs in the kernel, its counters, watching whole file systems",
		Calls: "bpf perf_event_open fanotify_init fanotify_mark uprobe"},
	{Name: "page faults answered by programs", Fate: failEPERM, Opens: optUserfault,
		Why:   "a process that answers the kernel's page faults can stall it; the capture of a machine's memory has that process make one",
		Calls: "userfaultfd"},
	{Name: "files by handle", Fate: failEPERM,
		Why:   "opens files by inode number, past every mount",
		Calls: "open_by_handle_at"},
	{Name: "the machine", Fate: failEPERM,
		Why: "modules, kernels, swap, power, accounting, quotas, the kernel's log, ports, terminals of others",
		Calls: "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd syslog " +
			"iopl ioperm vhangup"},
	{Name: "the clock", Fate: failEPERM,
		Why:   "the clock belongs to the host",
		Calls: "settimeofday clock_settime adjtimex clock_adjtime"},
	{Name: "memory placement", Fate: failEPERM,
		Why:   "NUMA policy of the host; Docker denies it as well",
		Calls: "mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages"},
	{Name: "io_uring", Fate: failENOSYS,
		Why:   "makes calls this filter never sees; libuv and others fall back to epoll",
		Calls: "io_uring_setup io_uring_enter io_uring_register"},
	{Name: "hidden memory", Fate: failENOSYS,
		Why:   "no checkpoint could read it",
		Calls: "memfd_secret"},
	{Name: "new and not needed", Fate: failENOSYS,
		Why:   "newer than the programs that would miss them, which fall back",
		Calls: "lsm_get_self_attr lsm_set_self_attr lsm_list_modules file_getattr file_setattr listns rseq_slice_yield process_mrelease"},
	{Name: "old and not needed", Fate: failENOSYS,
		Why: "gone from the kernel, or left for programs that are no longer in use; a kernel without them says ENOSYS",
		Calls: "_sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms get_thread_area getpmsg lookup_dcookie modify_ldt " +
			"nfsservctl putpmsg query_module remap_file_pages security set_thread_area sysfs tuxcall uselib ustat vserver"},
}
