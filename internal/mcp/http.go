package mcp

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/bound"
)

// idleSession is how long an unused session over HTTP is kept.
const idleSession = time.Hour

// stateless is the first revision of the protocol without sessions; its requests name it in a
// header.
const stateless = "2026-07-28"

// Handler answers over streamable HTTP. The generation with a handshake has sessions, so that a
// request can cancel the call of another; the other has none. access.From returns the caller of
// a request. Each caller has a server of its own. The server's client, which as makes from a
// request, sends the caller's own token: tools have exactly the caller's rights, and sessions
// and outputs are private to the caller.
func Handler(cfg Config, as func(*http.Request) *client.Client) http.Handler {
	h := &callers{cfg: cfg, as: as, of: map[access.Principal]*generations{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := access.From(r.Context())
		switch {
		case !ok:
			http.Error(w, "the caller is unknown", http.StatusUnauthorized)
		case !readable(w, r):
		case r.Header.Get("Mcp-Protocol-Version") >= stateless:
			h.server(p, r).none.ServeHTTP(w, r)
		default:
			h.server(p, r).serve(w, r)
		}
	})
}

// maxBody bounds a request, in bytes.
const maxBody = 16 << 20

// readable reads a request's body. It answers requests that are not UTF-8, since names in them
// would be changed.
func readable(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost {
		return true
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		status := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "cannot read the request: "+err.Error(), status)
		return false
	}
	if !bound.IsText(b) {
		http.Error(w, notText, http.StatusBadRequest)
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return true
}

// serve answers a request of the generation with sessions. A new daemon does not know the
// sessions of the former one, and most clients never start a new one: a request in an unknown
// session is answered without one. Only cancellation by another request, and outputs kept for
// the tool read, are lost.
func (g *generations) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Mcp-Session-Id") == "" {
		g.sessions.ServeHTTP(w, r)
		return
	}
	body := &unread{ReadCloser: r.Body}
	r.Body = body
	known := &known{ResponseWriter: w, body: body}
	if g.sessions.ServeHTTP(known, r); known.not {
		for _, name := range []string{"Content-Type", "X-Content-Type-Options"} { // of the error
			w.Header().Del(name)
		}
		r.Body = body.ReadCloser
		if g.log != nil {
			g.log.Info("answered without its session, which this daemon does not know", "method", r.Method)
		}
		g.none.ServeHTTP(w, r)
	}
}

// unread is a body that notes whether anything was read.
type unread struct {
	io.ReadCloser
	read bool
}

func (u *unread) Read(p []byte) (int, error) {
	u.read = true
	return u.ReadCloser.Read(p)
}

// known passes an answer on, except the error for an unknown session.
type known struct {
	http.ResponseWriter
	body       *unread
	not, begun bool
}

func (k *known) WriteHeader(status int) {
	if status == http.StatusNotFound && !k.begun && !k.body.read { // the session is looked up before the body is read
		k.not = true
		return
	}
	k.begun = true
	k.ResponseWriter.WriteHeader(status)
}

func (k *known) Write(b []byte) (int, error) {
	if k.not {
		return len(b), nil
	}
	k.begun = true
	return k.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController flush.
func (k *known) Unwrap() http.ResponseWriter { return k.ResponseWriter }

// Flush is http.Flusher's.
func (k *known) Flush() {
	if !k.not {
		http.NewResponseController(k.ResponseWriter).Flush()
	}
}

// callers are the known callers.
type callers struct {
	cfg Config
	as  func(*http.Request) *client.Client

	mu sync.Mutex // guards of
	of map[access.Principal]*generations
}

// generations of the protocol, for one caller.
type generations struct {
	sessions, none http.Handler
	log            *slog.Logger // nil: nowhere
}

// maxCallers bounds the known callers. A dropped one starts a new session.
const maxCallers = access.MaxTokens

func (h *callers) server(p access.Principal, r *http.Request) *generations {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g := h.of[p]; g != nil {
		return g
	}
	if len(h.of) >= maxCallers {
		clear(h.of)
	}
	cfg := h.cfg
	cfg.Client = h.as(r)
	of := newServer(cfg, p.Level).mcp
	get := func(*http.Request) *sdk.Server { return of }
	o := sdk.StreamableHTTPOptions{Logger: cfg.Log, SessionTimeout: idleSession, MaxRequestBodyBytes: maxBody}
	without := o
	without.Stateless, without.SessionTimeout, without.PropagateRequestCancellation = true, 0, true
	g := &generations{sdk.NewStreamableHTTPHandler(get, &o), sdk.NewStreamableHTTPHandler(get, &without), cfg.Log}
	h.of[p] = g
	return g
}
