// Package sshd is an SSH server in front of one cell: sessions with and without a terminal, SFTP, and
// connections to the cell's own ports.
//
// It promises that a client does nothing here that it could not do by the REST API: commands are execs of the cell,
// connections lead to its loopback alone, and agents, X11 and listeners are refused. It leaves to its caller which clients may connect:
// a connection comes over a stream that has been authorised, so that clients need no key. They know the server by its host key.
// The protocol is golang.org/x/crypto/ssh's (RFC 4251 to 4254).
package sshd

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/run"
)

// Cell is what a server stands before.
type Cell interface {
	// StartExec starts a command; AttachExec attaches to it by its id, and SignalExec sends it a signal, such as SIGTERM.
	StartExec(ctx context.Context, req api.ExecRequest) (api.Exec, error)
	AttachExec(id string, input bool) (*run.Attachment, error)
	SignalExec(ctx context.Context, id, signal string) error
	// Dial connects to a port of the cell's loopback, and SFTP begins a session on its files.
	Dial(ctx context.Context, port int) (net.Conn, error)
	SFTP(ctx context.Context) (net.Conn, error)
}

// hostKey is the name of the file with the host key.
const hostKey = "ssh.key"

// HostKey returns the key by which clients know the server. It is made when there is none.
func HostKey(keys durable.FS) (ssh.Signer, error) {
	text, err := durable.ReadFile(keys, hostKey)
	if cell.KindOf(err) == cell.NotFound {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		block, err := ssh.MarshalPrivateKey(key, "pando")
		if err != nil {
			return nil, err
		}
		text = pem.EncodeToMemory(block)
		if err := durable.WriteFile(keys, hostKey, text, 0o600); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	return ssh.ParsePrivateKey(text)
}

// mostChannels bounds the sessions and connections that are open at once on one connection.
const mostChannels = 128

// Serve answers a client until the connection ends, which it closes. What the client started ends with it.
func Serve(ctx context.Context, conn net.Conn, key ssh.Signer, c Cell, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: "SSH-2.0-pando"}
	config.AddHostKey(key)
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return err
	}
	var under sync.WaitGroup
	defer under.Wait()
	defer cancel()
	under.Go(func() { refuseAll(requests) })
	room := make(chan struct{}, mostChannels)
	s := &serving{cell: c, log: log}
	for ch := range channels {
		select {
		case room <- struct{}{}:
		default:
			ch.Reject(ssh.ResourceShortage, "too many sessions and connections at once")
			continue
		}
		under.Go(func() {
			defer func() { <-room }()
			switch ch.ChannelType() {
			case "session":
				s.session(ctx, ch)
			case "direct-tcpip":
				s.connect(ctx, ch)
			default: // "direct-streamlocal@openssh.com", for example
				ch.Reject(ssh.UnknownChannelType, "only sessions and connections to ports of the cell are served")
			}
		})
	}
	if err = server.Wait(); errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// refuseAll answers requests that ask for listeners here, and those that only ask whether the other side is there: any
// answer tells that.
func refuseAll(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply {
			r.Reply(false, nil)
		}
	}
}

// serving is what the channels of a connection share.
type serving struct {
	cell Cell
	log  *slog.Logger
}

// connect joins a channel with a port of the cell's loopback.
func (s *serving) connect(ctx context.Context, ch ssh.NewChannel) {
	var to struct {
		Host     string
		Port     uint32
		From     string
		FromPort uint32
	}
	if err := ssh.Unmarshal(ch.ExtraData(), &to); err != nil {
		ch.Reject(ssh.ConnectionFailed, "no address of a port")
		return
	}
	if ip := net.ParseIP(to.Host); to.Host != "localhost" && !(ip != nil && (ip.IsLoopback() || ip.IsUnspecified())) {
		ch.Reject(ssh.Prohibited, "only ports of the cell itself can be forwarded (localhost): what else the cell may reach, its policy says")
		return
	}
	conn, err := s.cell.Dial(ctx, int(to.Port))
	if err != nil {
		ch.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	c, requests, err := ch.Accept()
	if err != nil {
		return
	}
	go refuseAll(requests)
	defer c.Close()
	join(ctx, c, conn)
}

// join carries bytes both ways until both directions have ended. It returns why those to the client did.
func join(ctx context.Context, c ssh.Channel, conn net.Conn) (err error) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var both sync.WaitGroup
	both.Go(func() {
		io.Copy(conn, c)
		if w, ok := conn.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
			conn.Close()
		}
	})
	both.Go(func() {
		_, err = io.Copy(c, conn)
		c.CloseWrite()
	})
	both.Wait()
	return err
}
