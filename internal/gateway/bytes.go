package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

var errBudget = errors.New("the cell has sent as much as its budget allows")

// counter counts bytes of one direction.
type counter struct{ n atomic.Int64 }

// add counts bytes that leave the cell.
func (c *counter) add(g *Gateway, n int64) bool {
	c.n.Add(n)
	return g.account(n)
}

// countedBody is the body of a request to the outside.
type countedBody struct {
	io.ReadCloser
	x  *exchange
	n  *counter
	in *http.Request // its trailers are complete at the end
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.turn.sends(p[:n])
	b.x.kept.request(p[:n], err)
	count := int64(n)
	if err == io.EOF && b.in != nil {
		count += headerSize(b.in.Trailer)
		if d, no := b.x.trailers(b.in.Trailer); no {
			return 0, &denied{b.x.access, d} // which ends the request early
		}
		b.in = nil
	}
	if count > 0 && !b.n.add(b.x.c.g, count) {
		return 0, errBudget
	}
	return n, err
}

// countedReader is the body of a response.
type countedReader struct {
	io.Reader
	n *counter
}

func (b *countedReader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.n.n.Add(int64(n))
	return n, err
}

// duplex is the outside end of an upgraded connection.
type duplex struct {
	io.Reader
	to io.ReadWriteCloser
	x  *exchange
}

func (d *duplex) Write(p []byte) (int, error) {
	if !d.x.sent.add(d.x.c.g, int64(len(p))) {
		return 0, errBudget
	}
	return d.to.Write(p)
}

func (d *duplex) CloseWrite() error {
	if w, ok := d.to.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return d.to.Close()
}

func (d *duplex) Close() error { return d.to.Close() }

// counted calls done once, when it is closed.
type counted struct {
	net.Conn
	once sync.Once
	done func()
}

func (c *counted) Close() error {
	c.once.Do(c.done)
	return c.Conn.Close()
}

// bufferPool lends the proxy its buffers.
type bufferPool struct{}

func (bufferPool) Get() []byte { return pieces.Get().(*[pieceSize]byte)[:] }

func (bufferPool) Put(b []byte) {
	if len(b) == pieceSize {
		pieces.Put((*[pieceSize]byte)(b))
	}
}
