// Package e2b is the API for programs written for E2B: its control plane and the daemon in
// its sandboxes (envd), over the engine's cells, on one port. It translates, and leaves
// decisions to the engine. A sandbox is a cell, with the cell's id.
//
//	/v2/sandboxes, /sandboxes/…, /templates/…      control plane, by path
//	E2b-Sandbox-Id, E2b-Sandbox-Port: 49983        envd, by header
//	Host: {port}-{id}.localhost                    the same by host
//	… any other port                               a server on that port of the cell
//
// Callers of the control plane are authenticated before it. Requests to a sandbox have the
// sandbox's own token, or a signature made with it. Unsupported parts of a request are
// refused, or listed in X-Pando-Ignored.
package e2b

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/engine"
)

// The ports of a sandbox that belong to envd.
const (
	portEnvd        = 49983
	portInterpreter = 49999
)

// envdVersion is the version of envd that this protocol has.
const envdVersion = "0.6.4"

// headerIgnored lists the ignored members of a request.
const headerIgnored = "X-Pando-Ignored"

// Config configures a front.
type Config struct {
	Engine *engine.View
	Log    *slog.Logger
	// Key is the key of the sandboxes' tokens: 32 bytes that stay constant as long as the
	// sandboxes live.
	Key []byte
	// Path is the PATH of the daemon's user, in which cells find programs.
	Path   string
	Upload int64  // bytes that one request may write to files; 0 is unlimited
	Disk   string // a directory on the file system of cells
	// Kept stores the state of sandboxes for the next daemon; nil for none.
	Kept durable.FS
	// BuildAllow lists what the steps of templates may reach, in the syntax of --allow. The
	// operator sets it; requests can't change it.
	BuildAllow []string
	// BuildImages are the repositories of images that builds may start from, set by the
	// operator. A final "*" matches any rest.
	BuildImages []string
}

// Front answers for E2B. It is an http.Handler. For a caller with restrictions it has that
// caller's view of the engine: see as.
type Front struct {
	cfg     Config
	control *http.ServeMux
	envd    *http.ServeMux
	interp  *http.ServeMux
	*common
}

// common is the state that all callers share.
type common struct {
	all *engine.View // the unrestricted engine

	mu     sync.Mutex // guards the fields below
	boxes  map[cell.ID]*box
	builds map[string]*build // of templates, by their id
	fronts map[string]*Front // of restricted callers, by token
	// signers caches the sandboxes of verified signatures.
	signers map[string]cell.ID

	lending sync.Mutex // held while credentials of rules are added and removed
}

// box is the state of a sandbox while this daemon lives.
type box struct {
	mu       sync.Mutex          // guards the fields below
	procs    map[int]*proc       // by pid
	next     int                 // next pid for a process without a known number
	watchers map[string]*watcher // polled by their clients
	contexts map[string]*codeContext
	current  string // the context with the interpreter's present variables
	log      []logLine
	last     sample
	mixed    bool // there was a context besides the default one
	gone     bool // the sandbox was removed

	under evaluation // the running evaluation

	recalling sync.Once     // reads the state kept by an earlier daemon once
	keeping   sync.Mutex    // held while the state is written; before mu
	turn      chan struct{} // has room for one: the evaluating request
}

// evaluation is a sandbox's evaluation for one request.
type evaluation struct {
	context string // the id of the context
	stop    context.CancelCauseFunc
}

// New makes a front.
func New(cfg Config) *Front {
	f := newFront(cfg, &common{all: cfg.Engine, boxes: map[cell.ID]*box{}, builds: map[string]*build{}, fronts: map[string]*Front{}, signers: map[string]cell.ID{}})
	go f.recallAll() // soon: a process without a follower is ended
	if cfg.Engine != nil {
		f.unlend(context.Background())
		go f.sweepBuilds(cfg.Engine.Labelled(labelBuild)) // before a new one begins
	}
	return f
}

func newFront(cfg Config, all *common) *Front {
	f := &Front{cfg: cfg, common: all}
	f.control, f.envd, f.interp = f.controlRoutes(), f.envdRoutes(), f.interpreterRoutes()
	return f
}

