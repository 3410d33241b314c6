package gateway

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// This file filters the answers of hosts that may know the value of a credential. An answer that
// can't be read does not reach the cell.

const (
	// maxWindow bounds the memory of a decoder of zstd; RFC 8878 recommends that
	// 8 MiB are supported.
	maxWindow = 8 << 20
	// An answer may expand to freeExpansion bytes at any ratio, and beyond that to maxRatio
	// times its encoded size.
	freeExpansion = 16 << 20
	maxRatio      = 200
)

// unseeable is the error for an answer that is withheld.
type unseeable struct{ why string }

func (u *unseeable) Error() string {
	return "the host may know the value of a credential, and its answer can't be inspected: " + u.why
}

// askPlainly changes a request so that its answer can be read: it removes all headers that ask
// for compression, and those that ask for parts of a resource, over which a value could be
// spread.
func askPlainly(h http.Header) {
	h.Set("Accept-Encoding", "identity")
	for _, name := range []string{"Range", "If-Range", "A-Im", "Available-Dictionary", "Sec-Websocket-Extensions"} {
		h.Del(name)
	}
	for _, name := range []string{"Grpc-Accept-Encoding", "Connect-Accept-Encoding"} {
		if h.Get(name) != "" {
			h.Set(name, "identity")
		}
	}
}

// modify filters an answer.
func (w *web) modify(res *http.Response) error {
	x := res.Request.Context().Value(exchangeKey{}).(*exchange)
	x.flow.Status = res.StatusCode
	upgraded := res.StatusCode == http.StatusSwitchingProtocols
	var from io.Reader = res.Body
	if len(x.hide) > 0 {
		var err error
		if from, err = lookInto(res); err != nil {
			return err
		}
		if upgraded {
			from = newFrames(from, hiddenOf(x.hide))
		} else {
			from = newRedactor(from, x.hide)
		}
		for _, s := range x.hide {
			s.redact(res.Header) // also of an upgrade, which is written unchanged
		}
		res.Status = ""
	} else if x.model != nil && !upgraded {
		from = x.model.lookInto(res)
	}
	x.model.answered(res.StatusCode)
	if upgraded {
		x.flow.Protocol = "websocket"
		if rwc, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &duplex{Reader: &countedReader{from, &x.received}, to: rwc, x: x}
		}
		return nil
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{x.turn.answer(x.model.answer(&countedReader{from, &x.received})), res.Body}
	return nil
}

// lookInto returns the body of a response without its encoding. It rejects encodings that it
// can't decode, and features that were not requested.
func lookInto(res *http.Response) (io.Reader, error) {
	h := res.Header
	for _, name := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} {
		if v := h.Get(name); v != "" && !strings.EqualFold(v, "identity") {
			return nil, &unseeable{"its messages are encoded (" + printable(v) + ")"}
		}
	}
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		if v := h.Get("Sec-Websocket-Extensions"); v != "" {
			return nil, &unseeable{"it uses an extension of WebSocket that was not offered (" + printable(v) + ")"}
		}
		return res.Body, nil
	case !hasBody(res):
		return res.Body, nil
	case res.StatusCode == http.StatusPartialContent || h.Get("Content-Range") != "":
		return nil, &unseeable{"it is a part of a resource, which was not asked for"}
	case h.Get("Im") != "":
		return nil, &unseeable{"it is a difference to an earlier answer"}
	}
	codings := codingsOf(h)
	if len(codings) == 0 {
		return res.Body, nil
	}
	open := decoders[codings[0]]
	if open == nil || len(codings) > 1 {
		return nil, &unseeable{"it is encoded (" + printable(strings.Join(codings, ", ")) + ")"}
	}
	for _, name := range []string{"Content-Encoding", "Content-Length", "Content-Md5", "Digest", "Content-Digest"} {
		h.Del(name)
	}
	res.ContentLength = -1
	in := &countingReader{from: res.Body}
	return &decoded{open: open, in: in}, nil
}

// hasBody reports whether a response can have a body at all.
func hasBody(res *http.Response) bool {
	return res.Request.Method != http.MethodHead && res.StatusCode != http.StatusNoContent && res.StatusCode != http.StatusNotModified && res.ContentLength != 0
}

// decoders are the known encodings.
var decoders = map[string]func(io.Reader) (io.Reader, error){
	"gzip":    func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	"x-gzip":  func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	"deflate": inflate,
	"zstd": func(r io.Reader) (io.Reader, error) {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return &closesAtEnd{z}, nil
	},
}

// inflate decodes "deflate": zlib's format (RFC 9110, 8.4.1.2), or bare deflate,
// which some servers send.
func inflate(r io.Reader) (io.Reader, error) {
	in := bufio.NewReader(r)
	head, err := in.Peek(2)
	if err != nil && len(head) == 0 {
		return nil, err
	}
	if len(head) == 2 && head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
		return zlib.NewReader(in)
	}
	return flate.NewReader(in), nil
}

// closesAtEnd frees a decoder at the end of its input.
type closesAtEnd struct{ z *zstd.Decoder }

func (c *closesAtEnd) Read(p []byte) (int, error) {
	n, err := c.z.Read(p)
	if err != nil {
		c.z.Close()
	}
	return n, err
}

type countingReader struct {
	from io.Reader
	n    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

// decoded decodes while it is read, since the first bytes may be late. It keeps no more than its
// decoder's window, and ends when the expansion exceeds its bound.
type decoded struct {
	open func(io.Reader) (io.Reader, error)
	in   *countingReader
	from io.Reader
	n    int64
	err  error
}

func (d *decoded) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	if d.from == nil {
		if d.from, d.err = d.open(d.in); d.err != nil {
			if errors.Is(d.err, io.EOF) && d.in.n == 0 {
				return 0, io.EOF
			}
			d.err = &unseeable{"it can't be decoded: " + d.err.Error()}
			return 0, d.err
		}
	}
	n, err := d.from.Read(p)
	d.n += int64(n)
	if d.n > freeExpansion && d.n/maxRatio > d.in.n {
		d.err = &unseeable{fmt.Sprintf("%d bytes of it have become more than %d", d.in.n, freeExpansion)}
		return 0, d.err
	}
	d.err = err
	return n, err
}
