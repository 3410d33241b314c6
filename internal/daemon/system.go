package daemon

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/user"
	"runtime/debug"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/linux"
)

// Doctor examines the host.
type Doctor func(ctx context.Context) api.Diagnosis

func (d *Daemon) getDaemon(w http.ResponseWriter, r *http.Request) (any, error) {
	cells, alive := d.cfg.Engine.Count()
	return api.Daemon{Version: d.cfg.Version, PID: os.Getpid(), Started: d.started.UTC(), Home: d.cfg.Home.State,
		Socket: d.cfg.Home.Socket(), Listen: d.urls(), Draining: d.drains(), Ending: d.ending(), Cells: cells, Alive: alive, Working: d.cfg.Engine.Working(d.cfg.Operations.Working()), Space: d.cfg.Engine.SpaceWarning(), Logout: outliveLogout(linux.LogoutOf("", "self", nameOf))}, nil
}

// outliveLogout is the command by which a process outlives the end of its user's login; "" when it
// does.
func outliveLogout(at linux.AtLogout) string {
	switch {
	case at.UID == "":
		return ""
	case at.Session:
		return "loginctl enable-linger; pando daemon stop; systemd-run --user --scope -p Delegate=yes pando ls"
	}
	return "loginctl enable-linger"
}

// nameOf is the name of the user with an id; "" if it has none.
func nameOf(uid string) string {
	u, err := user.LookupId(uid)
	if err != nil {
		return ""
	}
	return u.Username
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
