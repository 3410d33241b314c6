package client

import (
	"context"
	"io"
	"net"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"os"
)

// Manage implements backend.Instance.
func (i *Instance) Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error {
	return i.Client.Manage(ctx, i.Cell, a, in, out)
}

// SFTP implements backend.Instance.
func (i *Instance) SFTP(ctx context.Context, start string, u cell.User) (net.Conn, error) {
	return i.Client.SFTP(ctx, proto.Session{Cell: i.Cell, Start: start, UID: u.UID, GID: u.GID})
}

// Dial implements backend.Instance.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	return i.Client.Dial(ctx, i.Cell, port)
}

// Ports implements backend.Instance.
func (i *Instance) Ports(ctx context.Context) ([]cell.Listening, error) {
	return Ask(ctx, i.Client, proto.Ports, i.of())
}

// Mapped implements backend.Instance.
func (i *Instance) Mapped(ctx context.Context) ([]cell.MappedFile, error) {
	return Ask(ctx, i.Client, proto.Mapped, i.of())
}

// ShowDenials implements backend.Instance.
func (i *Instance) ShowDenials(ctx context.Context, text, lines *os.File) error {
	_, err := Ask(ctx, i.Client, proto.Denials, i.of(), text, lines)
	return err
}

// ServeLink implements backend.Instance.
func (i *Instance) ServeLink(ctx context.Context, link *os.File) error {
	_, err := Ask(ctx, i.Client, proto.ServeLink, i.of(), link)
	return err
}

// TakeLink implements backend.Instance.
func (i *Instance) TakeLink(ctx context.Context, name string, link *os.File) error {
	_, err := Ask(ctx, i.Client, proto.TakeLink, proto.Service{Cell: i.Cell, Name: name}, link)
	return err
}

// LendAgent implements backend.Instance.
func (i *Instance) LendAgent(ctx context.Context, path string, listener, upstream *os.File) error {
	_, err := Ask(ctx, i.Client, proto.Agent, proto.Lent{Cell: i.Cell, Path: path}, listener, upstream)
	return err
}
