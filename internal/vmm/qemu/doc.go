// Package qemu drives QEMU's microvm: a machine without PCI whose few devices are
// announced by ACPI, as a child process that has nothing of the host's but the
// files it was started with.
//
// # Its command line
//
// Everything is an open file: kernel, initramfs and memory by /proc/self/fd/N, ports
// and the monitor as connected sockets, the console as a file of a descriptor set.
// So the program can run in a mount namespace of its own, without a path in common
// with the caller. There are no default devices, no configuration files, no network
// unless one is given, and QEMU's own filter of system calls is on.
//
// # Its monitor
//
// QMP, documented with QEMU (docs/interop/qmp-spec): a JSON object a line.
//
//	<  {"QMP": {"version": …}}
//	>  {"execute": "qmp_capabilities", "id": 1}
//	<  {"return": {}, "id": 1}
//	>  {"execute": "stop", "id": 2}
//	<  {"event": "STOP", …}
//	<  {"return": {}, "id": 2}
//
// Files for the program go with the line that names them (SCM_RIGHTS).
//
// # Saving without memory
//
// QEMU's migration leaves memory out only where it is mapped shared
// (x-ignore-shared), and a copy's is mapped privately. So devices are saved with
// xen-save-devices-state, which Xen's tools use for their machines and which has
// nothing of Xen's in it: it writes every device and no memory, in one call, however
// that is mapped. It is loaded as an ordinary migration that happens to have no
// memory. Both ends do without the stream's configuration section
// (migration.send-configuration), which the first doesn't write. What that section
// would check, the same machine and version, the caller has to: see package vmm.
//
// A copy doesn't have the firmware's own memory, which is not needed any more when
// Linux runs: a machine that restarts ends instead (-no-reboot).
package qemu
