// Package linux has typed calls of the kernel: forked children that run prepared system
// calls, namespaces, mounts, cgroups v1 and v2, seccomp, Landlock, pidfds. It does not know
// cells. Raw calls and unsafe stay in files named *_unsafe.go.
package linux
