package fuseproxy

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Requests over a server's control connection: one byte, the length of the rest in eight bytes
// (big endian), and the rest: paths as JSON, if any. The answer has the same form: 0 for
// success, with a state or numbers by path as JSON, or a refusal as JSON.
const (
	askSave     = 's'
	askRefresh  = 'r'
	askExecuted = 'x'
)

// refreshGrace is the time limit for the guest's kernel to process notices.
const refreshGrace = 10 * time.Second

// maxRest is the size limit of a request or an answer, in bytes. A state is the largest.
const maxRest = 1 << 30

// refusal is an error in JSON.
type refusal struct {
	Kind    cell.Kind `json:"kind"`
	Hint    string    `json:"hint,omitempty"`
	Message string    `json:"message"`
}

// Obey serves requests from conn until EOF, which is no error.
func (s *Server) Obey(conn io.ReadWriter) error {
	for {
		what, rest, err := readPart(conn)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out, err := s.obey(what, rest)
		what = 0
		if err != nil {
			what = 1
			if out, err = json.Marshal(refusal{cell.KindOf(err), cell.HintOf(err), err.Error()}); err != nil {
				return err
			}
		}
		if err := writePart(conn, what, out); err != nil {
			return err
		}
	}
}

// readPart reads a request or an answer.
func readPart(r io.Reader) (what byte, rest []byte, err error) {
	head := make([]byte, 9)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(head[1:])
	if n > maxRest {
		return 0, nil, fmt.Errorf("it says that it has %d bytes", n)
	}
	rest = make([]byte, n)
	_, err = io.ReadFull(r, rest)
	return head[0], rest, err
}

func writePart(w io.Writer, what byte, rest []byte) error {
	b := binary.BigEndian.AppendUint64(append(make([]byte, 0, 9+len(rest)), what), uint64(len(rest)))
	_, err := w.Write(append(b, rest...))
	return err
}

func (s *Server) obey(ask byte, rest []byte) ([]byte, error) {
	var paths []string
	if len(rest) > 0 {
		if err := json.Unmarshal(rest, &paths); err != nil {
			return nil, err
		}
	}
	switch ask {
	case askSave:
		return s.Save()
	case askRefresh:
		ctx, cancel := context.WithTimeout(context.Background(), refreshGrace)
		defer cancel()
		return nil, s.Refresh(ctx, paths...)
	case askExecuted:
		return json.Marshal(s.Executed(paths))
	}
	return nil, cell.Errorf(cell.Unsupported, "fuseproxy.Obey", "", "cannot do %q: this server does not support it", ask)
}

// A Remote is a server in another process that runs Obey.
type Remote struct {
	mu   sync.Mutex // held during a request
	conn net.Conn
}

// NewRemote returns a client for the server at the other end of conn.
func NewRemote(conn net.Conn) *Remote { return &Remote{conn: conn} }

// Save calls Server.Save.
func (r *Remote) Save(ctx context.Context) ([]byte, error) { return r.ask(ctx, askSave, nil) }

// Refresh calls Server.Refresh.
func (r *Remote) Refresh(ctx context.Context, paths ...string) error {
	_, err := r.ask(ctx, askRefresh, paths)
	return err
}

// Executed calls Server.Executed.
func (r *Remote) Executed(ctx context.Context, paths []string) (times map[string]int64, err error) {
	b, err := r.ask(ctx, askExecuted, paths)
	if err == nil {
		err = json.Unmarshal(b, &times)
	}
	return times, err
}

// Close closes the connection. The server continues.
func (r *Remote) Close() error { return r.conn.Close() }

// ask sends a request and returns its answer. After a cancelled request the connection is
// unusable.
func (r *Remote) ask(ctx context.Context, what byte, paths []string) (rest []byte, err error) {
	var with []byte
	if len(paths) > 0 {
		if with, err = json.Marshal(paths); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := context.Cause(ctx); err != nil { // cancelled while another request was in progress; nothing was sent
		return nil, cell.Errorf(cell.Unavailable, "fuseproxy.Remote", "", "cannot reach the server of the cell's files: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { r.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var failed byte
	if err = writePart(r.conn, what, with); err == nil {
		failed, rest, err = readPart(r.conn)
	}
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "fuseproxy.Remote", "", "cannot reach the server of the cell's files: %w", err)
	}
	if failed == 0 {
		return rest, nil
	}
	var no refusal
	if err := json.Unmarshal(rest, &no); err != nil {
		return nil, fmt.Errorf("cannot read why the cell's files were refused: %w", err)
	}
	return nil, cell.Errorf(no.Kind, "fuseproxy.Remote", no.Hint, "%s", no.Message)
}
