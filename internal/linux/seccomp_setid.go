package linux

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Set-user-id and set-group-id bits of files that lie outside of a cell would be
// obeyed by the host: a mount without set-user-id programs keeps the cell from
// using them, and nothing keeps it from making them. So a cell that writes to
// directories of the host gets a second filter, which refuses every call that sets
// such a bit. It stands beside whatever filter a process has, and allows the rest.
// File capabilities are kept away by the lack of CAP_SETFCAP: their name lies in
// memory, where a filter can't see it.

const setID = unix.S_ISUID | unix.S_ISGID

// noSetID is a check that the mode in an argument has neither bit.
func noSetID(arg int, when *SeccompMatch) []SeccompCheck {
	return []SeccompCheck{{If: when, Must: SeccompMatch{Arg: arg, Mask: setID, In: []uint32{0}}, Else: failEPERM, Says: "mode without set-user-id and set-group-id"}}
}

// makes holds for flags with which open makes a file: else its mode means nothing,
// and may be anything.
func makes(arg int) *SeccompMatch {
	return &SeccompMatch{Arg: arg, Mask: unix.O_CREAT | tmpFile, In: []uint32{0}, Not: true}
}

const tmpFile = unix.O_TMPFILE &^ unix.O_DIRECTORY // __O_TMPFILE, by which the kernel goes

// setIDTable has every call that sets the mode of a file. The kernel itself takes
// both bits from the mode of mkdir.
var setIDTable = []SeccompGroup{
	{Name: "mode of a file", Calls: "chmod fchmod creat mknod", Fate: SeccompAllow, Check: noSetID(1, nil),
		Why: "the host would obey the bits in a directory of its own"},
	{Name: "mode of a file at", Calls: "fchmodat fchmodat2 mknodat", Fate: SeccompAllow, Check: noSetID(2, nil),
		Why: "as chmod"},
	{Name: "mode of a new file", Calls: "open", Fate: SeccompAllow, Check: noSetID(2, makes(1)),
		Why: "as chmod"},
	{Name: "mode of a new file at", Calls: "openat", Fate: SeccompAllow, Check: noSetID(3, makes(2)),
		Why: "as chmod"},
	{Name: "calls that a filter can't look into", Calls: "io_uring_setup io_uring_enter io_uring_register file_setattr", Fate: failENOSYS,
		Why: "they would set a mode past this filter"},
	{Name: "openat2", Calls: "openat2", Fate: failENOSYS, Opens: ForServers,
		Why: "its mode lies in memory, where a filter can't see it; programs fall back to openat"},
}

// ForServers is what the programs that serve a cell's files may do.
const ForServers SeccompOption = "server"

// SetIDTable returns the rows of NoSetIDFilter, for printing.
func SetIDTable() []SeccompGroup { return append([]SeccompGroup{}, setIDTable...) }

// NoSetIDFilter returns the filter that refuses set-user-id and set-group-id bits.
// server is for the programs that serve a cell's files and give openat2 no such mode.
func NoSetIDFilter(server bool) ([]unix.SockFilter, error) { return compileNoSetID(NativeArch, server) }

func compileNoSetID(arch SeccompArch, server bool) ([]unix.SockFilter, error) {
	nums, newest := SeccompNumbers(arch), 0
	for _, n := range nums {
		newest = max(newest, n)
	}
	plan := make([]seccompRule, newest+1)
	for i := range plan {
		plan[i] = seccompRule{fate: SeccompAllow}
	}
	checked := map[string]SeccompGroup{}
	for _, g := range setIDTable {
		for _, name := range strings.Fields(g.Calls) {
			n, ok := nums[name]
			switch {
			case !ok || server && g.Opens == ForServers:
			case len(g.Check) == 0:
				plan[n] = seccompRule{fate: g.Fate}
			default:
				plan[n] = seccompRule{fate: g.Fate, check: name}
				checked[name] = g
			}
		}
	}
	return assembleSeccomp(arch, plan, checked)
}
