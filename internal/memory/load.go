package memory

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
)

const partial = ".partial"

// LoadDir makes a read-only directory of an image's files: many cells begin from one. The
// files are readable by all users, because a runtime without privileges must read them; the
// caller closes the directory above. The directory is complete or not there: LoadDir writes
// it beside, under a name that ends with ".partial", which the next LoadDir removes after a
// crash. Only one LoadDir of a directory may run at a time. An existing directory is an
// Exists error. Nothing is synced: after power loss the image is loaded again.
func LoadDir(ctx context.Context, st Store, root cell.Digest, dir string) (err error) {
	fail := func(err error) error {
		return cell.Errorf(cell.KindOf(err), "memory.Load", cell.HintOf(err), "cannot load memory image %s: %w", root.Short(), err)
	}
	if _, err := os.Lstat(dir); err == nil {
		return fail(cell.Errorf(cell.Exists, "memory.Load", "", "%s exists", dir))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	tmp := filepath.Clean(dir) + partial
	if err := os.RemoveAll(tmp); err != nil {
		return fail(err)
	}
	failpoint.Step("make the directory of a memory image")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fail(err)
	}
	if err := Load(ctx, st, root, func(name string, size int64) (*os.File, error) {
		f, err := os.OpenFile(filepath.Join(tmp, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
		if err == nil {
			err = f.Chmod(0o444)
		}
		return f, err
	}); err != nil {
		return err
	}
	failpoint.Step("name the directory of a memory image")
	if err := os.Rename(tmp, dir); err != nil {
		return fail(err)
	}
	return nil
}

// Load writes an image's files where open says: into files on disk, on tmpfs, or in memory
// alone. The files that open returns must be empty, and Load closes them; a caller that
// needs one afterwards returns a duplicate.
//
// Every chunk is checked before it is written. A damaged or missing chunk is a Corrupt error
// that names it, its file and its offset; the files are of no use then.
func Load(ctx context.Context, st Store, root cell.Digest, open func(name string, size int64) (*os.File, error)) error {
	err := load(ctx, st, root, open)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = cell.Errorf(cell.Interrupted, "memory.Load", "", "%w", context.Cause(ctx))
	}
	return cell.Errorf(cell.KindOf(err), "memory.Load", cell.HintOf(err), "cannot load memory image %s: %w", root.Short(), err)
}

// A stretch is a leaf's part of a file.
type stretch struct {
	leaf leafRef
	name string
	off  int64
	to   *os.File
}

func load(ctx context.Context, st Store, root cell.Digest, open func(string, int64) (*os.File, error)) (err error) {
	m, err := readRoot(st, root)
	if err != nil {
		return err
	}
	dec, err := newDecoder()
	if err != nil {
		return err
	}
	defer dec.Close()
	var stretches []stretch
	for _, f := range m.files {
		to, err := open(f.name, f.size)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, to.Close()) }()
		if err := to.Truncate(f.size); err != nil {
			return err
		}
		off := int64(0)
		for _, l := range f.leaves {
			stretches = append(stretches, stretch{l, f.name, off, to})
			off += l.size
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, s := range stretches {
		g.Go(func() error {
			return s.load(ctx, st, dec)
		})
	}
	return g.Wait()
}

// write is how many bytes of a file are written at once.
const write = 1 << 20

func (s stretch) load(ctx context.Context, st Store, dec *zstd.Decoder) error {
	spans, err := readLeaf(st, s.leaf)
	if err != nil {
		return s.named("leaf", s.leaf.digest, s.off, err)
	}
	buf := make([]byte, 0, min(write, s.leaf.size))
	off := s.off
	flush := func() error {
		_, err := s.to.WriteAt(buf, off-int64(len(buf)))
		buf = buf[:0]
		return err
	}
	for i := range spans {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		sp := &spans[i]
		if sp.hole() || len(buf)+int(sp.size) > cap(buf) {
			if err := flush(); err != nil {
				return err
			}
		}
		if !sp.hole() {
			if buf, err = unpack(st, dec, sp, buf); err != nil {
				return s.named("chunk", sp.stored, off, err)
			}
		}
		off += sp.size
	}
	return flush()
}

// unpack appends a chunk to buf, which has room for it. The store has checked
// the digest of what is unpacked.
func unpack(st Store, dec *zstd.Decoder, sp *span, buf []byte) ([]byte, error) {
	packed, err := st.Get(sp.stored)
	if err != nil {
		return nil, err
	}
	n := len(buf)
	out, err := dec.DecodeAll(packed, buf[:n:n+int(sp.size)])
	if err != nil || len(out) != n+int(sp.size) {
		return nil, cell.Errorf(cell.Corrupt, "memory.Load", "", "it is not what its leaf says")
	}
	return buf[:len(out)], nil
}

// newDecoder makes a decoder that never writes beyond the capacity it is given.
func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(1<<20))
}

// named says which part of which file could not be had.
func (s stretch) named(what string, d cell.Digest, off int64, err error) error {
	return lost(err, "%s %s of %s at offset %d", what, d.Short(), s.name, off)
}

// lost makes an error of an object that is damaged or missing a Corrupt one.
func lost(err error, format string, args ...any) error {
	kind, state := cell.KindOf(err), "could not be read"
	switch kind {
	case cell.NotFound:
		kind, state = cell.Corrupt, "is missing"
	case cell.Corrupt:
		state = "is damaged"
	}
	return cell.Errorf(kind, "memory.Load", "choose an earlier checkpoint, or make this one again", format+" "+state+": %w", append(args, err)...)
}

func readRoot(st Store, d cell.Digest) (*manifest, error) {
	b, err := st.Get(d)
	if err == nil {
		var m *manifest
		if m, err = decodeRoot(b); err == nil {
			return m, nil
		}
	}
	return nil, lost(err, "root %s", d.Short())
}

func readLeaf(st Store, l leafRef) ([]span, error) {
	b, err := st.Get(l.digest)
	if err != nil {
		return nil, err
	}
	return decodeLeaf(b, l.size)
}

// Reach adds the digests of all objects of an image to reach, which is the set that a
// garbage collection keeps: the root, the leaves and the chunks. It reads no chunk. A
// missing or damaged root or leaf is a Corrupt error: the image cannot be loaded any more,
// and reach has the objects that others may share with it. After any other error the
// collection must not run.
func Reach(st Store, root cell.Digest, reach map[cell.Digest]bool) error {
	reach[root] = true
	m, err := readRoot(st, root)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range m.files {
		off := int64(0)
		for _, l := range f.leaves {
			if !reach[l.digest] { // else it was an image's before this one's
				spans, err := readLeaf(st, l)
				if err != nil {
					errs = append(errs, stretch{name: f.name}.named("leaf", l.digest, off, err))
				}
				if err == nil {
					reach[l.digest] = true
				}
				for i := range spans {
					if !spans[i].hole() {
						reach[spans[i].stored] = true
					}
				}
			}
			off += l.size
		}
	}
	return errors.Join(errs...)
}
