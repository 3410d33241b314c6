package linux

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var seccompArches = []SeccompArch{AMD64, ARM64}

func allSeccompOptions() []SeccompOptions {
	return []SeccompOptions{{}, {AllowPtrace: true}, {AllowNestedUserNS: true}, {AllowPtrace: true, AllowNestedUserNS: true}, {AllowFork: true}, {AllowFork: true, AllowNestedUserNS: true},
		{Refuse: []string{"socket", "fork", "kill", "unshare", "mkdirat"}}}
}

// The numbers are those of golang.org/x/sys, both ways, for both architectures.
func TestSeccompNumbers(t *testing.T) {
	for name, n := range map[string]int{"read": unix.SYS_READ, "clone3": unix.SYS_CLONE3, "seccomp": unix.SYS_SECCOMP,
		"openat": unix.SYS_OPENAT, "ioctl": unix.SYS_IOCTL, "listns": unix.SYS_LISTNS, "rseq_slice_yield": unix.SYS_RSEQ_SLICE_YIELD} {
		if got := SeccompNumbers(NativeArch)[name]; got != n {
			t.Errorf("%s is %d, want %d", name, got, n)
		}
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		t.Skipf("needs the go command and golang.org/x/sys in its module cache: %v", err)
	}
	for _, arch := range seccompArches {
		src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "unix", "zsysnum_linux_"+arch.String()+".go"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{}
		for _, m := range regexp.MustCompile(`SYS_(\w+)\s*=\s*(\d+)`).FindAllStringSubmatch(string(src), -1) {
			want[strings.ToLower(m[1])], _ = strconv.Atoi(m[2])
		}
		delete(want, "arch_specific_syscall") // the start of a range, not a call
		if got := SeccompNumbers(arch); len(got) < 300 || !maps.Equal(got, want) {
			for name := range want {
				if got[name] != want[name] {
					t.Errorf("%s: %s is %d, want %d", arch, name, got[name], want[name])
				}
			}
			t.Errorf("%s: %d calls, golang.org/x/sys has %d", arch, len(got), len(want))
		}
	}
}

// Each call has one row, each row has a reason and names calls that exist.
func TestSeccompTableIsComplete(t *testing.T) {
	row := map[string]string{}
	for _, g := range seccompTable {
		if g.Why == "" || g.Name == "" || g.Calls == "" {
			t.Errorf("row %q lacks a name, a reason or calls", g.Name)
		}
		for _, name := range strings.Fields(g.Calls) {
			if row[name] != "" {
				t.Errorf("%s is in rows %q and %q", name, row[name], g.Name)
			}
			row[name] = g.Name
			_, x := SeccompNumbers(AMD64)[name]
			_, a := SeccompNumbers(ARM64)[name]
			if !x && !a {
				t.Errorf("row %q names %s, which no architecture has", g.Name, name)
			}
		}
	}
	for _, arch := range seccompArches {
		for name := range SeccompNumbers(arch) {
			if row[name] == "" {
				t.Errorf("%s is in no row", name)
			}
		}
	}
}

// What Docker's default profile (moby/profiles, 2026) denies a container
// without extra capabilities on amd64 and arm64.
const dockerDenies = `_sysctl acct add_key afs_syscall bpf chroot clock_settime clone3 create_module
delete_module fanotify_init file_getattr file_setattr finit_module fsconfig fsmount fsopen fspick get_kernel_syms
get_mempolicy getpmsg init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
kexec_load keyctl listns lookup_dcookie lsm_get_self_attr lsm_list_modules lsm_set_self_attr mbind migrate_pages mount
mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd
pivot_root process_madvise putpmsg query_module quotactl quotactl_fd reboot request_key rseq_slice_yield security
set_mempolicy set_mempolicy_home_node setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog tuxcall
umount2 unshare uprobe uselib userfaultfd ustat vhangup vserver`

func TestSeccompWithinDocker(t *testing.T) {
	denied := strings.Fields(dockerDenies)
	for _, g := range seccompTable {
		for _, name := range strings.Fields(g.Calls) {
			if g.Fate == SeccompAllow && slices.Contains(denied, name) {
				t.Errorf("%s is allowed here and denied by Docker", name)
			}
		}
	}
	run := newSeccompVM(t, AMD64, SeccompOptions{})
	nums := SeccompNumbers(AMD64)
	for _, family := range []uint64{unix.AF_ALG, unix.AF_VSOCK} {
		if run(AMD64, nums["socket"], family) == SeccompAllow {
			t.Errorf("socket(%d) is allowed here and denied by Docker", family)
		}
	}
	for persona := range uint64(1 << 28) {
		if persona&(persona-1) != 0 && persona > 0xff {
			continue // only small numbers and single bits
		}
		allowed := persona == 0 || persona == 8 || persona == 0x20000
		if got := run(AMD64, nums["personality"], persona) == SeccompAllow; got != allowed {
			t.Errorf("personality(%#x) allowed = %v, Docker says %v", persona, got, allowed)
		}
	}
}

