// Package confine restricts a command, in the process that becomes it: user, capabilities,
// limits, seccomp filter, and the canaries that prove these before the command starts. It is
// used wherever a command is started: by the keeper in a namespace cell, by the guest in a
// gVisor cell.
package confine

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// RootCaps are the capabilities of a cell's root: change owners of files, switch to another
// user of the cell, signal its processes, listen on low ports. They apply to the user
// namespace, not to the host.
const RootCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SETFCAP

// OutsideCaps is the subset of RootCaps with which a file gets or keeps the rights of another
// user. Root does not have them in a cell that writes to directories of the host.
const OutsideCaps = 1<<unix.CAP_FSETID | 1<<unix.CAP_SETFCAP

// CapsIn returns the subset of caps that is allowed in a cell. outside: the cell may write to
// directories of the host (cell.Spec.WritesOutside).
func CapsIn(outside bool, caps uint64) uint64 {
	if outside {
		return caps &^ OutsideCaps
	}
	return caps
}

// Identity is the user of a command.
type Identity struct {
	User     cell.User
	RootCaps uint64 // if its UID is 0
	LastCap  int    // the highest capability of this kernel
	Switch   bool   // the process still has another user
}

// Become adds the switch to the user to a script. It returns the capabilities that the user may
// have.
func (id Identity) Become(s *linux.Script) (caps uint64) {
	if id.User.UID == 0 {
		caps = id.RootCaps
	}
	for b := 0; b <= id.LastCap; b++ {
		if caps&(1<<b) == 0 {
			s.Call("drop capability", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, b, 0, 0, 0)
		}
	}
	if u := id.User; id.Switch {
		s.Call("setgroups", unix.SYS_SETGROUPS, 0, nil)
		s.Call("setresgid", unix.SYS_SETRESGID, u.GID, u.GID, u.GID)
		s.Call("setresuid", unix.SYS_SETRESUID, u.UID, u.UID, u.UID)
	}
	return caps
}

// Shed drops all capabilities but caps, for good.
func Shed(s *linux.Script, caps uint64) {
	s.Call("clear ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	s.SetCaps(caps)
	s.NoNewPrivs()
}

// Limits are the resource limits of a command. Zero is no limit.
type Limits struct {
	OpenFiles uint64 `json:"open_files"` // RLIMIT_NOFILE, hard
	FileSize  int64  `json:"file_size"`  // bytes; a sparse file is small on disk but expensive to read
	Processes int64  `json:"processes"`  // of its user, where no cgroup counts them
}

// Apply adds the limits to a script.
func (l Limits) Apply(s *linux.Script) {
	s.Limit("core", unix.RLIMIT_CORE, 0, 0)
	if n := l.OpenFiles; n > 0 {
		s.Limit("open files", unix.RLIMIT_NOFILE, min(n, 65536), n)
	}
	if n := l.FileSize; n > 0 {
		s.Limit("file size", unix.RLIMIT_FSIZE, uint64(n), uint64(n))
	}
	if n := l.Processes; n > 0 {
		s.Limit("processes", unix.RLIMIT_NPROC, uint64(n), uint64(n))
	}
}

// Filter adds a seccomp filter. The program must stay open until the script has run.
func Filter(s *linux.Script, filter *linux.SeccompProgram) {
	address, _ := filter.Prog()
	s.Call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, address)
}

// Measured is what a command's process measured just before it executed the program.
type Measured struct {
	Status   string    `json:"status"` // /proc/self/status
	Canaries int       `json:"canaries"`
	At       time.Time `json:"at"` // when the canaries ran
	Bites    []string  `json:"bites"`
	Skipped  []string  `json:"skipped,omitempty"` // names of canaries that the policy allows
}

// Refine adds the measurements to an assurance.
func Refine(a cell.Assurance, measured json.RawMessage) cell.Assurance {
	var m Measured
	if json.Unmarshal(measured, &m) != nil {
		return a
	}
	a.Canaries = cell.Canaries{Passed: m.Canaries, Total: m.Canaries, Bites: m.Bites, Skipped: m.Skipped, At: m.At, Fresh: true}
	a.Isolation = slices.Clone(a.Isolation)
	for l := range strings.SplitSeq(m.Status, "\n") {
		k, v, _ := strings.Cut(l, ":")
		switch v = strings.TrimSpace(v); {
		case k == "NoNewPrivs" && v == "1":
			a.Isolation = append(a.Isolation, "no_new_privs")
		case k == "Seccomp" && v == "2":
			a.Isolation = append(a.Isolation, "seccomp filter")
		case k == "CapEff":
			held := "no capabilities"
			if v = strings.TrimLeft(v, "0"); v != "" {
				held = "capabilities " + v + " of the cell's own user namespace"
			}
			a.Isolation = append(a.Isolation, held)
		}
	}
	if slices.Contains(m.Bites, "landlock") {
		a.Isolation = append(a.Isolation, "landlock")
	}
	return a
}
