package daemon

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
)

// A daemon that ends loses no request over the unix socket, and clients of the socket need not
// ask whether it is ending before they send one. Two properties of unix stream sockets give
// that (Linux, net/unix/af_unix.c):
//
//   - After shutdown(SHUT_RD) a write of the other end fails with EPIPE, and what it wrote
//     before can still be read. So what the client could write is either handled, or answered
//     with "nothing was done" by localConn.end; what it could not write it may send again.
//   - After shutdown(SHUT_RD) of the listener connect fails with ECONNREFUSED, and connections
//     that were made before can still be accepted.
//
// TCP has neither: see connections.

// localListener accepts connections over the unix socket.
type localListener struct {
	*guarded
	ending  func() bool
	open    sync.WaitGroup // of connections with requests
	refused atomic.Bool
}

// Accept implements net.Listener.
func (l *localListener) Accept() (net.Conn, error) {
	c, err := l.guarded.Accept()
	for err != nil && l.refused.Load() { // it may be a time-out: see refuse
		var u *net.UnixConn
		if u, err = l.acceptWaiting(); err != nil {
			return nil, net.ErrClosed
		}
		if ours(u) {
			c = u
		} else {
			u.Close()
			err = net.ErrClosed
		}
	}
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &localConn{UnixConn: c.(*net.UnixConn), ending: l.ending, over: sync.OnceFunc(l.open.Done)}, nil
}

// refuse has the kernel refuse new connections. Accept returns those that wait, then
// net.ErrClosed.
func (l *localListener) refuse() {
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RD) })
	}
	l.refused.Store(true)
	l.SetDeadline(time.Unix(1, 0)) // wakes Accept, which the shutdown does not
}

// acceptWaiting returns a connection that waits to be accepted, or EAGAIN.
func (l *localListener) acceptWaiting() (*net.UnixConn, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var aerr error
	if err := raw.Control(func(of uintptr) { fd, _, aerr = unix.Accept4(int(of), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) }); err != nil {
		return nil, err
	}
	if aerr != nil {
		return nil, aerr
	}
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// wait returns when no connection has an unanswered request, or after limit.
func (l *localListener) wait(limit time.Duration) {
	over := make(chan struct{})
	go func() {
		l.open.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(limit):
	}
}

// localConn is a connection over the unix socket.
type localConn struct {
	*net.UnixConn
	ending func() bool
	over   func() // counts it out, once
	stream atomic.Bool
	shut   atomic.Bool

	handling atomic.Bool // a handler runs
	read     atomic.Bool // something was read that no handler has got
}

// Read implements net.Conn.
func (c *localConn) Read(b []byte) (int, error) {
	n, err := c.UnixConn.Read(b)
	if n > 0 && !c.handling.Load() {
		c.read.Store(true)
	}
	return n, err
}

// handle is called at the begin of a handler, and the returned function at its end.
func (c *localConn) handle() (done func()) {
	c.handling.Store(true)
	c.read.Store(false)
	return func() { c.handling.Store(false) }
}

// note is http.Server.ConnState.
func (c *localConn) note(s http.ConnState) {
	switch s {
	case http.StateHijacked: // it has no more requests
		c.stream.Store(true)
		c.over()
	case http.StateClosed: // nothing reads from it any more
		c.end()
	}
}

// Close implements net.Conn. While the daemon ends, http.Server closes connections that are
// idle as far as it knows, and drops what it reads from them. Close then keeps the client from
// writing, and end answers what it wrote before.
func (c *localConn) Close() error {
	if c.stream.Load() || !c.ending() {
		c.over()
		return c.UnixConn.Close()
	}
	c.shut.Store(true)
	return c.CloseRead()
}

// unreadAnswer is the answer to a request that no handler has got.
const unreadAnswer = "HTTP/1.1 503 Service Unavailable\r\n" + api.EndingHeader + ": true\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

// end closes the connection, and answers a request in it that no handler has got.
func (c *localConn) end() {
	defer c.over()
	defer c.UnixConn.Close()
	if !c.shut.Load() {
		return
	}
	c.SetDeadline(time.Now().Add(time.Second))
	if n, _ := io.Copy(io.Discard, c.UnixConn); n > 0 || c.read.Load() {
		io.WriteString(c.UnixConn, unreadAnswer)
	}
}
