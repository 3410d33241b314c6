// Package memory keeps memory images in a store of objects: the files that a
// backend writes when it captures a cell's memory, cut into chunks, compressed,
// and named by one digest, the image's root.
//
//	root    names, sizes, and the leaves of each file
//	leaf    a stretch of a file: chunks and holes, one after the other
//	chunk   up to 128 KiB of a file, compressed with zstd
//
// Each object names the next by digest, so the root vouches for every byte, and
// any part of an image can be checked without the others. Every root is whole:
// it needs no other image, whatever it shares with it. A chain of images is
// loaded as one of them is, and an image in its middle can go.
//
// # Borders
//
// A pages file holds the pages in use, in the order of their addresses, without
// those between. One page more moves all that follow by a page. So chunks end
// where the content of a page says so (on average after eight pages), and
// leaves end where a chunk's digest says so: behind a page that was put in or
// taken out the borders, the chunks and the leaves are the old ones again. A
// page that is all zeros in a run of four is a hole, and is kept nowhere.
//
// # What is kept once
//
// A chunk is named by what is stored, which is compressed. What it is without
// that is in the leaf beside it: Save reads the leaves of the images it is
// given as bases, and neither compresses nor writes what one of them has.
//
// # What it leaves to the caller
//
// Save syncs nothing, as with layers: who wants a root to survive a loss of power
// syncs the store's file system before it is recorded. Without that a chunk may be
// missing then, which Load finds. Bases are kept from collection by the caller. What
// is restored with an image (files, processor, version of the runtime) is the
// caller's, too: it may add a file of its own that says so.
package memory
