package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/archive"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/reexec"
)

// An archive travels as frames: FrameStdin or FrameStdout with a piece of it,
// then FrameResult, or FrameError when it can't be completed.

// FilesRequest names a path inside the cell, absolute.
type FilesRequest struct {
	Path  string `json:"path"`
	Write bool   `json:"write"`         // extract the archive that follows; else send one
	UID   int    `json:"uid,omitempty"` // who written files belong to
	GID   int    `json:"gid,omitempty"`
}

// pieces turns what is written into frames.
type pieces struct {
	c net.Conn
	t api.FrameType
}

func (p *pieces) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		m := min(len(b), 256<<10)
		if _, err := p.c.Write(api.AppendFrame(nil, api.Frame{Type: p.t, Payload: b[:m]})); err != nil {
			return n, err
		}
		n, b = n+m, b[m:]
	}
	return n, nil
}

// end sends how it ended.
func (p *pieces) end(err error) {
	f := api.Frame{Type: api.FrameResult}
	if err != nil {
		f.Type = api.FrameError
		f.Payload, _ = json.Marshal(wireError(err))
	}
	p.c.Write(api.AppendFrame(nil, f))
}

// assembled reads frames as one stream; FrameResult is its end, FrameError an
// error.
type assembled struct {
	c    net.Conn
	buf  []byte
	rest bytes.Buffer
	err  error
}

func (a *assembled) Read(b []byte) (int, error) {
	for a.rest.Len() == 0 {
		if a.err != nil {
			return 0, a.err
		}
		f, err := api.ReadFrame(a.c, &a.buf)
		switch {
		case err != nil:
			a.err = io.ErrUnexpectedEOF
		case f.Type == api.FrameResult:
			a.err = io.EOF
		case f.Type == api.FrameError:
			var w WireError
			if json.Unmarshal(f.Payload, &w) != nil {
				w = WireError{Kind: cell.Internal, Message: "cannot read an error of the keeper"}
			}
			a.err = w.err("files")
		default:
			a.rest.Write(f.Payload)
		}
	}
	return a.rest.Read(b)
}

// files serves the request that takes over its connection.
func (s *Server) files(c *reexec.Conn, req *Request) {
	raw := c.Raw()
	out := &pieces{raw, api.FrameStdout}
	if c.Send(Response{}) != nil {
		return
	}
	if req.Files == nil {
		out.end(malformed("files"))
		return
	}
	root, err := s.Driver.Root(req.Cell)
	if err != nil {
		out.end(err)
		return
	}
	defer root.Close()
	if req.Files.Write {
		in := &assembled{c: raw}
		err = archive.Take(root, req.Files.Path, req.Files.UID, req.Files.GID, in)
		if err == nil { // padding after the archive
			_, err = io.Copy(io.Discard, in)
		}
	} else {
		err = archive.Send(root, req.Files.Path, out)
	}
	out.end(err)
}

// Files moves an archive into or out of a cell.
func (c *Client) Files(ctx context.Context, id cell.ID, req FilesRequest, in io.Reader, out io.Writer) error {
	k, err := c.fresh(ctx)
	if err != nil {
		return err
	}
	defer k.Close()
	stop := context.AfterFunc(ctx, func() { k.Close() })
	defer stop()
	resp, err := roundTrip(k, Request{Op: "files", Cell: id, Files: &req}, nil)
	if err == nil && resp.Error != nil {
		err = resp.Error.err("files")
	}
	if err != nil {
		return err
	}
	answer := &assembled{c: k.Raw()}
	if !req.Write {
		_, err = io.Copy(out, answer)
		return err
	}
	sent := make(chan error, 1)
	go func() {
		p := &pieces{k.Raw(), api.FrameStdin}
		_, err := io.Copy(p, in)
		p.end(err)
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
