// Package qemu drives QEMU's microvm machine type: no PCI, and few devices, announced by ACPI.
// QEMU runs as a child process without access to the host except for the files that it was
// started with.
//
// # Its command line
//
// Everything is an open file: kernel, initramfs and memory by /proc/self/fd/N, ports and the
// monitor as connected sockets, the console as a file of a descriptor set. So the program can
// run in its own mount namespace, without a path in common with the caller. There are no
// default devices, no configuration files, no network unless configured, and QEMU's own seccomp
// filter is on.
//
// # Its monitor
//
// QMP, documented with QEMU (docs/interop/qmp-spec): one JSON object per line.
//
//	<  {"QMP": {"version": …}}
//	>  {"execute": "qmp_capabilities", "id": 1}
//	<  {"return": {}, "id": 1}
//	>  {"execute": "stop", "id": 2}
//	<  {"event": "STOP", …}
//	<  {"return": {}, "id": 2}
//
// Files for the program are sent with the line that names them (SCM_RIGHTS).
//
// # Saving without memory
//
// QEMU's migration leaves out memory only if it is mapped shared (x-ignore-shared), and a
// copy's is mapped privately. So devices are saved with xen-save-devices-state, made for Xen's
// tools but independent of Xen: it writes every device and no memory, in one call, however the
// memory is mapped. It is loaded as an ordinary migration that contains no memory. Both ends
// omit the stream's configuration section (migration.send-configuration), which the first
// command does not write. That section would check for the same machine and version; here the
// caller must: see package vmm.
//
// A copy does not have the firmware's memory, which Linux no longer needs once it runs: a
// machine that restarts ends instead (-no-reboot).
package qemu
