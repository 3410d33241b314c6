package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"

	"github.com/pando-dev/pando/internal/cell"
)

// A State is an immutable workspace: a stack of layers, bottom first. Its identity is its
// layers; its digests follow when its Tree has been computed. Two states with the same layers
// are equal.
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

// A Generation is a writable workspace on top of a state. Freezing makes it a state; then its
// layer is never written again.
type Generation struct {
	Base  State  `json:"base"`
	Layer string `json:"layer"`
}

// A Provider makes states writable for a cell and immutable again. All methods are safe for
// concurrent use on different generations. Layers are directories under the provider's root; a
// crash leaves at most a layer that no record names, which the engine's garbage collection
// removes.
type Provider interface {
	// Name is the provider's name in records: "overlay", "clone".
	Name() string

	// Mounts says that Mount describes an overlay, which a backend must be able to mount, and
	// not a plain directory.
	Mounts() bool

	// Begin makes a generation over base. like is the root directory's own entry in base's tree.
	// The writable layer is among the other layers, or in the directory place, if not empty:
	// then Freeze copies its contents. Nothing remains when Begin fails.
	Begin(ctx context.Context, base State, like Entry, place string) (Generation, error)

	// Join makes the files of g's base that have several names one file in g, too, so that a
	// write to one name is visible at the others. Without it that depends on the provider. g is
	// new and unused; after a failure the caller drops it. Files that are not touched while g is
	// in use are no part of the state that g becomes. Its cost is the sizes of the files.
	Join(ctx context.Context, g Generation, groups []LinkGroup) error

	// Resume makes g mountable again after its mount has ended.
	Resume(ctx context.Context, g Generation) error

	// Mount describes g, visible at target, for a backend.
	Mount(g Generation, target string) cell.Mount

	// Claims adds up the sizes of the files of g that its base has not, or not equally, in
	// bytes. A small file can have a size larger than any disk, and a digest would have to read
	// all of it.
	Claims(ctx context.Context, g Generation) (int64, error)

	// Stamp is another one once files of g, which may be in use, were changed. It is not settled where files changed just
	// now: a later change can have the same stamp. Its cost is the number of g's own files; none is read.
	Stamp(ctx context.Context, g Generation) (sum cell.Digest, settled bool, err error)

	// Freeze turns g, which no process uses any more, into a state, without moving data unless g
	// has a place of its own. If g is seen to be unchanged it returns g.Base, and the caller
	// drops g's layer. It may be repeated.
	Freeze(ctx context.Context, g Generation) (State, error)

	// Snapshot begins a copy of g, which stays in use. The caller calls Drop in the end.
	Snapshot(ctx context.Context, g Generation, opt SnapshotOptions) (Snapshot, error)

	// Tree computes the tree of s from base, the tree of the state under its topmost layer. Its
	// cost is that layer's changes, if the provider can tell; else the whole workspace.
	Tree(ctx context.Context, base *Tree, s State) (*Tree, error)

	// Walk computes the tree of s from nothing, reading everything.
	Walk(ctx context.Context, s State, objs Objects) (*Tree, error)

	// Contents reads the files of s.
	Contents(s State) Contents

	// Extend makes a state from base by a program, as import does.
	Extend(ctx context.Context, base State) (Writer, error)

	// Compact returns a state of the same files with fewer layers, if s has too many, else s. t
	// is its tree.
	Compact(ctx context.Context, s State, t *Tree) (State, error)

	// Drop removes a layer.
	Drop(layer string) error

	// Layers lists all layers; Size is the disk space of one, in bytes.
	Layers() ([]string, error)
	Size(layer string) (int64, error)
}

// SnapshotOptions configure a Snapshot.
type SnapshotOptions struct {
	// Mapped lists the files that processes can write through memory. nil: there are none.
	Mapped func(context.Context) ([]cell.MappedFile, error)
	// Stands reports whether a state that Keep was given stays while the snapshot is made and
	// used. nil: none does, and all is copied.
	Stands func(State) bool
	// Most bounds the space on the disk of the files to copy in one pass, in bytes: above it
	// the pass fails with TooLarge. 0: there is no bound.
	Most int64
}

// ErrMoved is the error of Snapshot.After when files changed since Take that Take had not copied.
var ErrMoved = errors.New("the files changed while they were copied")

// A Snapshot is a copy of a generation in use. The processes stand still while Take runs, and for that
// alone.
type Snapshot interface {
	// Unmoved reports, before Ahead and Take, whether g is what the state was that Keep was given last, or g's base, and
	// which. It looks while g is in use, and says no where it can't tell.
	Unmoved(ctx context.Context) (s State, ok bool, err error)
	// Ahead copies while g is in use: then Take copies what changed since. It may be repeated.
	Ahead(ctx context.Context) error
	// Take makes the copy equal to g. It may leave what seldom changes to After.
	Take(ctx context.Context) error
	// After completes the copy when the processes go on. It is ErrMoved if they changed what Take had left
	// to it: then the caller calls Ahead, Take and After again, and Take looks at all.
	After(ctx context.Context) error
	// Claims is, after After, what Provider.Claims was then.
	Claims() int64
	// Done makes the copy, after After, a state, with one layer more than the state that Keep was given last for
	// g, if that stands, or than g's base. It is one of these itself if nothing changed.
	Done(ctx context.Context) (State, error)
	// Made is, after Done, the layer that was made for the state; "" if it has none of its own.
	Made() string
	// Keep records that s is what g was: the next snapshot copies what changed since. It may be the state that Keep was given
	// before, if that shows the same as the copy.
	Keep(s State) error
	// Drop removes the copy, if Done has not made it a state.
	Drop() error
}

// SnapshotNow is all of a Snapshot at once, for a generation with nothing running in it. made is as
// Snapshot.Made.
func SnapshotNow(ctx context.Context, p Provider, g Generation) (_ State, made string, err error) {
	s, err := p.Snapshot(ctx, g, SnapshotOptions{})
	if err != nil {
		return State{}, "", err
	}
	defer func() { err = errors.Join(err, s.Drop()) }()
	if err := s.Take(ctx); err != nil {
		return State{}, "", err
	}
	if err := s.After(ctx); err != nil {
		return State{}, "", err
	}
	state, err := s.Done(ctx)
	return state, s.Made(), err
}

// Writer changes a copy of a state. The holder of the Writer creates files in the directory Dir.
type Writer interface {
	// Dir is the directory for new and changed files, at their paths.
	Dir() string
	// Sparse says that Dir holds only changes, so that directories above a changed file must be
	// made, with their own attributes.
	Sparse() bool
	// Remove removes path, with everything below it, if it was in the base.
	Remove(path string) error
	// Done freezes the result. Abort removes it; after Done it does nothing.
	Done() (State, error)
	Abort()
}

// A Side is a state to read or compare: its tree, and the contents of its files.
type Side struct {
	Tree     *Tree
	Contents Contents
}

// Contents opens the files of one tree. The reader returns exactly the e.Size bytes with the
// SHA-256 e.Digest; any difference is reported as Corrupt.
type Contents interface {
	Open(path string, e Entry) (io.ReadCloser, error)
}

// Verified wraps a file of a state: at its end the reader returns a Corrupt error when the bytes
// differ from e.
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
