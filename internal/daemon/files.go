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

// begun notes whether anything was written, and writes the header then.
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
	in := &intake{Reader: r.Body}
	return struct{}{}, in.why(d.cfg.Engine.WriteFiles(r.Context(), id, r.URL.Query().Get("path"), in))
}

func (d *Daemon) upload(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := typed(r, tarball); err != nil {
		return nil, err
	}
	in := &intake{Reader: r.Body}
	out, err := d.cfg.Engine.Upload(r.Context(), in)
	return out, in.why(err)
}

// intake is a body on its way into a cell. It remembers why it broke off: what
// reads it there has its own words.
type intake struct {
	io.Reader
	err error
}

func (i *intake) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil && err != io.EOF {
		i.err = err
	}
	return n, err
}

// why is what went wrong with the body, if anything did, else err.
func (i *intake) why(err error) error {
	if err != nil && i.err != nil {
		return unread(i.err)
	}
	return err
}
