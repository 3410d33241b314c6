package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// longest is the size limit of a line, in bytes. The commands in use have answers of a few
// hundred.
const longest = 1 << 20

// A monitor is one end of a QMP connection. Answers may arrive in any order, with events
// between them.
type monitor struct {
	conn  *net.UnixConn
	event func(name string, data json.RawMessage) // called by the reader, one at a time
	hello chan struct{}                           // closed after the program's greeting
	done  chan struct{}                           // closed when the connection has ended

	sending sync.Mutex // one line at a time, with its files

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan<- message
}

// message is a line from the program.
type message struct {
	QMP    json.RawMessage `json:"QMP"`
	ID     uint64          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

func newMonitor(conn *net.UnixConn, event func(string, json.RawMessage)) *monitor {
	m := &monitor{conn: conn, event: event, hello: make(chan struct{}), done: make(chan struct{}), waiting: map[uint64]chan<- message{}}
	go m.read()
	return m
}

// read reads the program's lines until the end, or until an invalid one.
func (m *monitor) read() {
	defer close(m.done)
	defer m.conn.Close()
	in := bufio.NewScanner(m.conn)
	in.Buffer(nil, longest)
	greeted := false
	for in.Scan() {
		var x message
		if json.Unmarshal(in.Bytes(), &x) != nil {
			return
		}
		switch {
		case x.QMP != nil:
			if !greeted {
				greeted = true
				close(m.hello)
			}
		case x.Event != "":
			m.event(x.Event, x.Data)
		default:
			m.mu.Lock()
			answer := m.waiting[x.ID]
			delete(m.waiting, x.ID)
			m.mu.Unlock()
			if answer != nil { // otherwise the caller has given up
				answer <- x
			}
		}
	}
}

// do executes a command, with files, and returns its answer.
func (m *monitor) do(ctx context.Context, command string, arguments any, files ...*os.File) (json.RawMessage, error) {
	answer := make(chan message, 1)
	m.mu.Lock()
	m.next++
	id := m.next
	m.waiting[id] = answer
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.waiting, id)
		m.mu.Unlock()
	}()
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, arguments, id})
	if err != nil {
		return nil, fmt.Errorf("cannot ask the machine's monitor: %w", err)
	}
	if err := m.send(append(line, '\n'), files); err != nil {
		return nil, gone(command)
	}
	select {
	case x := <-answer:
		if x.Error != nil {
			return nil, &refusal{command, x.Error.Class, x.Error.Desc}
		}
		return x.Return, nil
	case <-m.done:
		return nil, gone(command)
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot wait for the machine's monitor (%s): %w", command, context.Cause(ctx))
	}
}

func (m *monitor) send(line []byte, files []*os.File) error {
	m.sending.Lock()
	defer m.sending.Unlock()
	if len(files) == 0 {
		_, err := m.conn.Write(line)
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err := m.conn.WriteMsgUnix(line, unix.UnixRights(fds...), nil)
	if err == nil && n < len(line) {
		_, err = m.conn.Write(line[n:])
	}
	return err
}

// close closes the connection and waits for the reader.
func (m *monitor) close() {
	m.conn.Close()
	<-m.done
}

// refusal is the program's error for a command.
type refusal struct{ command, class, desc string }

func (r *refusal) Error() string {
	return fmt.Sprintf("cannot drive the machine: QEMU refuses %s: %s", r.command, r.desc)
}

func gone(command string) error {
	return cell.Errorf(cell.Unavailable, "qemu."+command, "", "cannot drive the machine (%s): it has ended", command)
}
