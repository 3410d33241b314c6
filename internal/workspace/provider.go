package workspace

import (
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"os"

	"github.com/pando-dev/pando/internal/cell"
)

// A State is an immutable workspace: a stack of layers, bottom first. Its
// identity is its layers, which nothing writes to any more; its digests follow
// when its Tree has been computed. Two states with the same layers are equal.
type State struct {
	Provider string   `json:"provider"`
	Layers   []string `json:"layers"`
}

// Same reports whether two states are the same layers.
func (s State) Same(o State) bool {
	if s.Provider != o.Provider || len(s.Layers) != len(o.Layers) {
		return false
	}
	for i := range s.Layers {
		if s.Layers[i] != o.Layers[i] {
			return false
		}
	}
	return true
}

// A Generation is a writable workspace on top of a state. It becomes a state
// itself when it is frozen; then its layer is never written again.
type Generation struct {
	Base  State  `json:"base"`
	Layer string `json:"layer"`
}

// A Provider makes states writable for a cell and immutable again. All
// methods are safe for concurrent use on different generations. Layers are
// directories under the provider's root; a crash leaves at most a layer that
// no record names, which the engine's collection removes.
type Provider interface {
	// Name is the provider's word in records: "overlay", "clone".
	Name() string

	// Mounts says that Mount describes an overlay, which a backend must be
	// able to mount, and not a plain directory.
	Mounts() bool

	// Begin makes a generation over base. like is the root directory's own
	// entry in base's tree. The writable layer lies among the other layers, or
	// in the directory place, if that is not empty: then Freeze copies what was
	// written in it. Nothing remains when Begin fails.
	Begin(ctx context.Context, base State, like Entry, place string) (Generation, error)

	// Join makes the files of g's base that have several names one file in g,
	// too, so that what is written to one name is read at the others. Without it
	// that depends on the provider. g is what Begin made, and nothing has used it;
	// after a failure it is to be dropped. What of this is not touched while g is
	// in use is no part of the state that g becomes. Its cost is the sizes of the
	// files.
	Join(ctx context.Context, g Generation, groups []LinkGroup) error

	// Resume makes g mountable again after the mount it had is gone.
	Resume(ctx context.Context, g Generation) error

	// Mount describes g, visible at target, for a backend.
	Mount(g Generation, target string) cell.Mount

	// Claims adds up what the files that g has and its base had not, or not
	// so, say their sizes are, in bytes. A little file can claim to be larger
	// than any disk, and all of it would have to be read for a digest.
	Claims(ctx context.Context, g Generation) (int64, error)

	// Freeze turns g, which no process uses any more, into a state: moving
	// nothing, whatever the size, unless g has a place of its own. When g is seen to have changed nothing it is
	// g.Base, and g's layer is the caller's to drop. It may be repeated.
	Freeze(ctx context.Context, g Generation) (State, error)

	// Snapshot copies what g is now into a state, while g stays in use by
	// processes that are frozen. Its cost is what was written in g.
	Snapshot(ctx context.Context, g Generation) (State, error)

	// Tree computes the tree of s from base, the tree of the state under its
	// topmost layer. Its cost is what that layer changed, where the provider
	// can tell; else the whole workspace.
	Tree(ctx context.Context, base *Tree, s State) (*Tree, error)

	// Walk computes the tree of s from nothing, reading everything.
	Walk(ctx context.Context, s State, objs Objects) (*Tree, error)

	// Contents reads the files of s.
	Contents(s State) Contents

	// Extend makes a state out of base by program: the import's way.
	Extend(ctx context.Context, base State) (Writer, error)

	// Compact returns a state of the same files, whose tree is t, with fewer
	// layers when s has too many, else s.
	Compact(ctx context.Context, s State, t *Tree) (State, error)

	// Drop removes a layer.
	Drop(layer string) error

	// Layers lists every layer there is; Size is the disk space one holds, in
	// bytes.
	Layers() ([]string, error)
	Size(layer string) (int64, error)
}

// Writer changes a copy of a state. Files are created in Dir, a directory,
// by whoever holds the Writer.
type Writer interface {
	// Dir is where new and changed files go, at their paths.
	Dir() string
	// Sparse says that Dir holds only what changes, so that directories on
	// the way to a changed file must be made, with their own attributes.
	Sparse() bool
	// Remove takes path away, with all below it, if it was in the base.
	Remove(path string) error
	// Done freezes the result. Abort removes it; after Done it does nothing.
	Done() (State, error)
	Abort()
}

// A Side is a state to be read or compared: its tree, and what its files hold.
type Side struct {
	Tree     *Tree
	Contents Contents
}

// Contents opens what the files of one tree hold. The reader gives exactly
// the e.Size bytes whose SHA-256 is e.Digest; anything else is found and
// reported as Corrupt.
type Contents interface {
	Open(path string, e Entry) (io.ReadCloser, error)
}

// Verified wraps a file of a state: instead of its end the reader gets a
// Corrupt error when the bytes are not those that e promises.
func Verified(f *os.File, path string, e Entry) io.ReadCloser {
	return &verified{f: f, path: path, want: e.Digest, sum: sha256.New()}
}

type verified struct {
	f    *os.File
	path string
	want cell.Digest
	sum  hash.Hash
}

func (v *verified) Read(b []byte) (int, error) {
	n, err := v.f.Read(b)
	v.sum.Write(b[:n])
	if err == io.EOF && cell.Digest(v.sum.Sum(nil)) != v.want {
		return n, v.corrupt()
	}
	return n, err
}

func (v *verified) corrupt() error {
	return cell.Errorf(cell.Corrupt, "workspace.Contents", "", "%s is not what the checkpoint recorded", v.path)
}

func (v *verified) Close() error { return v.f.Close() }
