package credential

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"io"
)

// errLimit says that there is more in a compressed text than is looked at.
var errLimit = errors.New("what it holds is larger than is looked at")

// Read looks for values in a text, and in what it holds when it is compressed:
// gzip, zlib (git's objects), bzip2, zip archives and git's packs. gap says what
// of it was not looked at; "" means that all was. budget is how many bytes may be
// unpacked, and is reduced by what was: a small file can stand for any amount.
func (s *Scanner) Read(ctx context.Context, r io.Reader, budget *int64) (found []Found, gap string, err error) {
	raw := s.Stream()
	in := bufio.NewReaderSize(&obedient{ctx, io.TeeReader(r, raw)}, 64<<10)
	open, gap := packing(in)
	var inner []Found
	if open != nil {
		st := s.Stream()
		out := &bounded{st, budget}
		if err := open(in, out); errors.Is(err, errLimit) {
			gap = err.Error()
		} else if err != nil && ctx.Err() == nil {
			gap = "it looks compressed, and could not be unpacked to its end"
		}
		inner = st.Found()
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return nil, gap, err
	}
	found = raw.Found()
	for _, f := range inner {
		f.Encoding += ", compressed"
		f.At = 0
		found = append(found, f)
	}
	return found, gap, nil
}

// obedient stops reading when its context ends.
type obedient struct {
	ctx context.Context
	r   io.Reader
}

func (o *obedient) Read(b []byte) (int, error) {
	if o.ctx.Err() != nil {
		return 0, context.Cause(o.ctx)
	}
	return o.r.Read(b)
}

type bounded struct {
	w    io.Writer
	left *int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > *b.left {
		return 0, errLimit
	}
	*b.left -= int64(len(p))
	return b.w.Write(p)
}

// packing tells from its beginning what a text is packed with: how to unpack
// it, or why that can't be done.
func packing(in *bufio.Reader) (open func(*bufio.Reader, io.Writer) error, gap string) {
	head, _ := in.Peek(6)
	starts := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	switch {
	case starts("\x1f\x8b\x08"):
		return unpack(func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }), ""
	case len(head) >= 2 && head[0]&0x8f == 8 && head[0]>>4 <= 7 && binary.BigEndian.Uint16(head)%31 == 0 && head[1]&0x20 == 0:
		return maybe(unpack(func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) })), "" // two bytes are no proof
	case starts("BZh"):
		return maybe(unpack(func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil })), ""
	case starts("PK\x03\x04"):
		return unzip, ""
	case starts("PACK\x00\x00"):
		return unpackGit, ""
	case starts("\x28\xb5\x2f\xfd"):
		return nil, "it is compressed with zstd"
	case starts("\xfd7zXZ\x00"):
		return nil, "it is compressed with xz"
	case starts("7z\xbc\xaf\x27\x1c"):
		return nil, "it is a 7z archive"
	}
	return nil, ""
}

func unpack(open func(io.Reader) (io.Reader, error)) func(*bufio.Reader, io.Writer) error {
	return func(in *bufio.Reader, out io.Writer) error {
		r, err := open(in)
		if err == nil {
			_, err = io.Copy(out, r)
		}
		return err
	}
}

// maybe takes a failure to unpack as a sign that nothing was packed.
func maybe(open func(*bufio.Reader, io.Writer) error) func(*bufio.Reader, io.Writer) error {
	return func(in *bufio.Reader, out io.Writer) error {
		if err := open(in, out); errors.Is(err, errLimit) {
			return err
		}
		return nil
	}
}

// unzip unpacks what is in a zip archive, one after the other as it comes (APPNOTE
// 6.3.10, 4.3.7). What is stored there as it is was seen already.
func unzip(in *bufio.Reader, out io.Writer) error {
	const headLen = 30
	for {
		if err := skipTo(in, "PK\x03\x04"); err != nil {
			return nil // no more of them
		}
		var head [headLen]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		flags, method := binary.LittleEndian.Uint16(head[6:]), binary.LittleEndian.Uint16(head[8:])
		names := int(binary.LittleEndian.Uint16(head[26:])) + int(binary.LittleEndian.Uint16(head[28:]))
		if _, err := in.Discard(names); err != nil {
			return err
		}
		switch {
		case flags&1 != 0:
			return errors.New("it is encrypted")
		case method == 8:
			if _, err := io.Copy(out, flate.NewReader(in)); err != nil {
				return err
			}
		case method != 0:
			return errors.New("a method that is not known")
		}
	}
}

// skipTo reads up to where mark begins.
func skipTo(in *bufio.Reader, mark string) error {
	for {
		b, err := in.Peek(in.Size())
		if i := bytes.Index(b, []byte(mark)); i >= 0 {
			in.Discard(i)
			return nil
		}
		if err != nil {
			return err
		}
		in.Discard(len(b) - len(mark) + 1)
	}
}

// unpackGit unpacks the objects of a pack of git's (gitformat-pack). What is
// stored as a difference is seen as far as it differs.
func unpackGit(in *bufio.Reader, out io.Writer) error {
	var head [12]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return err
	}
	for range binary.BigEndian.Uint32(head[8:]) {
		c, err := in.ReadByte()
		kind := c >> 4 & 7
		for err == nil && c&0x80 != 0 { // the size, which is not needed
			c, err = in.ReadByte()
		}
		if err != nil {
			return err
		}
		switch kind {
		case 6: // offset of what it differs from
			for c = 0x80; err == nil && c&0x80 != 0; {
				c, err = in.ReadByte()
			}
		case 7: // its name
			_, err = in.Discard(20)
		}
		if err != nil {
			return err
		}
		r, err := zlib.NewReader(in)
		if err != nil {
			return err
		}
		if _, err := io.Copy(out, r); err != nil {
			return err
		}
	}
	return nil
}
