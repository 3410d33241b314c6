package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/run"
)

func (d *Daemon) attachRun(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	a, err := d.cfg.Engine.AttachRun(id, queryBool(r, "input"))
	if err != nil {
		return nil, err
	}
	return d.attach(w, r, a, func(ctx context.Context, ws *websocket.Conn, from backend.Offsets) error {
		return d.replay(ctx, ws, id, from)
	})
}

func (d *Daemon) attachExec(w http.ResponseWriter, r *http.Request) (any, error) {
	a, err := d.cfg.Engine.AttachExec(r.PathValue("exec"), queryBool(r, "input"))
	if err != nil {
		return nil, err
	}
	return d.attach(w, r, a, nil)
}

// attach upgrades the request to a WebSocket and carries frames until the end. late sends the
// kept output of a process that has already ended.
func (d *Daemon) attach(w http.ResponseWriter, r *http.Request, a *run.Attachment, late func(context.Context, *websocket.Conn, backend.Offsets) error) (any, error) {
	want, err := wanted(r)
	if err != nil {
		a.Release(false)
		return nil, err
	}
	if !upgrades(r) {
		a.Release(false)
		return nil, noWebSocket(r)
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		a.Release(true)
		return done{}, nil // Accept has answered
	}
	ws.SetReadLimit(api.MaxFrame + 1)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s := &stream{ws: ws, a: a, want: want, in: make(chan api.Frame, 16)}
	go s.read(ctx, cancel)
	err = s.carry(ctx, late)
	a.Release(err != nil)
	if err == nil {
		ws.Close(websocket.StatusNormalClosure, "")
	} else {
		ws.CloseNow()
	}
	return done{}, nil
}

// noWebSocket refuses a request without an upgrade to a WebSocket. Over HTTP/2 that needs RFC
// 8441, which net/http does not speak by default, nor do most clients.
func noWebSocket(r *http.Request) error {
	if r.ProtoMajor >= 2 {
		return cell.Errorf(cell.Invalid, "daemon.attach", "ask over HTTP/1.1, as WebSocket clients do", "this route is a WebSocket, which HTTP/%d does not support here", r.ProtoMajor)
	}
	return cell.Errorf(cell.Invalid, "daemon.attach", "ask with Upgrade: websocket, as WebSocket clients do", "this route is a WebSocket, and the request asks for none")
}

// upgrades reports whether a request asks for a WebSocket.
func upgrades(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && r.Header.Get("Sec-WebSocket-Key") != ""
}

// maxClient bounds the name of a client, in bytes.
const maxClient = 64

// wanted returns the attachment that the client asks for.
func wanted(r *http.Request) (a backend.Attach, err error) {
	q := r.URL.Query()
	for name, to := range map[string]*int64{"stdout": &a.Stdout, "stderr": &a.Stderr} {
		if s := q.Get(name); s != "" {
			if *to, err = strconv.ParseInt(s, 10, 64); err != nil || *to < 0 {
				return a, cell.Errorf(cell.Invalid, "daemon.attach", "give a number of bytes", "%s can't be %s", name, strconv.Quote(cell.Clip(s)))
			}
		}
	}
	var size [2]uint64
	for i, name := range []string{"rows", "cols"} {
		if s := q.Get(name); s != "" {
			if size[i], err = strconv.ParseUint(s, 10, 16); err != nil {
				return a, cell.Errorf(cell.Invalid, "daemon.attach", "give a number", "%s can't be %s", name, strconv.Quote(cell.Clip(s)))
			}
		}
	}
	if size[0] > 0 && size[1] > 0 {
		a.Size = &api.Resize{Rows: uint16(size[0]), Cols: uint16(size[1])}
	}
	if a.Client = q.Get("client"); len(a.Client) > maxClient {
		return a, cell.Errorf(cell.Invalid, "daemon.attach", "", "the name of a client has %d bytes at most", maxClient)
	}
	a.Input, a.Screen = queryBool(r, "input"), queryBool(r, "screen")
	return a, nil
}

// stream is one attached client.
type stream struct {
	ws   *websocket.Conn
	a    *run.Attachment
	want backend.Attach // its offsets advance
	in   chan api.Frame // frames of the client
}

// read receives frames from the client; its end cancels the stream.
func (s *stream) read(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	for {
		_, b, err := s.ws.Read(ctx)
		if err != nil {
			return
		}
		if len(b) == 0 || !s.want.Input {
			continue
		}
		if api.FrameType(b[0]) == api.FrameSignal {
			s.a.Signalled(string(b[1:]))
		}
		if api.FrameType(b[0]) == api.FrameStdin {
			s.a.Typed(b[1:])
		}
		select {
		case s.in <- api.Frame{Type: api.FrameType(b[0]), Payload: b[1:]}:
		case <-ctx.Done():
			return
		}
	}
}

