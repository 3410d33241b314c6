// Package workspace owns the files an agent works on: how a source becomes an
// immutable base, what a state of a workspace is, its two digests, and what
// differs between two states. It promises that states never change after they
// were made, and that nothing in it writes to a source.
//
// It leaves to a Provider (packages overlay and clone) how a state becomes
// writable for a cell, to package secret what stays outside, to package diff
// how differences are shown, to package apply how they come back to the source,
// and to the engine when.
//
//	tree.go, encode.go, edit.go  the Merkle tree of a state; its two digests
//	finder.go                    looking up many paths of a tree
//	changes.go                   what differs between two trees
//	scan.go, entry.go            reading a directory into entries
//	copy.go                      copying and removing directories
//	import*.go, survey.go        source → base, secrets left out, fingerprint
//	provider.go                  the contract of overlay and clone
package workspace
