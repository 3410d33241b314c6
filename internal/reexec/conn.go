package reexec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// MaxMessage bounds one message; MaxFiles is the kernel's bound on
// descriptors in one.
const (
	MaxMessage = 16 << 20
	MaxFiles   = 250
)

// Conn carries typed messages with files attached over a unix stream socket:
// four bytes of length, little endian, then JSON; the files travel with the
// first byte. Sends are safe for concurrent use, and so are receives.
type Conn struct {
	c *net.UnixConn

	sendMu sync.Mutex // guards writing
	recvMu sync.Mutex // guards reading
}

// NewConn makes a Conn of a connected stream socket.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c} }

// Raw returns the connection below, for a protocol that goes on with its own
// bytes.
func (c *Conn) Raw() *net.UnixConn { return c.c }

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Send writes v as JSON with files attached. The files stay open.
func (c *Conn) Send(v any, files ...*os.File) error {
	if len(files) > MaxFiles {
		return fmt.Errorf("cannot send %d files in one message", len(files))
	}
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > MaxMessage {
		return fmt.Errorf("cannot send a message of %d bytes", len(body))
	}
	msg := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	msg = append(msg, body...)
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	n, _, err := c.c.WriteMsgUnix(msg, oob, nil)
	if err != nil {
		return err
	}
	if n < len(msg) {
		_, err = c.c.Write(msg[n:])
	}
	return err
}

// Recv reads one message into v and returns its files, which are closed on
// exec and belong to the caller.
func (c *Conn) Recv(v any) (files []*os.File, err error) {
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*MaxFiles))
	for got := 0; got < len(head); {
		n, oobn, flags, _, err := c.c.ReadMsgUnix(head[got:], oob)
		if oobn > 0 {
			more, perr := parseFiles(oob[:oobn])
			files = append(files, more...)
			if perr != nil {
				return files, perr
			}
		}
		if errors.Is(err, io.EOF) {
			return files, io.EOF
		}
		if err != nil {
			return files, err
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return files, fmt.Errorf("cannot receive all files of a message")
		}
		if n == 0 {
			return files, io.EOF
		}
		got += n
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > MaxMessage {
		return files, fmt.Errorf("cannot receive a message of %d bytes", size)
	}
	// A length alone takes no memory: a large message is read as it comes.
	body := bytes.NewBuffer(make([]byte, 0, min(int(size), 64<<10)+bytes.MinRead))
	if n, err := io.CopyN(body, c.c, int64(size)); err != nil {
		if errors.Is(err, io.EOF) && n > 0 {
			err = io.ErrUnexpectedEOF
		}
		return files, err
	}
	return files, json.Unmarshal(body.Bytes(), v)
}

func parseFiles(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // credentials or something else that is not asked for
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}