func (s *stream) send(ctx context.Context, f api.Frame) error {
	b := make([]byte, 0, 1+len(f.Payload))
	b = append(append(b, byte(f.Type)), f.Payload...)
	c, cancel := context.WithTimeout(ctx, 10*time.Minute) // a client that stops reading blocks the command for a limited time
	defer cancel()
	return s.ws.Write(c, websocket.MessageBinary, b)
}

func (s *stream) sendJSON(ctx context.Context, t api.FrameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.send(ctx, api.Frame{Type: t, Payload: b})
}

// carry sends progress, then the command's stream, then the result.
func (s *stream) carry(ctx context.Context, late func(context.Context, *websocket.Conn, backend.Offsets) error) error {
	if err := s.awaitStart(ctx); err != nil {
		return err
	}
	conn, err := s.open(ctx)
	switch {
	case err == nil:
		whole, err := s.pump(ctx, conn)
		if err != nil {
			return err
		}
		if !whole && late != nil {
			// The keeper has ended, as the result will say: the log files have the rest.
			err = late(ctx, s.ws, s.want.Offsets)
		}
		if err != nil {
			return err
		}
	case late != nil:
		// The run has already ended, or never started: the log files have its output.
		if err := late(ctx, s.ws, s.want.Offsets); err != nil {
			return err
		}
	}
	select {
	case <-s.a.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	v, err := s.a.Result()
	if errors.Is(err, run.ErrLeft) {
		return err // without a result: the client attaches again, to the next daemon
	}
	if err != nil {
		return s.sendJSON(ctx, api.FrameError, errorOf(err))
	}
	return s.sendJSON(ctx, api.FrameResult, v)
}

// awaitStart sends progress until the command has started or the run has ended.
func (s *stream) awaitStart(ctx context.Context) error {
	for {
		select {
		case p := <-s.a.Progress:
			if err := s.sendJSON(ctx, api.FrameProgress, p); err != nil {
				return err
			}
		case <-s.a.Started:
			return nil
		case <-s.a.Done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// open returns the command's stream, if it has started.
func (s *stream) open(ctx context.Context) (net.Conn, error) {
	select {
	case <-s.a.Started:
		return s.a.Open(ctx, s.want)
	default:
		return nil, errNotStarted
	}
}

var errNotStarted = errors.New("the command never started")

// pump carries frames between the client and the keeper until the command has ended and its
// output was sent. It advances the offsets, and reports whether it reached the end.
func (s *stream) pump(ctx context.Context, conn net.Conn) (whole bool, err error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	go s.feed(ctx, conn)
	over, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		s.ask(ctx, over)
	}()
	defer func() {
		close(over)
		<-asked
	}()
	var buf []byte
	for {
		f, err := api.ReadFrame(conn, &buf)
		if err != nil {
			return false, ctx.Err()
		}
		if f.Type == api.FrameExit {
			return true, nil
		}
		if err := s.send(ctx, f); err != nil {
			return false, err
		}
		at, b, err := f.OutputData()
		switch {
		case err != nil:
		case f.Type == api.FrameStdout:
			s.want.Stdout = at + int64(len(b))
		case f.Type == api.FrameStderr:
			s.want.Stderr = at + int64(len(b))
		case f.Type == api.FrameScreen:
			s.want.Stdout = at
		}
	}
}

// ask sends the client pending approvals and denials while the command runs. It never cuts a
// write short, since that would end the connection.
func (s *stream) ask(ctx context.Context, over <-chan struct{}) {
	for {
		select {
		case p := <-s.a.Progress:
			if (p.Step == api.StepAsking || p.Step == api.StepDenied) && s.sendJSON(ctx, api.FrameProgress, p) != nil {
				return
			}
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *stream) feed(ctx context.Context, conn net.Conn) {
	var buf []byte
	for {
		select {
		case f := <-s.in:
			buf = api.AppendFrame(buf[:0], f)
			if _, err := conn.Write(buf); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// replay sends the contents of a run's log files.
func (d *Daemon) replay(ctx context.Context, ws *websocket.Conn, id cell.RunID, from backend.Offsets) error {
	s := &stream{ws: ws}
	for _, x := range []struct {
		name string
		t    api.FrameType
		off  int64
	}{{"stdout", api.FrameStdout, from.Stdout}, {"stderr", api.FrameStderr, from.Stderr}} {
		f, err := d.cfg.Engine.Log(id, x.name)
		if err != nil {
			continue // it never started
		}
		buf := make([]byte, 32<<10)
		for {
			n, rerr := f.ReadAt(buf, x.off)
			if n > 0 {
				if err := s.send(ctx, api.Output(x.t, x.off, buf[:n])); err != nil {
					f.Close()
					return err
				}
				x.off += int64(n)
			}
			if rerr != nil {
				break
			}
		}
		f.Close()
	}
	return nil
}
