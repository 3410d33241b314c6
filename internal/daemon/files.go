package daemon

import (
	"io"
	"net/http"
)

func (d *Daemon) readFiles(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	out := &begun{ResponseWriter: w}
	err = d.cfg.Engine.ReadFiles(r.Context(), id, r.URL.Query().Get("path"), out)
	if err == nil {
		return done{}, nil
	}
	if !out.wrote {
		return nil, err
	}
	d.brokenOff(r, "cannot read files of cell "+string(id), err)
	return done{}, nil
}

// begun notes the first write, and then writes the header.
type begun struct {
	http.ResponseWriter
	wrote bool
}

func (b *begun) Write(p []byte) (int, error) {
	if !b.wrote {
		b.wrote = true
		b.Header().Set("Content-Type", "application/x-tar")
	}
	return b.ResponseWriter.Write(p)
}

func (d *Daemon) writeFiles(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	if err := typed(r, tarball); err != nil {
		return nil, err
	}
	in := &uploadBody{Reader: r.Body}
	return struct{}{}, in.why(d.cfg.Engine.WriteFiles(r.Context(), id, r.URL.Query().Get("path"), in))
}

func (d *Daemon) upload(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := typed(r, tarball); err != nil {
		return nil, err
	}
	in := &uploadBody{Reader: r.Body}
	out, err := d.cfg.Engine.Upload(r.Context(), in)
	return out, in.why(err)
}

// uploadBody is a body that is copied into a cell. It keeps its read error, since the reader in the
// cell reports another.
type uploadBody struct {
	io.Reader
	err error
}

func (i *uploadBody) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil && err != io.EOF {
		i.err = err
	}
	return n, err
}

// why returns the read error of the body, if any, else err.
func (i *uploadBody) why(err error) error {
	if err != nil && i.err != nil {
		return unread(i.err)
	}
	return err
}
