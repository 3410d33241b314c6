package gateway

import (
	"io"
	"net/http"
	"strings"
)

// maxCoded is how many requests are decoded at once: each costs a window of its decoder. Others are
// passed on unread.
const maxCoded = 8

// codedBody reads along with the encoded body of a request to a model. What is passed on is not touched:
// a body that can't be decoded, or expands beyond the bounds of an answer, is one without a turn.
type codedBody struct {
	in   *io.PipeWriter
	done chan struct{} // closed when nothing more is read
}

// readCoded gives what a body decodes to in pieces, and calls whole if it was decoded to its end. It
// calls free at last.
func readCoded(open func(io.Reader) (io.Reader, error), piece func([]byte), whole, free func()) *codedBody {
	from, in := io.Pipe()
	c := &codedBody{in: in, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer free()
		d := &decoded{open: open, in: &countingReader{from: from}}
		buf := make([]byte, 16<<10)
		for {
			n, err := d.Read(buf)
			piece(buf[:n])
			if err == io.EOF && d.in.n > 0 {
				whole()
			}
			if err != nil {
				from.CloseWithError(err) // what else is sent is not waited for
				return
			}
		}
	}()
	return c
}

// Write reads a piece of the body, as it passes. It never fails.
func (c *codedBody) Write(b []byte) (int, error) {
	c.in.Write(b)
	return len(b), nil
}

// end says that the body is over, and returns when all of it was read. It may be called again.
func (c *codedBody) end() {
	c.in.Close()
	<-c.done
}

// codingsOf lists the encodings of a body, in the order in which they were applied.
func codingsOf(h http.Header) (codings []string) {
	for _, v := range h.Values("Content-Encoding") {
		for c := range strings.SplitSeq(v, ",") {
			if c = strings.ToLower(strings.TrimSpace(c)); c != "" && c != "identity" {
				codings = append(codings, c)
			}
		}
	}
	return codings
}
