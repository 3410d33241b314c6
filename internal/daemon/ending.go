package daemon

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// ending reports whether the daemon was told to end, or is about to be: the process
// that it ends with has.
func (d *Daemon) ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life.Err() != nil || d.cfg.Orphaned != nil && d.cfg.Orphaned()
}

// refuseEnding refuses a request that may change something while the daemon ends, before
// anything of it is done, and reports whether it did. The header tells clients that they
// may send it again: the next daemon answers it.
func (d *Daemon) refuseEnding(w http.ResponseWriter, r *http.Request, f *Front) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Path == "/v1/daemon/stop" || !d.ending() {
		return false
	}
	h := w.Header()
	h.Set(api.EndingHeader, "true")
	h.Set("Retry-After", "1")
	h.Set("Connection", "close")
	f.refuse(w, r, cell.Errorf(cell.Unavailable, "daemon", "send it again: the next daemon answers it", "the daemon is ending; nothing of the request was done"))
	return true
}

// connections knows the connections over TCP that wait for a request, and since when.
//
// http.Server.Shutdown closes them at once, also when a request is on its way that the
// client wrote meanwhile, and then the client cannot know whether it was done. So the end
// of a daemon waits until each has been idle for longer than a client sends a request
// without asking for the daemon first (api.AnsweredLately).
type connections struct {
	mu   sync.Mutex
	idle map[net.Conn]time.Time
	left chan struct{} // closed and replaced when a connection is idle no longer
}

func newConnections() *connections {
	return &connections{idle: map[net.Conn]time.Time{}, left: make(chan struct{})}
}

// note is http.Server.ConnState.
func (c *connections) note(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s == http.StateIdle {
		c.idle[conn] = time.Now()
		return
	}
	if _, ok := c.idle[conn]; ok {
		delete(c.idle, conn)
		close(c.left)
		c.left = make(chan struct{})
	}
}

// quiet waits until no connection has answered for less than since, or until limit.
func (c *connections) quiet(since, limit time.Duration) {
	for end := time.Now().Add(limit); ; {
		c.mu.Lock()
		var wait time.Duration
		for _, at := range c.idle {
			wait = max(wait, since-time.Since(at))
		}
		left := c.left
		c.mu.Unlock()
		wait = min(wait, time.Until(end))
		if wait <= 0 {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-left:
		}
		t.Stop()
	}
}
