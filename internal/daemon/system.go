package daemon

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/pando-dev/pando/api"
)

// Doctor examines the host.
type Doctor func(ctx context.Context) api.Diagnosis

func (d *Daemon) getDaemon(w http.ResponseWriter, r *http.Request) (any, error) {
	cells, alive := d.cfg.Engine.Count()
	return api.Daemon{Version: d.cfg.Version, PID: os.Getpid(), Started: d.started.UTC(), Home: d.cfg.Home.State,
		Socket: d.cfg.Home.Socket(), Listen: d.urls(), Draining: d.drains(), Ending: d.ending(), Cells: cells, Alive: alive, Working: d.cfg.Engine.Working(d.cfg.Operations.Working()), Space: d.cfg.Engine.SpaceWarning()}, nil
}

func (d *Daemon) urls() (list []string) {
	for _, o := range d.cfg.Listen {
		list = append(list, o.URL)
	}
	return list
}

func (d *Daemon) stopDaemon(w http.ResponseWriter, r *http.Request) (any, error) {
	out, err := d.getDaemon(w, r)
	d.mu.Lock()
	stop := d.stop
	d.mu.Unlock()
	stop()
	return out, err
}

func (d *Daemon) getDoctor(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Doctor(r.Context()), nil
}

func (d *Daemon) getOpenAPI(w http.ResponseWriter, r *http.Request) (any, error) {
	return sendFile(w, "application/json", "openapi.json", bytes.NewReader(api.OpenAPI))
}

func (d *Daemon) getDisk(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Disk(r.Context(), queryBool(r, "objects"))
}

func (d *Daemon) gc(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.GCRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		r, err := d.cfg.Engine.GC(ctx, req.DryRun)
		if !req.DryRun {
			debug.FreeOSMemory() // the memory of a burst of callers goes back to the host
		}
		return r, err
	})
}