// newSeccompVM compiles a filter and returns a function that runs it in the
// interpreter of golang.org/x/net/bpf.
func newSeccompVM(t *testing.T, arch SeccompArch, opts SeccompOptions) func(arch SeccompArch, nr int, args ...uint64) SeccompFate {
	t.Helper()
	filter, err := compileSeccomp(arch, opts)
	if err != nil {
		t.Fatal(err)
	}
	return seccompVM(t, filter)
}

func seccompVM(t *testing.T, filter []unix.SockFilter) func(arch SeccompArch, nr int, args ...uint64) SeccompFate {
	t.Helper()
	var raw []bpf.RawInstruction
	for _, f := range filter {
		raw = append(raw, bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K})
	}
	code, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter has instructions that the interpreter does not know")
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	return func(arch SeccompArch, nr int, args ...uint64) SeccompFate {
		// The interpreter loads big-endian words, the kernel native ones: put
		// the low half of each argument where a little-endian machine has it.
		var data [64]byte
		binary.BigEndian.PutUint32(data[0:], uint32(nr))
		binary.BigEndian.PutUint32(data[4:], uint32(arch))
		for i, v := range args {
			binary.BigEndian.PutUint32(data[16+8*i:], uint32(v))
			binary.BigEndian.PutUint32(data[20+8*i:], uint32(v>>32))
		}
		ret, err := vm.Run(data[:])
		if err != nil {
			t.Fatal(err)
		}
		return SeccompFate(ret)
	}
}

// seccompOracle reads the table the slow way.
func seccompOracle(arch SeccompArch, opts SeccompOptions) func(nr int, args []uint64) SeccompFate {
	byNumber, newest, refused := map[int]SeccompGroup{}, 0, map[int]bool{}
	for name, n := range SeccompNumbers(arch) {
		newest, refused[n] = max(newest, n), slices.Contains(opts.Refuse, name)
		for _, g := range seccompTable {
			if slices.Contains(strings.Fields(g.Calls), name) {
				byNumber[n] = g
			}
		}
	}
	holds := func(m SeccompMatch, args []uint64) bool {
		v := uint32(args[m.Arg])
		if m.Mask != 0 {
			v &= m.Mask
		}
		return slices.Contains(m.In, v) != m.Not
	}
	lifted := func(o SeccompOption) bool {
		return o == "AllowPtrace" && opts.AllowPtrace || o == "AllowNestedUserNS" && opts.AllowNestedUserNS || o == "AllowFork" && opts.AllowFork
	}
	return func(nr int, args []uint64) SeccompFate {
		g, known := byNumber[nr]
		switch {
		case !known || nr > newest:
			return failENOSYS
		case refused[nr]:
			return failEPERM
		case lifted(g.Opens):
			return SeccompAllow
		}
		for _, c := range g.Check {
			excepted := c.Except != nil && lifted(c.Excepts) && holds(*c.Except, args)
			if !lifted(c.Opens) && !excepted && (c.If == nil || holds(*c.If, args)) && !holds(c.Must, args) {
				return c.Else
			}
		}
		return g.Fate
	}
}

// The compiled filter decides as the table says, for every number, on both
// architectures, with every option, and for every argument near a boundary.
func TestSeccompFilterIsTheTable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, arch := range seccompArches {
		for _, opts := range allSeccompOptions() {
			run, want := newSeccompVM(t, arch, opts), seccompOracle(arch, opts)
			check := func(nr int, args []uint64) {
				if got, want := run(arch, nr, args...), want(nr, args); got != want {
					t.Fatalf("%s %+v: call %d%#x → %s, the table says %s", arch, opts, nr, args, got, want)
				}
			}
			numbers := []int{601, 1 << 20, 1<<30 | 1, 1<<30 | 59, 1<<31 - 1, 1 << 31, 1<<32 - 1}
			for nr := range 601 {
				numbers = append(numbers, nr)
			}
			for _, nr := range numbers {
				check(nr, make([]uint64, 6))
				check(nr, []uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)})
				for range 4 {
					check(nr, []uint64{rnd.Uint64(), rnd.Uint64(), rnd.Uint64(), rnd.Uint64(), rnd.Uint64(), rnd.Uint64()})
				}
				for _, foreign := range []SeccompArch{AMD64, ARM64, 0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, ^SeccompArch(0)} {
					if got := run(foreign, nr); foreign != arch && got != SeccompKill {
						t.Fatalf("%s: call %d through %s → %s, want kill", arch, nr, foreign, got)
					}
				}
			}
			nums := SeccompNumbers(arch)
			for _, g := range seccompTable {
				if nr, ok := nums[g.Calls]; ok && len(g.Check) > 0 {
					eachArgs(g.Check, func(args []uint64) { check(nr, args) })
				}
			}
		}
	}
}

