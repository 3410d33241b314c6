package gofer

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

// What is asked of a server over its control connection, a byte each. The answer is
// a byte, 0 for what worked, the length of the rest in eight bytes (big endian), and the rest: a
// state, or a refusal as JSON.
const (
	askSave    = 's'
	askRefresh = 'r'
)

// refreshGrace is how long the guest's kernel may take to hear what has changed.
const refreshGrace = 10 * time.Second

// maxState bounds what is read of a state, in bytes.
const maxState = 1 << 30

// refusal is an error on its way.
type refusal struct {
	Kind    cell.Kind `json:"kind"`
	Hint    string    `json:"hint,omitempty"`
	Message string    `json:"message"`
}

// Obey does what is asked over conn until that ends, which is no error.
func (s *Server) Obey(conn io.ReadWriter) error {
	for ask := make([]byte, 1); ; {
		if _, err := io.ReadFull(conn, ask); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		rest, err := s.obey(ask[0])
		head := make([]byte, 9)
		if err != nil {
			head[0] = 1
			if rest, err = json.Marshal(refusal{cell.KindOf(err), cell.HintOf(err), err.Error()}); err != nil {
				return err
			}
		}
		binary.BigEndian.PutUint64(head[1:], uint64(len(rest)))
		if _, err := conn.Write(append(head, rest...)); err != nil {
			return err
		}
	}
}

func (s *Server) obey(ask byte) ([]byte, error) {
	switch ask {
	case askSave:
		return s.Save()
	case askRefresh:
		ctx, cancel := context.WithTimeout(context.Background(), refreshGrace)
		defer cancel()
		return nil, s.Refresh(ctx)
	}
	return nil, cell.Errorf(cell.Unsupported, "gofer.Obey", "", "cannot do %q: this server has never heard of it", ask)
}

// A Remote is a server in another process, which obeys.
type Remote struct {
	mu   sync.Mutex // held for one request
	conn net.Conn
}

// NewRemote drives the server that obeys at the other end of conn.
func NewRemote(conn net.Conn) *Remote { return &Remote{conn: conn} }

// Save is that of Server.
func (r *Remote) Save(ctx context.Context) ([]byte, error) { return r.ask(ctx, askSave) }

// Refresh is that of Server.
func (r *Remote) Refresh(ctx context.Context) error {
	_, err := r.ask(ctx, askRefresh)
	return err
}

// Close lets go of the server, which goes on.
func (r *Remote) Close() error { return r.conn.Close() }

// ask sends a request and returns its answer. Who gives up leaves a connection of
// which nothing can be read any more.
func (r *Remote) ask(ctx context.Context, what byte) (rest []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { r.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	head := make([]byte, 9)
	if _, err = r.conn.Write([]byte{what}); err == nil {
		_, err = io.ReadFull(r.conn, head)
	}
	n := binary.BigEndian.Uint64(head[1:])
	if err == nil && n > maxState {
		err = fmt.Errorf("an answer says that it has %d bytes", n)
	}
	if err == nil {
		rest = make([]byte, n)
		_, err = io.ReadFull(r.conn, rest)
	}
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "gofer.Remote", "", "cannot ask who serves the cell's files: %w", err)
	}
	if head[0] == 0 {
		return rest, nil
	}
	var no refusal
	if err := json.Unmarshal(rest, &no); err != nil {
		return nil, fmt.Errorf("cannot read why the cell's files were refused: %w", err)
	}
	return nil, cell.Errorf(no.Kind, "gofer.Remote", no.Hint, "%s", no.Message)
}
