package fuseproxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A Courier forwards messages between a guest's kernel and the server.
type Courier struct {
	dev  *os.File
	conn io.ReadWriter

	send sync.Mutex // held during one message to conn

	mu       sync.Mutex // locked after send
	change   *sync.Cond
	held     bool
	under    int // number of requests without an answer
	barriers uint64
	passed   uint64 // the last barrier that was answered
	ended    error

	notes  [][]byte // for the kernel, from the server
	noting *sync.Cond
}

// NewCourier returns a courier between an open /dev/fuse and a connection.
func NewCourier(dev *os.File, conn io.ReadWriter) *Courier {
	c := &Courier{dev: dev, conn: conn}
	c.change, c.noting = sync.NewCond(&c.mu), sync.NewCond(&c.mu)
	return c
}

// barrierMark marks the IDs of a courier's own requests.
const barrierMark = 1 << 63

var errUnmounted = errors.New("unmounted")

// Run forwards messages until the file system is unmounted, which is no error, or the
// connection ends. It then ends both directions by deadlines, if dev and conn support them.
func (c *Courier) Run() error {
	errs := make(chan error, 2)
	go func() { errs <- c.up() }()
	go func() { errs <- c.down() }()
	noted := make(chan struct{})
	go func() { defer close(noted); c.note() }()
	err := <-errs
	c.mu.Lock()
	c.ended = err
	c.change.Broadcast()
	c.noting.Broadcast()
	c.mu.Unlock()
	c.dev.SetDeadline(time.Unix(1, 0))
	if d, ok := c.conn.(interface{ SetDeadline(time.Time) error }); ok {
		d.SetDeadline(time.Unix(1, 0))
		defer d.SetDeadline(time.Time{})
	}
	<-errs
	<-noted
	if errors.Is(err, errUnmounted) {
		return nil
	}
	return err
}

// up forwards requests.
func (c *Courier) up() error {
	buf := make([]byte, maxMessage)
	for {
		n, err := c.dev.Read(buf)
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue // a request was cancelled
		case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, io.EOF):
			return errUnmounted
		case err != nil:
			return err
		case n < headSize:
			continue
		}
		if err := c.carry(buf[:n]); err != nil {
			return err
		}
	}
}

// carry sends a request, unless Hold is in force.
func (c *Courier) carry(b []byte) error {
	for {
		c.send.Lock()
		c.mu.Lock()
		if c.ended != nil {
			c.mu.Unlock()
			c.send.Unlock()
			return c.ended
		}
		if !c.held {
			break
		}
		c.send.Unlock()
		c.change.Wait()
		c.mu.Unlock()
	}
	if answered(binary.NativeEndian.Uint32(b[4:])) {
		c.under++
	}
	c.mu.Unlock()
	_, err := c.conn.Write(b)
	c.send.Unlock()
	return err
}

// down forwards answers and notices.
func (c *Courier) down() error {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	buf := make([]byte, maxMessage)
	for {
		head, err := in.Peek(4)
		if err != nil {
			return err
		}
		n := int(binary.NativeEndian.Uint32(head))
		if n < outSize || n > len(buf) {
			return cell.Errorf(cell.Corrupt, "fuseproxy.Courier", "", "cannot reach files: an answer says that it has %d bytes", n)
		}
		b := buf[:n]
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		unique := binary.NativeEndian.Uint64(b[8:])
		switch {
		case unique == 0:
			c.mu.Lock()
			c.notes = append(c.notes, append([]byte(nil), b...))
			c.noting.Signal()
			c.mu.Unlock()
			continue
		case unique&barrierMark != 0:
			c.mu.Lock()
			c.passed = max(c.passed, unique&^barrierMark)
		default:
			// The request may have been cancelled. An invalid answer is an error for the
			// requester only.
			_, err := c.dev.Write(b)
			if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
				return errUnmounted
			}
			c.mu.Lock()
			c.under--
		}
		c.change.Broadcast()
		c.mu.Unlock()
	}
}

// note writes notices to the kernel. A write may block on requests that the kernel makes first.
// So it does not run where answers are written, and not through os.File.Write, which serialises
// writes.
func (c *Courier) note() {
	dev, err := c.dev.SyscallConn()
	if err != nil {
		return // closed
	}
	for {
		c.mu.Lock()
		for len(c.notes) == 0 && c.ended == nil {
			c.noting.Wait()
		}
		if c.ended != nil {
			c.mu.Unlock()
			return
		}
		all := c.notes
		c.notes = nil
		c.mu.Unlock()
		for _, b := range all {
			if binary.NativeEndian.Uint32(b[4:]) != noticeMark {
				dev.Control(func(fd uintptr) { unix.Write(int(fd), b) }) // ENOENT: the kernel does not know it any more
				continue
			}
			if len(b) < outSize+8 {
				continue
			}
			if c.carry(own(opNoticed, 0, binary.NativeEndian.Uint64(b[outSize:]))) != nil {
				return
			}
		}
	}
}

// own returns a message of the courier itself.
func own(op uint32, unique, arg uint64) []byte {
	b := make([]byte, headSize+8)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint32(b[4:], op)
	binary.NativeEndian.PutUint64(b[8:], unique)
	binary.NativeEndian.PutUint64(b[headSize:], arg)
	return b
}

// Hold blocks new requests, and returns when all earlier ones have been answered: nothing is in
// the connection, and the server knows everything that the kernel has sent. Programs that use
// files block until GoOn. If Hold fails, nothing is blocked.
func (c *Courier) Hold(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.change.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	c.held = true
	c.barriers++
	mine := c.barriers
	c.mu.Unlock()
	c.send.Lock() // waits for a message that is being sent
	_, err := c.conn.Write(own(opBarrier, barrierMark|mine, 0))
	c.send.Unlock()
	if err != nil {
		c.GoOn()
		return err
	}
	c.mu.Lock()
	for c.ended == nil && ctx.Err() == nil && (c.under > 0 || c.passed < mine) {
		c.change.Wait()
	}
	err = c.ended
	if err == nil && (c.under > 0 || c.passed < mine) {
		err = context.Cause(ctx)
	}
	c.mu.Unlock()
	if err != nil {
		c.GoOn()
	}
	return err
}

// GoOn ends Hold.
func (c *Courier) GoOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	c.change.Broadcast()
}
