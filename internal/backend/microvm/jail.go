package microvm

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/guest"
)

// names are the system calls that make and change names of files.
var names = strings.Fields("creat mkdir mkdirat rmdir rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mknod mknodat " +
	"chmod fchmod fchmodat fchmodat2 chown fchown fchownat lchown utime utimes futimesat utimensat truncate " +
	"setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat")

// users are those that become another user.
var users = strings.Fields("setuid setreuid setresuid setgid setregid setresgid setgroups")

// goferJail is the gofer's: of the stage it sees the cell's files, and may do to them
// what the cell's users may, whose acts the machine's kernel has judged (package
// gofer). It is told what they ask for by the machine, which the cell's commands may
// have taken over.
var goferJail = namespace.Jail{
	Slack: guest.TimerSlack,
	See:   []string{namespace.StageRoot},
	Caps: 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
		1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | // for the users that files are made for
		1<<unix.CAP_SETFCAP, // package managers write security.capability
	Refuse: users,
}

// machineJail is that of the program that runs the machine: the copies of the files
// that it reads, and none of the cell's, which come through the gofer.
var machineJail = namespace.Jail{
	See:    programTops,
	Refuse: append(names, users...),
	Taken:  true,
}
