// Package boot finds a kernel among the host's packages and makes an initramfs for it: one
// program, and the kernel modules to load.
//
//	/init                    the program
//	/modules/000-virtio.ko   a module, decompressed; in load order
//	/modules/001-….ko
//	/dev/console             the program's initial output
//
// Dependencies are read from the modules (.modinfo), not from modules.dep: that file is made
// when a kernel is installed, and is missing if a kernel was only unpacked.
//
// The same program and modules result in the same bytes, so that an initramfs can be cached by
// digest.
package boot
