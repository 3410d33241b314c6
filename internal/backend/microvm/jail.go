package microvm

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/isolation"
)

// names lists the system calls that create and change file names.
var names = strings.Fields("creat mkdir mkdirat rmdir rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat mknod mknodat " +
	"chmod fchmod fchmodat fchmodat2 chown fchown fchownat lchown utime utimes futimesat utimensat truncate " +
	"setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat")

// users lists the system calls that change the user.
var users = strings.Fields("setuid setreuid setresuid setgid setregid setresgid setgroups")

// fuseproxyJail confines the fuseproxy. On the stage it sees only the cell's files, with the rights
// of the cell's users; the machine's kernel checks permissions (package fuseproxy). Its requests come
// from the machine, which the cell's commands may have compromised.
var fuseproxyJail = isolation.Jail{
	Slack: guest.TimerSlack,
	See:   []string{isolation.StageRoot},
	Caps: 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
		1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | // for the owners of new files
		1<<unix.CAP_SETFCAP, // package managers write security.capability
	Refuse: users,
}

// machineJail confines the program that runs the machine. It sees copies of the files that it
// reads, and no file of the cell: those come through the fuseproxy.
var machineJail = isolation.Jail{
	See:    programTops,
	Refuse: append(names, users...),
	Taken:  true,
}
