// Package e2b is the front for programs written for E2B: its control plane and
// what runs in its sandboxes (envd), over the engine's cells, on one port. It
// translates, and decides nothing that the engine decides. A sandbox is a cell,
// its id the cell's.
//
//	/v2/sandboxes, /sandboxes/…, /templates/…      control plane, by path
//	E2b-Sandbox-Id, E2b-Sandbox-Port: 49983        envd, by header
//	Host: {port}-{id}.localhost                    the same by host
//	… any other port                               what listens there in the cell
//
// Who may use the control plane is decided before it; what is sent to a sandbox
// carries the sandbox's own token, or a signature made with it. What a request
// asks for and is not done is refused, or named in X-Pando-Ignored.
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

// The ports of a sandbox that are not the cell's own.
const (
	portEnvd        = 49983
	portInterpreter = 49999
)

// envdVersion is the version of envd whose protocol this is.
const envdVersion = "0.6.4"

// headerIgnored names the members of a request that were not heeded.
const headerIgnored = "X-Pando-Ignored"

// Config is what a front is made of.
type Config struct {
	Engine *engine.View
	Log    *slog.Logger
	// Key is what the tokens of sandboxes are made with: 32 bytes that stay the
	// same as long as the sandboxes live.
	Key []byte
	// Path is PATH of whoever runs the daemon: where cells look for programs.
	Path   string
	Upload int64  // bytes that one request may write to files; 0 for any number
	Disk   string // a directory of the file system that cells write to
	// Kept is where the next daemon finds what it must know of sandboxes; nil for
	// nowhere.
	Kept durable.FS
	// BuildAllow is what the steps of templates may reach, as --allow has it: the
	// operator's word, and nothing that a request can change.
	BuildAllow []string
	// BuildImages are the repositories of images that builds may begin with: the
	// operator's word, too. "*" at the end stands for any end.
	BuildImages []string
}

// Front answers for E2B. It is an http.Handler. One that is for a caller whom
// something binds has their view of the engine: see as.
type Front struct {
	cfg     Config
	control *http.ServeMux
	envd    *http.ServeMux
	interp  *http.ServeMux
	*common
}

// common is what all callers have in common.
type common struct {
	all *engine.View // the engine as the user has it

	mu     sync.Mutex // guards what follows
	boxes  map[cell.ID]*box
	builds map[string]*build // of templates, by their id
	fronts map[string]*Front // of callers whom something binds, by their token
	// signers are the sandboxes of signatures that were looked up.
	signers map[string]cell.ID

	lending sync.Mutex // held while credentials of rules come and go
}

// box is what the front knows of a sandbox while this daemon lives.
type box struct {
	mu       sync.Mutex          // guards what follows
	procs    map[int]*proc       // by pid
	next     int                 // pid of the next process whose number is not known
	watchers map[string]*watcher // that are polled
	contexts map[string]*codeContext
	current  string // the context whose variables the interpreter has now
	log      []logLine
	last     sample
	mixed    bool // there was another context than the default one
	gone     bool // so is the sandbox

	under evaluation // what is evaluated now

	recalling sync.Once     // what an earlier daemon noted is read once
	keeping   sync.Mutex    // held while what is to be known is written; before mu
	turn      chan struct{} // has room for one: the request that evaluates
}

// evaluation is what a sandbox evaluates for one request.
type evaluation struct {
	context string // the id of the context
	stop    context.CancelCauseFunc
}

// New makes a front.
func New(cfg Config) *Front {
	f := newFront(cfg, &common{all: cfg.Engine, boxes: map[cell.ID]*box{}, builds: map[string]*build{}, fronts: map[string]*Front{}, signers: map[string]cell.ID{}})
	go f.recallAll() // soon: a process that nobody attaches to again is ended
	if cfg.Engine != nil {
		f.unlend(context.Background())
		go f.sweepBuilds()
	}
	return f
}

func newFront(cfg Config, all *common) *Front {
	f := &Front{cfg: cfg, common: all}
	f.control, f.envd, f.interp = f.controlRoutes(), f.envdRoutes(), f.interpreterRoutes()
	return f
}

// as is the front as who asks has it. Who shows a sandbox's own token, and none of
// theirs, has that sandbox.
func (f *Front) as(r *http.Request) *Front {
	p, _ := access.From(r.Context())
	if p.Token == "" {
		return f
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.fronts[p.Token]
	if own == nil {
		if len(f.fronts) >= access.MaxTokens { // of tokens that were removed
			clear(f.fronts)
		}
		cfg := f.cfg
		cfg.Engine = f.cfg.Engine.As(p)
		own = newFront(cfg, f.common)
		f.fronts[p.Token] = own
	}
	return own
}

// box returns what is known of a sandbox.
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

// forget drops what is known of a sandbox that is gone.
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

// address is the sandbox, and the port of it, that a request is for.
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

// Needs is what a caller must be allowed to do for a request: "read", "run", or
// "" where the sandbox's own token decides.
func (f *Front) Needs(r *http.Request) string {
	if _, _, ok := address(r); ok || signed(r) || ticketed(r) {
		return ""
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return "read"
	case http.MethodDelete: // who may run things may end sandboxes, and no other cells
		if id, ok := strings.CutPrefix(r.URL.Path, "/sandboxes/"); ok {
			if c, err := f.as(r).find(cell.ID(id)); err == nil && !ours(&c) {
				return "admin"
			}
		}
	}
	return "run"
}

// ours reports whether a cell was made here.
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

// sandbox answers what is sent to a port of a sandbox.
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
