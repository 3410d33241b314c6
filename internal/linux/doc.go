// Package linux is pando's typed door to the kernel: forked children that run
// prepared system calls, namespaces, mounts, cgroups v1 and v2, seccomp,
// Landlock, pidfds. It knows nothing of cells. Raw calls and unsafe stay in
// files named *_unsafe.go.
package linux
