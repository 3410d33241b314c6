package workspace

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Copied is what a layer had when a state was made of a copy of it: enough to find what changed
// since without reading files.
type Copied struct {
	State State        // shows what the layer showed
	Items []CopiedItem // sorted by path
}

// CopiedItem is one thing of a layer.
type CopiedItem struct {
	Path string
	Stat Stat
	// Doubtful things may have changed since without a trace in their Stat: they were written in
	// the same tick of the clock, or could be written through memory.
	Doubtful bool
	Whiteout bool   // overlayfs's mark for what was removed
	Opaque   bool   // overlayfs's mark of a folder: it hides the one below
	Redirect string // overlayfs's mark of a folder that was renamed
}

const copiedHead = "pando copied 1\n"

// Encode returns the stored form.
func (c *Copied) Encode() []byte {
	b := make([]byte, 0, 64+len(c.Items)*96)
	b = append(b, copiedHead...)
	b = appendString(b, c.State.Provider)
	b = binary.AppendUvarint(b, uint64(len(c.State.Layers)))
	for _, l := range c.State.Layers {
		b = appendString(b, l)
	}
	b = binary.AppendUvarint(b, uint64(len(c.Items)))
	for _, i := range c.Items {
		b = appendString(b, i.Path)
		b = appendStat(b, &i.Stat)
		b = appendBool(b, i.Doubtful)
		b = appendBool(b, i.Whiteout)
		b = appendBool(b, i.Opaque)
		b = appendString(b, i.Redirect)
	}
	sum := cell.Sum(b)
	return append(b, sum[:]...)
}

// DecodeCopied decodes the result of Encode; a damaged record is a Corrupt error.
func DecodeCopied(b []byte) (*Copied, error) {
	if len(b) < len(copiedHead)+32 || string(b[:len(copiedHead)]) != copiedHead {
		return nil, corrupt("record of a copy")
	}
	body := b[:len(b)-32]
	if cell.Sum(body) != cell.Digest(b[len(body):]) {
		return nil, corrupt("record of a copy")
	}
	r := reader{b: body[len(copiedHead):]}
	c := &Copied{State: State{Provider: r.str()}}
	for n := r.count(); n > 0 && r.err == nil; n-- {
		c.State.Layers = append(c.State.Layers, r.str())
	}
	n := r.count()
	c.Items = make([]CopiedItem, 0, n)
	for ; n > 0 && r.err == nil; n-- {
		c.Items = append(c.Items, CopiedItem{Path: r.str(), Stat: r.stat(), Doubtful: r.uvarint() != 0, Whiteout: r.uvarint() != 0, Opaque: r.uvarint() != 0, Redirect: r.str()})
	}
	if r.err != nil || len(r.b) != 0 {
		return nil, corrupt("record of a copy")
	}
	return c, nil
}

// CollectUsed is Collect for a tree that is in use. It changes no mode. left are folders that it could
// not list: they went away meanwhile, or may not be read. What they have is missing.
func CollectUsed(ctx context.Context, root *linux.Dir) (all []Found, left []string, err error) {
	var mu sync.Mutex
	all, err = collect(ctx, root, func(root *linux.Dir, dir string, looked *Stat, buf []byte) ([]Found, error) {
		found, err := readSameDirAt(root, dir, looked, buf)
		if Fleeting(err) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, dir)
			return nil, nil
		}
		return found, err
	})
	return all, left, err
}

// Fleeting reports whether an error of looking at a file in use can be due to that use: it went away,
// became another kind of file, or may not be read now.
func Fleeting(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ESTALE)
}
