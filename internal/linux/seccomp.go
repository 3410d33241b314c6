package linux

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SeccompOptions are the named downgrades of the filter, and options that make it
// stricter. The zero value is that of a cell's commands. A caller that sets a downgrade
// must record it in the cell's assurance.
type SeccompOptions struct {
	AllowPtrace       bool // debuggers: ptrace, process_vm_readv, process_vm_writev
	AllowNestedUserNS bool // inner sandboxes: clone and unshare with CLONE_NEW*, setns, mounts, chroot
	AllowFork         bool // interpreters: clone with exactly ForkFlags or GoOnFlags
	AllowUserfault    bool // userfaultfd, for programs with memory that is captured while they run

	Refuse []string // calls that get EPERM, whatever the table says of them
}

func (o SeccompOptions) has(opt SeccompOption) bool {
	return opt == optPtrace && o.AllowPtrace || opt == optNestedUserNS && o.AllowNestedUserNS || opt == optFork && o.AllowFork || opt == optUserfault && o.AllowUserfault
}

// What an interpreter's clone may say, and nothing else: a fork has namespaces
// of its own of every kind; a source that goes on keeps its network, and what
// else is no way to those that were forked from it. Both come to life only while
// the limit of user namespaces lets them.
const (
	ForkFlags = GoOnFlags | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	GoOnFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_CHILD_SETTID | unix.CLONE_CHILD_CLEARTID | uint32(unix.SIGCHLD)
)

// A SeccompArch is an architecture as the kernel's audit code numbers it.
type SeccompArch uint32

// The architectures we build for.
const (
	AMD64 SeccompArch = unix.AUDIT_ARCH_X86_64
	ARM64 SeccompArch = unix.AUDIT_ARCH_AARCH64
)

func (a SeccompArch) String() string {
	switch a {
	case AMD64:
		return "amd64"
	case ARM64:
		return "arm64"
	}
	return fmt.Sprintf("architecture %#x", uint32(a))
}

// SeccompTable returns the documented policy, for printing.
func SeccompTable() []SeccompGroup { return slices.Clone(seccompTable) }

// SeccompNumbers returns the numbers of the calls that arch knows, by name.
func SeccompNumbers(arch SeccompArch) map[string]int {
	nums, next := map[string]int{}, 0
	for _, word := range strings.Fields(seccompNames[arch]) {
		if set, ok := strings.CutPrefix(word, "="); ok {
			next, _ = strconv.Atoi(set) // a test reads the whole table
			continue
		}
		nums[word] = next
		next++
	}
	return nums
}

// SeccompFilter returns the filter of namespace cells for the architecture of
// this build.
//
// A call through another architecture's entry (32-bit programs, int 0x80)
// kills the process: its numbers mean other calls, and no program that could
// work here makes one. x32 calls, and all numbers above the newest one we
// know, get ENOSYS, so that libcs fall back as on an older kernel. The rest is
// decided by the table; what it does not name gets EPERM.
func SeccompFilter(opts SeccompOptions) ([]unix.SockFilter, error) {
	return compileSeccomp(NativeArch, opts)
}

// seccompRule is what the filter does with one number.
type seccompRule struct {
	fate  SeccompFate
	check string // name of the call that has the deciding checks; "" for none
}

// seccompPlan says for each number from 0 to the newest what is to be done,
// and lists the rows that have checks under the name of their call.
func seccompPlan(arch SeccompArch, opts SeccompOptions) ([]seccompRule, map[string]SeccompGroup, error) {
	nums, newest := SeccompNumbers(arch), 0
	for _, n := range nums {
		newest = max(newest, n)
	}
	plan := make([]seccompRule, newest+1)
	for i := range plan {
		plan[i] = seccompRule{fate: failENOSYS} // assigned to no call; the kernel would say the same
	}
	for _, n := range nums {
		plan[n] = seccompRule{fate: failEPERM}
	}
	checked := map[string]SeccompGroup{}
	for _, g := range seccompTable {
		for _, name := range strings.Fields(g.Calls) {
			n, ok := nums[name]
			switch {
			case !ok: // not on this architecture
			case g.Opens != "" && opts.has(g.Opens):
				plan[n] = seccompRule{fate: SeccompAllow}
			case len(g.Check) == 0:
				plan[n] = seccompRule{fate: g.Fate}
			default:
				plan[n] = seccompRule{fate: g.Fate, check: name}
				g.Check = slices.DeleteFunc(slices.Clone(g.Check), func(c SeccompCheck) bool { return opts.has(c.Opens) })
				for i, c := range g.Check {
					if c.Except != nil && opts.has(c.Excepts) {
						other := *c.Except
						other.Not = !other.Not
						g.Check[i].If = &other
					}
				}
				checked[name] = g
			}
		}
	}
	for _, name := range opts.Refuse {
		n, here := nums[name]
		_, amd := SeccompNumbers(AMD64)[name]
		_, arm := SeccompNumbers(ARM64)[name]
		switch {
		case here:
			plan[n] = seccompRule{fate: failEPERM}
		case !amd && !arm:
			return nil, nil, fmt.Errorf("cannot make a filter: there is no system call %s", name)
		}
	}
	if len(nums) == 0 {
		return nil, nil, fmt.Errorf("cannot make a filter: no table of system calls for %s", arch)
	}
	return plan, checked, nil
}
