package daemon

import (
	"io"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// health answers health checks, which have no token. /healthz reports that the daemon answers,
// /readyz that it accepts new work and has room for it. They reveal nothing else.
func (d *Daemon) health(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	status, says := http.StatusOK, "ok\n"
	switch r.URL.Path {
	case "/healthz":
	case "/readyz":
		switch {
		case d.drains():
			status, says = http.StatusServiceUnavailable, "draining\n"
		case !d.cfg.Engine.Ready():
			status, says = http.StatusServiceUnavailable, "full\n"
		}
	default:
		return false
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	io.WriteString(w, says)
	return true
}

// drains reports whether new work is refused.
func (d *Daemon) drains() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.draining || d.life.Err() != nil
}

// setDrain makes the daemon refuse new work: running work continues, and can be inspected,
// stopped and removed.
func (d *Daemon) setDrain(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.DrainRequest](w, r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.draining = !req.Undo
	d.mu.Unlock()
	d.cfg.Engine.Drain(!req.Undo)
	d.cfg.Log.Info("drain", "on", !req.Undo)
	return d.getDaemon(w, r)
}

// available reports whether a route is available now.
func (d *Daemon) available(route Route) error {
	if route.Traits.has(begins) && d.drains() {
		return cell.Errorf(cell.Unavailable, "daemon", "use another daemon, or end draining: pando daemon drain --undo", "the daemon takes no new work")
	}
	return nil
}
