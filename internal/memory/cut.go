package memory

import (
	"bytes"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	minChunk = 2 * page // a border in the content counts after so many bytes
	hole     = 4 * page // zeros inside a chunk that end it
	window   = 1 << 20  // bytes read at once

	// borderMask is eight pages on average. Chunks of sixteen are half as many,
	// and half as much again is written of a cell that changed little.
	borderMask = 8 - 1
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      [page]byte
)

// A cutter finds the chunks and holes of one file. Its rolling sum is quick, not strong: an
// attacker that controls the content of pages can choose where chunks end, between minChunk
// and maxChunk, and spoils only its own image.
type cutter struct {
	emit    func(chunk []byte) error // takes the chunk over
	skip    func(size int64)         // a hole
	fresh   func() []byte            // an empty buffer of capacity maxChunk
	chunk   []byte
	pending int64 // zeros after chunk that belong to it, or begin a hole
}

// file cuts what r holds.
func (c *cutter) file(r io.ReaderAt, size int64) error {
	buf := make([]byte, min(window, size))
	f, sparse := r.(*os.File)
	for off := int64(0); off < size; {
		if sparse {
			data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
			if err == unix.ENXIO { // the rest is a hole
				c.zero(size - off)
				break
			}
			if err != nil {
				sparse = false // a file system that can't say
			} else if data = min(data, size) &^ (page - 1); data > off {
				c.zero(data - off)
				off = data
				continue
			}
		}
		b := buf[:min(int64(len(buf)), size-off)]
		if n, err := r.ReadAt(b, off); n < len(b) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		off += int64(len(b))
		for len(b) > 0 {
			p := b[:min(page, len(b))]
			b = b[len(p):]
			if err := c.page(p); err != nil {
				return err
			}
		}
	}
	return c.end()
}

// zero notes zeros, which begin a hole where there is no chunk.
func (c *cutter) zero(n int64) { c.pending += n }

// page takes the next page, which is shorter at the end of a file.
func (c *cutter) page(p []byte) error {
	if bytes.Equal(p, zeros[:len(p)]) {
		c.zero(int64(len(p)))
		return nil
	}
	if c.pending > 0 && (len(c.chunk) == 0 || c.pending >= hole) {
		if err := c.end(); err != nil {
			return err
		}
	}
	for ; c.pending > 0; c.pending -= page {
		if err := c.add(zeros[:]); err != nil {
			return err
		}
	}
	return c.add(p)
}

func (c *cutter) add(p []byte) error {
	if c.chunk == nil {
		c.chunk = c.fresh()
	}
	c.chunk = append(c.chunk, p...)
	if len(c.chunk) >= maxChunk || len(c.chunk) >= minChunk && crc32.Checksum(p, castagnoli)&borderMask == 0 {
		return c.flush()
	}
	return nil
}

func (c *cutter) flush() error {
	b := c.chunk
	c.chunk = nil
	if len(b) == 0 {
		return nil
	}
	return c.emit(b)
}

// end emits the chunk, and the zeros after it as a hole.
func (c *cutter) end() error {
	err := c.flush()
	if c.pending > 0 {
		c.skip(c.pending)
		c.pending = 0
	}
	return err
}
