package gateway

import (
	"io"
	"net"
	"sync"
)

// pieceSize is how much is taken from one side and given to the other at once: what
// the largest packet holds, with the room that its headers need. A little more would
// be a second packet for every first.
const pieceSize = 60 << 10

// pieces are buffers that are used again.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// splice passes bytes both ways until both sides have ended. pre are bytes that
// the cell has sent already.
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

// pump passes bytes from one side to the other. It returns nil at the end of
// what comes.
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
