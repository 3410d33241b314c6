// Package store keeps content-addressed objects: bytes under the SHA-256 sum
// of what they are. Everything comes in and goes out by one door, which
// checks. The contract is tested by store/storetest; store/mem is its shortest
// form, store/disk keeps objects in packs.
package store

import "github.com/pando-dev/pando/internal/cell"

// A Store is safe for concurrent use. What it holds can be made again from
// elsewhere (directories of a tree from its layers), so it need not survive
// power loss whole; but it never returns wrong bytes.
type Store interface {
	// Put stores b under its digest d; storing it twice is no error and costs nothing. A
	// wrong digest is the caller's defect and an error.
	Put(d cell.Digest, b []byte) error
	// Get returns the bytes, verified. What is not there is a NotFound error,
	// what is damaged a Corrupt one. The caller must not change them.
	Get(d cell.Digest) ([]byte, error)
	// Has reports whether Get would find something.
	Has(d cell.Digest) bool
	// Keep drops every object that keep does not accept, and returns the
	// bytes freed. Objects put meanwhile stay.
	Keep(keep func(cell.Digest) bool) (freed int64, err error)
}

// Sized is a Store that knows how much it holds: objects, and their bytes where
// they are kept.
type Sized interface {
	Size() (objects int, bytes int64)
}

// NotFound is the error of an object that is not there.
func NotFound(d cell.Digest) error {
	return cell.Errorf(cell.NotFound, "store.Get", "", "no object %s", d.Short())
}

// Damaged returns the error of an object with other bytes than its digest says.
func Damaged(d cell.Digest) error {
	return cell.Errorf(cell.Corrupt, "store.Get", "", "object %s is damaged", d.Short())
}

// Check is the door: it refuses bytes that are not d's.
func Check(d cell.Digest, b []byte) error {
	if cell.Sum(b) != d {
		return cell.Errorf(cell.Internal, "store.Put", "", "bytes do not have the digest %s", d.Short())
	}
	return nil
}
