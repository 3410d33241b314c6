// Package boot finds a kernel among the host's packages and makes an initramfs for
// it: one program, and the kernel's modules that this has to load.
//
//	/init                    the program
//	/modules/000-virtio.ko   a module, decompressed; in the order in which they are loaded
//	/modules/001-….ko
//	/dev/console             where the program's output goes until it says otherwise
//
// What a module depends on is read from the module (its .modinfo), not from
// modules.dep: that one is made when a kernel is installed, and one that was only
// unpacked has none.
//
// The same program and modules give the same bytes, so that an initramfs can be kept
// by digest.
package boot
