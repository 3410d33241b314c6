package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// maxIdle bounds the idle connections.
const maxIdle = 8

// direct sends requests with bodies in memory over connections that it keeps. The calling
// goroutine itself writes and reads: the transport of net/http has two goroutines for each
// connection, and each hand-over between them waits for the scheduler longer than the daemon
// takes to answer.
type direct struct {
	dial  func(ctx context.Context) (net.Conn, error)
	local bool // over a unix socket

	mu   sync.Mutex // guards the field below
	idle []*wire
}

// unread is the error of a request that the daemon has not read whole: it did nothing of it.
//
// At a unix socket, a write of bytes that the other end will not read fails, and a read of the
// end of a connection fails with ECONNRESET when the other end closed it, or died, before it
// had read everything (Linux, unix_release_sock). At a TCP socket neither is certain.
type unread struct{ error }

func (e unread) Unwrap() error { return e.error }

// wire is a connection and the bytes read ahead from it.
type wire struct {
	net.Conn
	in *bufio.Reader
}

// do sends a request and reads the head of the answer. Reading and writing end with the
// request's context.
func (d *direct) do(req *http.Request) (*http.Response, error) {
	var b bytes.Buffer
	if err := req.Write(&b); err != nil {
		return nil, err
	}
	w, stop, err := d.send(req.Context(), b.Bytes())
	if w == nil {
		return nil, err
	}
	_, rerr := w.in.Peek(1)
	silent := rerr != nil
	var resp *http.Response
	if !silent {
		resp, rerr = http.ReadResponse(w.in, req)
	}
	if rerr != nil {
		stop()
		w.Close()
		lost := d.local && silent && req.Context().Err() == nil && (err != nil || errors.Is(rerr, syscall.ECONNRESET))
		err = cmp.Or(err, rerr)
		if lost {
			err = unread{err}
		}
		return nil, err
	}
	// The answer is valid also when the daemon did not read the whole request.
	resp.Body = &answer{ReadCloser: resp.Body, d: d, w: w, stop: stop, last: resp.Close || err != nil}
	return resp, nil
}

// send writes a request to an idle connection, or else to a new one. An error with a connection
// means that a part was sent. stop releases ctx, and reports whether ctx had not ended.
func (d *direct) send(ctx context.Context, b []byte) (w *wire, stop func() bool, err error) {
	for fresh := 0; ; {
		waited := true
		if w = d.take(); w == nil {
			c, err := d.dial(ctx)
			if err != nil {
				return nil, nil, err
			}
			w, waited = &wire{Conn: c, in: bufio.NewReader(c)}, false
		}
		c := w.Conn
		stop = context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
		n, err := w.Write(b)
		if err == nil || n > 0 {
			return w, stop, err
		}
		stop()
		w.Close()
		// The daemon ended meanwhile and has received nothing.
		if !waited {
			fresh++
		}
		if fresh == dialTries || ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

func (d *direct) take() *wire {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.idle)
	if n == 0 {
		return nil
	}
	w := d.idle[n-1]
	d.idle = d.idle[:n-1]
	return w
}

func (d *direct) put(w *wire) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle) == maxIdle || w.in.Buffered() > 0 {
		w.Close()
		return
	}
	d.idle = append(d.idle, w)
}

// answer is the body of an answer. After the end was read, its connection serves the next
// request.
type answer struct {
	io.ReadCloser
	d    *direct
	w    *wire
	stop func() bool
	last bool // the connection ends after this answer
	over bool
}

func (a *answer) Read(p []byte) (int, error) {
	if a.over {
		return 0, io.EOF
	}
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF {
		a.end(!a.last)
	}
	return n, err
}

// Close hangs up if there is more to read.
func (a *answer) Close() error {
	if !a.over {
		a.end(false)
	}
	return nil
}

func (a *answer) end(again bool) {
	a.over = true
	if a.stop() && again {
		a.d.put(a.w)
	} else {
		a.w.Close()
	}
}
