package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/internal/cell"
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
	// The archive has begun: breaking it off is the only way to say so.
	d.cfg.Log.Warn("cannot read files", "cell", id, "error", err)
	panic(http.ErrAbortHandler)
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
	if ct := r.Header.Get("Content-Type"); ct != "application/x-tar" {
		return nil, cell.Errorf(cell.Invalid, "daemon.writeFiles", "send application/x-tar", "cannot write files of type %q", ct)
	}
	return struct{}{}, d.cfg.Engine.WriteFiles(r.Context(), id, r.URL.Query().Get("path"), r.Body)
}