// A call that neither architecture has is a mistake in a list; one that only the other
// architecture has is none.
func TestSeccompRefusesByName(t *testing.T) {
	if _, err := compileSeccomp(ARM64, SeccompOptions{Refuse: []string{"vfork"}}); err != nil {
		t.Error(err)
	}
	if _, err := compileSeccomp(AMD64, SeccompOptions{Refuse: []string{"sokcet"}}); err == nil {
		t.Error("a filter was made that refuses sokcet")
	}
}

// eachArgs calls f with all combinations of the values near the boundaries of
// checks, each with and without bits above the low 32.
func eachArgs(checks []SeccompCheck, f func([]uint64)) {
	values := make([]map[uint32]bool, 6)
	for i := range values {
		values[i] = map[uint32]bool{0: true}
	}
	add := func(m SeccompMatch) {
		vals := values[m.Arg]
		for bit := range 32 {
			vals[1<<bit] = true
		}
		for n := range uint32(64) {
			vals[n] = true
		}
		for _, v := range append([]uint32{m.Mask, ^m.Mask, ^uint32(0)}, m.In...) {
			vals[v], vals[v-1], vals[v+1], vals[v|^m.Mask] = true, true, true, true
		}
	}
	for _, c := range checks {
		add(c.Must)
		if c.If != nil {
			add(*c.If)
		}
		if c.Except != nil {
			add(*c.Except)
		}
	}
	args := make([]uint64, 6)
	var fill func(i int)
	fill = func(i int) {
		if i == len(args) {
			f(args)
			return
		}
		for v := range values[i] {
			args[i] = uint64(v)
			fill(i + 1)
		}
	}
	fill(0)
	for i := range args {
		for v := range values[i] {
			clear(args)
			args[i] = uint64(v) | 0xdead_beef<<32
			f(args)
		}
	}
}

// The filter is short, and every build has the same one.
func TestSeccompFilterIsShort(t *testing.T) {
	for _, arch := range seccompArches {
		for _, opts := range allSeccompOptions() {
			filter, err := compileSeccomp(arch, opts)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := compileSeccomp(arch, opts)
			if len(filter) >= 250 || !slices.Equal(filter, again) {
				t.Errorf("%s %+v: %d instructions, same again: %v", arch, opts, len(filter), slices.Equal(filter, again))
			}
		}
	}
}

