// Package e2e tells user stories to the real binary on the real host: one
// script per story in testdata, in the language of testscript. A FAILURES line
// has a script named after it (f12-….txt).
//
// Besides testscript's own words a script may use:
//
//	pando ARGS…            (through exec) the binary under test
//	exits CODE COMMAND…    runs a command and compares its exit code
//	tty ROWSxCOLS KEYS COMMAND…
//	                       runs a command at a terminal; KEYS is a file of
//	                       steps: see tty_test.go
//	api METHOD PATH [BODY] a raw request to the daemon; the status goes to
//	                       stderr, the body to stdout. BODY is a file or text
//	remember NAME DIR      notes everything about a directory tree…
//	unchanged NAME DIR     …and fails when anything differs from it
//	json PATH TEXT         compares a field of the JSON on stdout: json .verdict pending
//	let VAR PATH           sets a variable to a field of the JSON on stdout
//	edit FILE OLD NEW      replaces text in a file
//	setxattr FILE NAME VALUE
//	leftovers              fails when anything of this script's installation is
//	                       left on the host: processes, mounts, cgroups, sockets,
//	                       folders of cells that are gone
//	peak-memory MIB        fails when a daemon or keeper ever had more in memory
//	killdaemon             kill -9 of the daemon
//	killkeeper CELL        kill -9 of the keeper of a cell
//	waitfor N COMMAND…     repeats a command until it succeeds, N seconds at most
//	eventually-gone PATH   waits until a path is gone
//	symlink-to LINK TO     makes a symlink to anything
//
// HOME is empty at first and the script's own; HOST_HOME is that of the
// tests' user, for toolchains that are too large to be copied.
//
// Conditions: [root], [user], [prog:NAME], [env:NAME], [soak].
package e2e
