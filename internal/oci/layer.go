package oci

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/cell"
)

// maxWindow bounds the memory that a zstd layer may ask for, which is taken before
// anything is unpacked; plainWindow what a small one may, which is what all levels of
// zstd but those above 19 use.
const (
	maxWindow   = 128 << 20
	plainWindow = 8 << 20
)

// window is how much memory a zstd layer of so many bytes may ask for.
func window(size int64) uint64 {
	if size <= 0 || size > maxWindow/32 { // not known, or large
		return maxWindow
	}
	return uint64(max(plainWindow, 32*size))
}

// Limits bound an image.
type Limits struct {
	Bytes int64 // of all files together, and of all that is read for them
	Files int   // names, of whatever kind
}

// DefaultLimits hold the largest images that people work with.
var DefaultLimits = Limits{Bytes: 64 << 30, Files: 2 << 20}

// A layer is one that is being read: its tar, and the digest of what it is made
// of.
type layer struct {
	name   string // for messages
	tar    *tar.Reader
	raw    *counter // the tar's bytes
	source *faults
	done   func()
}

// counter digests what is read, and ends it at a bound.
type counter struct {
	r     io.Reader
	h     hash.Hash
	n     int64
	bound int64
}

var errBound = errors.New("it unpacks to more than is allowed")

func (c *counter) Read(p []byte) (int, error) {
	if c.n >= c.bound {
		var one [1]byte
		if n, err := io.ReadFull(c.r, one[:]); n == 0 {
			return 0, err
		}
		return 0, errBound
	}
	if int64(len(p)) > c.bound-c.n {
		p = p[:c.bound-c.n]
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.h.Write(p[:n])
	return n, err
}

// openLayer begins to read a layer. bound is the maximum size of its tar in bytes. The
// caller must call done.
func openLayer(r io.Reader, d descriptor, bound int64) (*layer, error) {
	l := &layer{name: d.short(), source: &faults{r: r}, done: func() {}}
	in := bufio.NewReaderSize(l.source, 1<<16)
	how := compressions[d.MediaType]
	if how == "any" {
		how = "none"
		if b, _ := in.Peek(4); len(b) == 4 {
			switch {
			case b[0] == 0x1f && b[1] == 0x8b:
				how = "gzip"
			case string(b) == "\x28\xb5\x2f\xfd":
				how = "zstd"
			}
		}
	}
	var plain io.Reader = in
	switch how {
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, l.blame(err)
		}
		plain = z
	case "zstd":
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window(d.Size)), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, l.blame(err)
		}
		plain, l.done = z, z.Close
	}
	l.raw = &counter{r: plain, h: sha256.New(), bound: bound}
	l.tar = tar.NewReader(l.raw)
	return l, nil
}

// finish reads what comes after the last file, and returns the digest of the
// whole tar.
func (l *layer) finish() (d cell.Digest, err error) {
	l.raw.bound = min(l.raw.bound, l.raw.n+maxEnd)
	if _, err := io.Copy(io.Discard, l.raw); err != nil {
		return d, l.blame(err)
	}
	l.raw.h.Sum(d[:0])
	return d, nil
}

// maxEnd is how much may follow the last file of a tar: tools fill up to a block
// of their own.
const maxEnd = 16 << 20

// blame gives an error from reading the layer its cause: the layer itself, unless its source
// has failed.
func (l *layer) blame(err error) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case l.source.err != nil:
		return l.source.err
	case errors.Is(err, errBound):
		return tooMuch("layer %s: %w", l.name, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return corrupt("cannot unpack layer %s: it ends in the middle", l.name)
	}
	return corrupt("cannot unpack layer %s: %w", l.name, err)
}

// next returns the header of the next name; io.EOF after the last.
func (l *layer) next() (*tar.Header, error) {
	h, err := l.tar.Next()
	return h, l.blame(err)
}

// Read reads the content of the present file.
func (l *layer) Read(p []byte) (int, error) {
	n, err := l.tar.Read(p)
	return n, l.blame(err)
}

// faults remembers why reading has failed, other than by an end.
type faults struct {
	r   io.Reader
	err error
}

func (f *faults) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}
