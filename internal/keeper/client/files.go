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
	"github.com/pando-dev/pando/internal/reexec"
)

// Files moves an archive into or out of a cell.
func (c *Client) Files(ctx context.Context, id cell.ID, req proto.FilesRequest, in io.Reader, out io.Writer) error {
	k, err := c.fresh(ctx)
	if err != nil {
		return err
	}
	defer k.Close()
	stop := context.AfterFunc(ctx, func() { k.Close() })
	defer stop()
	resp, err := proto.Exchange(k, proto.Request{Op: "files", Cell: id, Files: &req})
	if err == nil && resp.Error != nil {
		err = resp.Error.Err("files")
	}
	if err != nil {
		return err
	}
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
	k, err := c.taken(ctx, proto.Request{Op: "manage", Cell: id, Manage: &a})
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

// taken sends a request that takes over a connection of its own.
func (c *Client) taken(ctx context.Context, req proto.Request) (*reexec.Conn, error) {
	k, err := c.fresh(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := proto.Exchange(k, req)
	if err == nil && resp.Error != nil {
		err = resp.Error.Err(req.Op)
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// Dial connects to a port of a cell's loopback.
func (c *Client) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	k, err := c.taken(ctx, proto.Request{Op: "dial", Cell: id, Port: port})
	if err != nil {
		return nil, err
	}
	return k.Raw(), nil
}
