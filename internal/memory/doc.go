// Package memory keeps memory images in an object store: the files that a backend writes
// when it captures a cell's memory, cut into chunks, compressed, and named by one digest,
// the image's root.
//
//	root    names, sizes, and the leaves of each file
//	leaf    a stretch of a file: chunks and holes, one after the other
//	chunk   up to 128 KiB of a file, compressed with zstd
//
// Each object names the next by digest, so the root covers every byte, and each part of an
// image can be checked without the others. Every root is complete: it needs no other image,
// even if it shares objects with it. A chain of images is loaded like a single image, and an
// image in its middle can be removed.
//
// # Borders
//
// A pages file holds the pages in use, in the order of their addresses, without those
// between. One page more moves all following ones. So chunks end where the content of a
// page says so (on average after eight pages), and leaves end where a chunk's digest says
// so: behind an inserted or removed page the borders, the chunks and the leaves are the old
// ones again. A page in a run of at least four zero pages is a hole, and is not stored.
//
// # What is kept once
//
// A chunk is named by the digest of its compressed form. The digest of its content is in
// the leaf beside it: Save reads the leaves of the images that it gets as bases, and
// neither compresses nor writes a chunk that one of them has.
//
// # What it leaves to the caller
//
// Save syncs nothing, as with layers. If a root must survive power loss, the caller syncs
// the store's file system before it records the root; otherwise a chunk may be missing,
// which Load finds. The caller protects bases from garbage collection. The caller also
// knows what must be restored with an image (files, processor, version of the runtime), and
// may add a file of its own that says so.
package memory
