package gateway

import (
	"io"
	"net"
	"sync"
)

// pieceSize is the number of bytes copied at once: those of the largest packet without its
// headers. A little more would need a second packet each time.
const pieceSize = 60 << 10

// pieces are reused buffers.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// splice copies bytes both ways until both sides have ended. pre are bytes that the cell has
// already sent.
func (c *conn) splice(out net.Conn, pre []byte) {
	done := make(chan struct{})
	c.g.wg.Go(func() {
		defer close(done)
		defer c.g.survive("a connection")
		err := c.pump(c.in, out, nil, func(n int) bool { c.received.Add(int64(n)); return true })
		c.fail(err)
		if err != nil {
			c.in.Close()
			return
		}
		if h, ok := c.in.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
		}
	})
	err := c.pump(out, c.in, pre, func(n int) bool { c.sent.Add(int64(n)); return c.g.account(int64(n)) })
	c.hungUp.Store(true)
	if err != nil {
		c.fail(err)
		abort(out)
	} else if h, ok := out.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
	}
	<-done
}

// pump copies bytes from one side to the other. It returns nil at the end of the input.
func (c *conn) pump(to, from net.Conn, pre []byte, count func(int) bool) error {
	if len(pre) > 0 {
		if !count(len(pre)) {
			return errBudget
		}
		if _, err := to.Write(pre); err != nil {
			return err
		}
	}
	buf := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			if !count(n) {
				return errBudget
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
