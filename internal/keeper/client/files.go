package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// Files moves an archive into or out of a cell.
func (c *Client) Files(ctx context.Context, req proto.Archive, in io.Reader, out io.Writer) error {
	k, err := taken(ctx, c, proto.Files, req)
	if err != nil {
		return err
	}
	defer k.Close()
	defer context.AfterFunc(ctx, func() { k.Close() })()
	answer := proto.ReadPieces(k.Raw())
	if !req.Write {
		_, err = io.Copy(out, answer)
		return err
	}
	sent := make(chan error, 1)
	go func() {
		p := proto.SendPieces(k.Raw(), api.FrameStdin)
		_, err := io.Copy(p, in)
		p.End(err)
		sent <- err
	}()
	_, err = io.Copy(io.Discard, answer) // the keeper's verdict, perhaps before it has read everything
	if err != nil {
		return err
	}
	if serr := <-sent; serr != nil && !errors.Is(serr, net.ErrClosed) {
		return serr
	}
	return nil
}

// Manage does something with single files of a cell. in is read for
// cell.FileWrite alone.
func (c *Client) Manage(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader, out io.Writer) error {
	k, err := taken(ctx, c, proto.Manage, proto.FileAct{Cell: id, Act: a})
	if err != nil {
		return err
	}
	defer k.Close()
	defer context.AfterFunc(ctx, func() { k.Close() })()
	var sending sync.WaitGroup
	var serr error
	if a.Act == cell.FileWrite {
		sending.Go(func() {
			p := proto.SendPieces(k.Raw(), api.FrameStdin)
			_, serr = io.Copy(p, in)
			p.End(serr)
		})
	}
	_, err = io.Copy(out, proto.ReadPieces(k.Raw()))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		sending.Wait()
	}
	return err
}

// SFTP begins a session of the SSH File Transfer Protocol.
func (c *Client) SFTP(ctx context.Context, q proto.Session) (net.Conn, error) {
	k, err := taken(ctx, c, proto.SFTP, q)
	if err != nil {
		return nil, err
	}
	return k.Raw(), nil
}

// Dial connects to a port of a cell's loopback.
func (c *Client) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	k, err := taken(ctx, c, proto.Dial, proto.Port{Cell: id, Port: port})
	if err != nil {
		return nil, err
	}
	return k.Raw(), nil
}