// What must hold whatever the table looks like, said independently of it.
func TestSeccompPromises(t *testing.T) {
	deny := "unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr " +
		"add_key request_key keyctl bpf userfaultfd perf_event_open ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp " +
		"io_uring_setup io_uring_enter io_uring_register init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff " +
		"quotactl quotactl_fd open_by_handle_at acct lookup_dcookie nfsservctl syslog settimeofday clock_settime adjtimex clock_adjtime clone3 " +
		"sethostname setdomainname mbind move_pages migrate_pages fanotify_init vhangup memfd_secret"
	for _, arch := range seccompArches {
		run, nums := newSeccompVM(t, arch, SeccompOptions{}), SeccompNumbers(arch)
		for _, name := range strings.Fields(deny) {
			nr, ok := nums[name]
			if !ok {
				t.Errorf("%s: no number for %s", arch, name)
			}
			if got := run(arch, nr); got == SeccompAllow {
				t.Errorf("%s: %s is allowed", arch, name)
			}
		}
		nosys := []int{nums["clone3"], nums["io_uring_setup"], 472, 600, 1<<30 + 1}
		if arch == AMD64 {
			for _, name := range []string{"iopl", "ioperm"} {
				if run(arch, nums[name]) != failEPERM {
					t.Errorf("%s is not refused", name)
				}
			}
		}
		for _, nr := range nosys {
			if got := run(arch, nr); got != failENOSYS {
				t.Errorf("%s: call %d → %s, want ENOSYS", arch, nr, got)
			}
		}
		for _, flag := range []uint64{unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC, unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET} {
			if got := run(arch, nums["clone"], flag|uint64(unix.SIGCHLD)); got != failEPERM {
				t.Errorf("%s: clone(%#x) → %s", arch, flag, got)
			}
		}
		if got := run(arch, nums["clone"], unix.CLONE_VM|unix.CLONE_THREAD|unix.CLONE_SIGHAND|unix.CLONE_FS|unix.CLONE_FILES|unix.CLONE_SETTLS); got != SeccompAllow {
			t.Errorf("%s: a thread → %s", arch, got)
		}
		for _, a := range []struct {
			name string
			args []uint64
			want SeccompFate
		}{
			{"ioctl", []uint64{0, unix.TIOCSTI}, failEPERM},
			{"ioctl", []uint64{0, 1<<32 | unix.TIOCSTI}, failEPERM},
			{"ioctl", []uint64{0, unix.TIOCGWINSZ}, SeccompAllow},
			{"mknodat", []uint64{0, 0, unix.S_IFCHR | 0o600, 0}, failEPERM},
			{"mknodat", []uint64{0, 0, unix.S_IFBLK | 0o600, 0}, failEPERM},
			{"mknodat", []uint64{0, 0, unix.S_IFIFO | 0o600, 0}, SeccompAllow},
			{"mknodat", []uint64{0, 0, 0o600, 0}, SeccompAllow},
			{"renameat2", []uint64{0, 0, 0, 0, unix.RENAME_WHITEOUT}, SeccompErrno(unix.EINVAL)},
			{"renameat2", []uint64{0, 0, 0, 0, unix.RENAME_EXCHANGE}, SeccompAllow},
			{"socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, SeccompErrno(unix.EAFNOSUPPORT)},
			{"socket", []uint64{unix.AF_PACKET, unix.SOCK_RAW}, SeccompErrno(unix.EAFNOSUPPORT)},
			{"socket", []uint64{unix.AF_INET, 10}, SeccompErrno(unix.ESOCKTNOSUPPORT)}, // SOCK_PACKET: an old door to AF_PACKET
			{"socket", []uint64{unix.AF_INET6, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP}, SeccompAllow},
			{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, SeccompErrno(unix.EPROTONOSUPPORT)},
			{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, SeccompErrno(unix.EPROTONOSUPPORT)},
			{"socket", []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, SeccompAllow},
			{"seccomp", []uint64{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC}, SeccompAllow},
			{"seccomp", []uint64{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | 1}, failEPERM},
		} {
			if got := run(arch, nums[a.name], a.args...); got != a.want {
				t.Errorf("%s: %s%#x → %s, want %s", arch, a.name, a.args, got, a.want)
			}
		}
		ptrace := newSeccompVM(t, arch, SeccompOptions{AllowPtrace: true})
		nested := newSeccompVM(t, arch, SeccompOptions{AllowNestedUserNS: true})
		if ptrace(arch, nums["ptrace"]) != SeccompAllow || ptrace(arch, nums["mount"]) == SeccompAllow {
			t.Errorf("%s: AllowPtrace", arch)
		}
		if nested(arch, nums["clone"], unix.CLONE_NEWUSER) != SeccompAllow || nested(arch, nums["unshare"]) != SeccompAllow ||
			nested(arch, nums["ptrace"]) == SeccompAllow || nested(arch, nums["bpf"]) == SeccompAllow || nested(arch, nums["clone"], unix.CLONE_PARENT) == SeccompAllow {
			t.Errorf("%s: AllowNestedUserNS", arch)
		}
	}
}

// An interpreter may clone itself into exactly the namespaces of a fork, or of a
// source that goes on; every other combination is refused, as without.
func TestSeccompForkIsExact(t *testing.T) {
	const news = uint64(cloneNewFlags)
	exact := []uint64{uint64(ForkFlags), uint64(GoOnFlags)}
	for _, arch := range seccompArches {
		fork, strict, clone := newSeccompVM(t, arch, SeccompOptions{AllowFork: true}), newSeccompVM(t, arch, SeccompOptions{}), SeccompNumbers(arch)["clone"]
		for _, flags := range exact {
			if fork(arch, clone, flags) != SeccompAllow || strict(arch, clone, flags) != failEPERM {
				t.Errorf("%s: clone(%#x): %s, without the exception %s", arch, flags, fork(arch, clone, flags), strict(arch, clone, flags))
			}
			for bit := range 32 { // one more, or one less
				other := flags ^ 1<<bit
				want := failEPERM
				if other&news == 0 {
					want = SeccompAllow
				}
				if got := fork(arch, clone, other); got != want {
					t.Errorf("%s: clone(%#x) → %s, want %s", arch, other, got, want)
				}
			}
		}
		for sub := news; sub != 0; sub = (sub - 1) & news { // each set of namespaces, with what a fork has beside them
			flags := sub | exact[0]&^news
			want := failEPERM
			if slices.Contains(exact, flags) {
				want = SeccompAllow
			}
			if got := fork(arch, clone, flags); got != want {
				t.Errorf("%s: clone(%#x) → %s, want %s", arch, flags, got, want)
			}
		}
		if fork(arch, SeccompNumbers(arch)["unshare"], uint64(unix.CLONE_NEWUSER)) == SeccompAllow || fork(arch, SeccompNumbers(arch)["clone3"]) == SeccompAllow {
			t.Errorf("%s: AllowFork opens more than clone", arch)
		}
	}
}
