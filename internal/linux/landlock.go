package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Landlock restricts a process and what it starts to files beneath chosen
// directories, whatever its permissions say. We build the ruleset where paths
// can be opened and hand over a descriptor; the forked child calls
// landlock_restrict_self with it and needs nothing else.
//
// Rules bind inodes, not names: what is mounted over a directory later is not
// beneath it. Network rights are not handled (a cell has a network namespace).
// Signals are not scoped: each exec of a cell is a domain of its own, and one
// must be able to end what another started; the pid namespace keeps signals
// inside the cell. A domain also bars ptrace, and with it most of /proc/PID,
// across execs of one cell.

// Access rights that rules grant. MAKE_CHAR and MAKE_BLOCK are in none: device
// nodes are made nowhere.
const (
	landlockRead   = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockExec   = landlockRead | unix.LANDLOCK_ACCESS_FS_EXECUTE
	landlockModify = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	landlockWrite  = landlockExec | landlockModify |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	landlockDevice = landlockRead | landlockModify | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	// Rights that exist for files; the kernel refuses others on a rule for one.
	landlockFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | landlockModify | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// LandlockFiles are what a restricted process may reach, and how, opened (O_PATH suffices),
// for example in another mount namespace.
type LandlockFiles struct {
	Read, ReadExec, Write, Devices []*os.File
	LandlockScope
}

// LandlockScope says what of the cell the domain is closed to.
type LandlockScope struct {
	// ShareAbstract leaves abstract Unix sockets alone. Set it for a cell that
	// has a network namespace of its own: the namespace bounds them already,
	// and scoping would keep two execs of that cell from each other's sockets.
	ShareAbstract bool
}

// LandlockRuleset is a ruleset ready for landlock_restrict_self(File, 0).
type LandlockRuleset struct {
	File *os.File
	ABI  int
	// Lacks lists what this kernel's Landlock does not do and newer ones do, one
	// sentence each; empty from ABI 6 on.
	Lacks []string
}

// Close closes the ruleset. Domains made from it stay.
func (r *LandlockRuleset) Close() error { return r.File.Close() }

// landlockABI is what each version of Landlock added to what we use.
var landlockABI = []struct {
	abi    int
	rights uint64
	lacks  string // what is missing before
}{
	{1, unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1, "no access to files is restricted by Landlock"},
	{2, unix.LANDLOCK_ACCESS_FS_REFER, "files can't be linked or renamed between directories"}, // stricter, not weaker
	{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE, "files outside writable places can be truncated where permissions allow it"},
	{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, "ioctl on devices outside the device directories is not restricted"},
	{6, 0, "abstract Unix sockets outside the domain are not out of reach"},
}

// NewLandlockFiles builds a ruleset from opened files, which stay the
// caller's.
func NewLandlockFiles(files LandlockFiles) (*LandlockRuleset, error) {
	return newLandlock(files, LandlockABI())
}

func newLandlock(files LandlockFiles, abi int) (_ *LandlockRuleset, err error) {
	if abi < 1 {
		return nil, cell.Errorf(cell.Unsupported, "linux.NewLandlock", "boot with lsm= containing landlock, on Linux 5.13 or newer",
			"cannot restrict files: this kernel has no Landlock")
	}
	r := &LandlockRuleset{ABI: abi}
	var handled, scoped uint64
	for _, a := range landlockABI {
		if abi >= a.abi {
			handled |= a.rights
		} else if !(a.abi == 6 && files.ShareAbstract) {
			r.Lacks = append(r.Lacks, a.lacks)
		}
	}
	if abi >= 6 && !files.ShareAbstract {
		scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	fd, err := landlockCreate(handled, scoped)
	if err != nil {
		return nil, fmt.Errorf("cannot create a Landlock ruleset: %w", err)
	}
	r.File = os.NewFile(uintptr(fd), "landlock")
	for _, part := range []struct {
		files  []*os.File
		rights uint64
	}{{files.Read, landlockRead}, {files.ReadExec, landlockExec}, {files.Write, landlockWrite}, {files.Devices, landlockDevice}} {
		for _, f := range part.files {
			if err := landlockAllow(fd, f, part.rights&handled); err != nil {
				return nil, errors.Join(err, r.Close())
			}
		}
	}
	return r, nil
}

// landlockAllow adds the rule that grants rights beneath f.
func landlockAllow(ruleset int, f *os.File, rights uint64) error {
	defer runtime.KeepAlive(f)
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= landlockFile
	}
	if err == nil {
		err = landlockAdd(ruleset, int(f.Fd()), rights)
	}
	if err != nil {
		return fmt.Errorf("cannot make a Landlock rule for %s: %w", f.Name(), err)
	}
	return nil
}
