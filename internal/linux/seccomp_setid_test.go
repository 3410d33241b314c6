package linux

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// No call sets a set-user-id or set-group-id bit, on both architectures: by no
// bits above those that the kernel looks at, and with every flag by which open
// makes a file. All else is left to other filters.
func TestX07NoCallSetsTheBits(t *testing.T) {
	const create, temp = unix.O_CREAT | unix.O_WRONLY, unix.O_TMPFILE | unix.O_RDWR
	type call struct {
		name string
		args func(mode uint64) []uint64
	}
	at := func(i int, before ...uint64) func(uint64) []uint64 {
		return func(mode uint64) []uint64 {
			args := make([]uint64, 6)
			copy(args, before)
			args[i] = mode
			return args
		}
	}
	calls := []call{
		{"chmod", at(1)}, {"fchmod", at(1)}, {"creat", at(1)}, {"mknod", at(1)}, {"fchmodat", at(2)}, {"fchmodat2", at(2)}, {"mknodat", at(2)},
		{"open", at(2, 0, create)}, {"open", at(2, 0, temp)}, {"openat", at(3, 0, 0, create)}, {"openat", at(3, 0, 0, temp)},
		{"openat", at(3, 0, 0, 1<<40|create)}, {"openat", at(3, 0, 0, unix.O_TMPFILE&^unix.O_DIRECTORY)},
	}
	for _, arch := range seccompArches {
		nums := SeccompNumbers(arch)
		for _, server := range []bool{false, true} {
			filter, err := compileNoSetID(arch, server)
			if err != nil {
				t.Fatal(err)
			}
			run := seccompVM(t, filter)
			for _, c := range calls {
				nr, ok := nums[c.name]
				if !ok {
					continue
				}
				for _, bits := range []uint64{0o4000, 0o2000, 0o6000, 0o4755, 0o106755, 1<<63 | 0o4711, 0o7777} {
					if got := run(arch, nr, c.args(bits)...); got != failEPERM {
						t.Errorf("%s: %s with mode %o: %v", arch, c.name, bits, got)
					}
				}
				for _, mode := range []uint64{0, 0o755, 0o1777, 0o100644, 4 << 32 << 9} {
					if got := run(arch, nr, c.args(mode)...); got != SeccompAllow {
						t.Errorf("%s: %s with mode %o: %v", arch, c.name, mode, got)
					}
				}
			}
			// The mode of an open that makes nothing is what was left in a register.
			if got := run(arch, nums["openat"], 0, 0, unix.O_RDWR|unix.O_DIRECTORY, 0o4755); got != SeccompAllow {
				t.Errorf("%s: openat without O_CREAT: %v", arch, got)
			}
			blind := map[string]SeccompFate{"openat2": failENOSYS, "io_uring_setup": failENOSYS, "io_uring_enter": failENOSYS, "io_uring_register": failENOSYS, "file_setattr": failENOSYS}
			if server {
				blind["openat2"] = SeccompAllow
			}
			for name, want := range blind {
				if got := run(arch, nums[name]); got != want {
					t.Errorf("%s: %s: %v, want %v", arch, name, got, want)
				}
			}
			if got := run(arch, 1<<30|nums["chmod"], 0, 0o4755); got != failENOSYS { // an x32 call
				t.Errorf("%s: an x32 call: %v", arch, got)
			}
			if got := run(arch^1, nums["fchmod"], 0, 0); got != SeccompKill {
				t.Errorf("%s: a foreign call: %v", arch, got)
			}
			for name, nr := range nums {
				if _, special := blind[name]; !special && run(arch, nr, 0, 0, 0, 0, 0, 0) != SeccompAllow {
					t.Errorf("%s: %s is refused", arch, name)
				}
			}
		}
	}
}

// Each call of the table of a cell's system calls that gets a mode is in the table
// of those that may not set the bits. A new one is decided here.
func TestX07EveryCallWithAModeIsLookedAt(t *testing.T) {
	known := strings.Fields("chmod fchmod fchmodat fchmodat2 creat mknod mknodat open openat openat2 file_setattr")
	none := strings.Fields("mkdir mkdirat mq_open") // the kernel takes the bits from the first two; queues are the cell's own
	var covered []string
	for _, g := range SetIDTable() {
		covered = append(covered, strings.Fields(g.Calls)...)
	}
	for _, name := range known {
		if !slices.Contains(covered, name) {
			t.Errorf("%s sets modes and is not covered", name)
		}
	}
	for _, g := range seccompTable {
		for _, name := range strings.Fields(g.Calls) {
			like := strings.Contains(name, "chmod") || strings.Contains(name, "mknod") || strings.HasPrefix(name, "open") || strings.HasPrefix(name, "mkdir") || strings.HasPrefix(name, "creat")
			other := strings.HasPrefix(name, "open_") || name == "create_module"
			if like && !other && g.Fate == SeccompAllow && !slices.Contains(covered, name) && !slices.Contains(none, name) {
				t.Errorf("%s may set modes, and no filter looks at it", name)
			}
		}
	}
}
