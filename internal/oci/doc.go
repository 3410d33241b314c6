// Package oci brings OCI images to this host: from a registry, a layout
// directory, or an archive (of a layout, or `docker save`'s), into root file
// systems that cells are made from.
//
//	reference ─▶ source (registry.go, files.go) ─▶ manifest, config (manifest.go)
//	                │ blobs, each of a declared digest and size
//	                ▼
//	          layer.go: decompress, read the tar, bound it
//	                ▼
//	          unpack.go: whiteouts, names, links, rights ─▶ DIR/ID/root
//
// It promises:
//
//   - Nothing is there before all of it was verified: manifest, config and
//     compressed layers against the digest that named them, uncompressed layers
//     against the config. An image is unpacked in a folder that no other name
//     leads to, synced, and renamed. What fails, or is killed, leaves nothing:
//     the rest of a killed pull goes when the next daemon opens the store.
//   - What a layer says is never followed out of its root: each name is opened
//     below a descriptor, with openat2 and without symlinks that the layer has
//     brought itself, and made with O_EXCL. Absolute names, names with "..",
//     devices, links to what is not there, more files or bytes than allowed, or
//     than declared, end the pull.
//   - It needs no privilege. What an ordinary user can't do (give files away)
//     and what has no meaning in a cell (setuid, capabilities of files, pipes)
//     is counted, and told with the image.
//   - Nothing of the image, or of the registry, is executed, and no credentials
//     are used but those the caller gave for the registry's own host.
//
// It leaves to the caller which images are still needed, and to show what was
// counted.
//
// Images are told apart by their config's digest (the "image ID"): the same
// image from a registry and out of an archive is kept once.
//
// Lock order: 1. the lock of an image's ID, 2. Store.mu.
package oci