// as returns the front as the caller sees it. A sandbox's own token, without another one, gives
// access to that sandbox.
func (f *Front) as(r *http.Request) *Front {
	p, _ := access.From(r.Context())
	if p.Token == "" {
		return f
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.fronts[p.Token]
	if own == nil {
		if len(f.fronts) >= access.MaxTokens { // of removed tokens
			clear(f.fronts)
		}
		cfg := f.cfg
		cfg.Engine = f.cfg.Engine.As(p)
		own = newFront(cfg, f.common)
		f.fronts[p.Token] = own
	}
	return own
}

// box returns the state of a sandbox.
func (f *Front) box(id cell.ID) *box {
	f.mu.Lock()
	b := f.boxes[id]
	if b == nil {
		b = &box{procs: map[int]*proc{}, next: 1 << 20, watchers: map[string]*watcher{}, contexts: map[string]*codeContext{}, turn: make(chan struct{}, 1)}
		f.boxes[id] = b
	}
	f.mu.Unlock()
	b.recalling.Do(func() { f.recall(id, b) })
	return b
}

// forget drops the state of a removed sandbox.
func (f *Front) forget(id cell.ID) {
	f.mu.Lock()
	b := f.boxes[id]
	delete(f.boxes, id)
	f.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	b.gone = true
	for _, w := range b.watchers {
		w.stop()
	}
	b.mu.Unlock()
	f.keep(id, b)
}

// address returns the sandbox and the port of a request.
func address(r *http.Request) (id cell.ID, port int, ok bool) {
	if h := r.Header.Get("E2b-Sandbox-Id"); h != "" {
		port = portEnvd
		if p := r.Header.Get("E2b-Sandbox-Port"); p != "" {
			port, _ = strconv.Atoi(p)
		}
		return cell.ID(h), port, true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	first, _, dotted := strings.Cut(host, ".")
	p, name, dashed := strings.Cut(first, "-")
	port, err := strconv.Atoi(p)
	if !dotted || !dashed || err != nil || !isSandboxID(name) {
		return "", 0, false
	}
	return cell.ID(name), port, true
}

// isSandboxID reports whether s has the form of a cell's id.
func isSandboxID(s string) bool { return len(s) == 18 && strings.HasPrefix(s, "c-") && cell.IsID(s) }

// Match reports whether a request is for this front.
func (f *Front) Match(r *http.Request) bool {
	if _, _, ok := address(r); ok || signed(r) {
		return true
	}
	_, pattern := f.control.Handler(r)
	return pattern != "" && pattern != "/"
}

// Needs is the scope that a request needs: "read", "run", or "" where the sandbox's own token
// decides.
func (f *Front) Needs(r *http.Request) string {
	if _, _, ok := address(r); ok || signed(r) || ticketed(r) {
		return ""
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return "read"
	case http.MethodDelete: // scope run may end sandboxes, and no other cells
		if id, ok := strings.CutPrefix(r.URL.Path, "/sandboxes/"); ok {
			if c, err := f.as(r).find(cell.ID(id)); err == nil && !ours(&c) {
				return "admin"
			}
		}
	}
	return "run"
}

// ours reports whether a cell was made through this front.
func ours(c *api.Cell) bool { return c.Labels[labelTemplate] != "" || c.Labels[labelBuild] != "" }

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f = f.as(r)
	id, port, ok := address(r)
	if !ok && signed(r) {
		if id, ok = f.signer(r); !ok {
			refuse(w, http.StatusUnauthorized, "the signature is not one of a sandbox's, or no longer")
			return
		}
		port = portEnvd
	}
	if !ok {
		f.control.ServeHTTP(w, r)
		return
	}
	f.sandbox(w, r, id, port)
}

// sandbox answers requests to a port of a sandbox.
func (f *Front) sandbox(w http.ResponseWriter, r *http.Request, id cell.ID, port int) {
	c, err := f.find(id)
	if err != nil {
		f.gone(w, id, err)
		return
	}
	switch {
	case port == portEnvd && r.URL.Path == "/health":
	case port == portEnvd && !f.mayEnvd(r, id), port == portInterpreter && !f.mayInterpret(r, id):
		refuse(w, http.StatusUnauthorized, "send the sandbox's own token: X-Access-Token")
		return
	case port != portEnvd && port != portInterpreter && !f.mayTraffic(r, &c):
		refuse(w, http.StatusForbidden, "send the sandbox's token for its ports: E2B-Traffic-Access-Token")
		return
	}
	if paused(&c) {
		if c.Labels[labelAuto] == "" {
			f.gone(w, id, cell.Errorf(cell.Conflict, "e2b", "", "the sandbox is paused"))
			return
		}
		if _, err := f.goOn(r.Context(), &c, nil); err != nil {
			f.gone(w, id, err)
			return
		}
	}
	r = r.WithContext(withCell(r.Context(), &c))
	switch port {
	case portEnvd:
		f.envd.ServeHTTP(w, r)
	case portInterpreter:
		f.interp.ServeHTTP(w, r)
	default:
		f.proxy(w, r, id, port)
	}
}
