package diff

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"hash/adler32"
	"io"
)

// fastSize is the size in bytes above which compression prefers speed: three times as fast, a
// fifth larger.
const fastSize = 4 << 20

// zlibWriter writes a zlib stream (RFC 1950). A run of zeros costs a copy of the compressed form
// of 1 MiB of zeros. It implements workspace.ZeroWriter.
type zlibWriter struct {
	w    io.Writer
	z    *flate.Writer
	a, b uint32 // the two halves of the Adler-32
	zero []byte // see deflatedZeros; nil: not needed yet
}

// newZlibWriter returns a writer of a content of that size.
func newZlibWriter(w io.Writer, size int64) (*zlibWriter, error) {
	level := flate.DefaultCompression
	if size > fastSize {
		level = flate.BestSpeed
	}
	z, err := flate.NewWriter(w, level)
	if err != nil {
		return nil, err
	}
	_, err = w.Write([]byte{0x78, 0x9c}) // deflate with a window of 32 KiB, no dictionary
	return &zlibWriter{w: w, z: z, a: 1}, err
}

func (z *zlibWriter) Write(p []byte) (int, error) {
	z.sum(adler32.Checksum(p), int64(len(p)))
	return z.z.Write(p)
}

// adlerMod is the modulus of Adler-32.
const adlerMod = 65521

// sum updates the Adler-32 with n more bytes that have the sum more.
func (z *zlibWriter) sum(more uint32, n int64) {
	skip := uint32((uint64(z.a) + adlerMod - 1) * uint64(n%adlerMod) % adlerMod)
	z.b = (z.b + skip + more>>16) % adlerMod
	z.a = (z.a + more&0xffff + adlerMod - 1) % adlerMod
}

// zeroBlock is the number of zeros of one copy.
const zeroBlock = 1 << 20

// deflatedZeros returns the deflated form of zeroBlock zeros, which refers to nothing before it
// and ends at a byte.
func deflatedZeros() ([]byte, error) {
	var b bytes.Buffer
	z, err := flate.NewWriter(&b, flate.BestCompression)
	if err == nil {
		_, err = z.Write(make([]byte, zeroBlock))
	}
	if err == nil {
		err = z.Flush()
	}
	return b.Bytes(), err
}

// Zeros implements workspace.ZeroWriter.
func (z *zlibWriter) Zeros(ctx context.Context, n int64) error {
	z.sum(uint32(n%adlerMod)<<16|1, n)
	if blocks := n / zeroBlock; blocks > 0 {
		if z.zero == nil {
			block, err := deflatedZeros()
			if err != nil {
				return err
			}
			z.zero = block
		}
		if err := z.z.Flush(); err != nil { // up to a byte
			return err
		}
		for ; blocks > 0; blocks-- {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if _, err := z.w.Write(z.zero); err != nil {
				return err
			}
		}
		z.z.Reset(z.w) // the next bytes must not refer to the compressor's history
	}
	_, err := z.z.Write(make([]byte, n%zeroBlock))
	return err
}

// Close ends the stream.
func (z *zlibWriter) Close() error {
	if err := z.z.Close(); err != nil {
		return err
	}
	return binary.Write(z.w, binary.BigEndian, z.b<<16|z.a)
}
