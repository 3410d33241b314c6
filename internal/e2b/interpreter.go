package e2b

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/live"
)

// A cell has one interpreter, of one language. A context of E2B is a set of its variables, which
// are switched before an evaluation. Evaluations of all contexts are sequential.

// codeContext is a context for evaluations.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

// defaultContext is the id of the default context.
const defaultContext = "default"

// languages maps E2B's names to interpreters.
var languages = map[string]string{"python": cell.WarmPython, "javascript": cell.WarmNode, "js": cell.WarmNode, "node": cell.WarmNode, "java": cell.WarmJava}

// noLanguage is the status for an unavailable interpreter. E2B's clients drop the text of most
// errors, but show it for this one.
const noLanguage = http.StatusNotFound

func (f *Front) interpreterRoutes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	m.HandleFunc("POST /execute", f.execute)
	m.HandleFunc("GET /contexts", f.listContexts)
	m.HandleFunc("POST /contexts", f.createContext)
	m.HandleFunc("DELETE /contexts/{id}", f.removeContext)
	m.HandleFunc("POST /contexts/{id}/restart", f.restartContext)
	return m
}

// context finds a context; "" is the default one.
func (b *box) context(id string) (*codeContext, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.contexts[id]; c != nil {
		return c, nil
	}
	if id == "" || id == defaultContext {
		c := &codeContext{ID: defaultContext, Language: cell.WarmPython, Cwd: "."}
		b.contexts[defaultContext] = c
		return c, nil
	}
	return nil, cell.Errorf(cell.NotFound, "e2b.context", "", "context %s not found", cell.Clip(id))
}

func (f *Front) listContexts(w http.ResponseWriter, r *http.Request) {
	b := f.box(idIn(r.Context()))
	b.context("")
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []codeContext{}
	for _, c := range b.contexts {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(x, y codeContext) int { return strings.Compare(x.ID, y.ID) })
	answer(w, http.StatusOK, out)
}

type contextRequest struct {
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func (f *Front) createContext(w http.ResponseWriter, r *http.Request) {
	var req contextRequest
	if !decode(w, r, &req) {
		return
	}
	kind, ok := languages[orPython(req.Language)]
	if !ok || kind != cell.WarmPython {
		refuse(w, noLanguage, "cannot make a context of "+cell.Clip(req.Language)+": contexts beside the default one are of Python")
		return
	}
	var id [8]byte
	rand.Read(id[:])
	c := &codeContext{ID: hex.EncodeToString(id[:]), Language: kind, Cwd: inHome(req.Cwd)}
	if req.Cwd == "" {
		c.Cwd = "."
	}
	b := f.box(idIn(r.Context()))
	b.context("")
	b.mu.Lock()
	b.contexts[c.ID], b.mixed = c, true
	b.mu.Unlock()
	f.keep(idIn(r.Context()), b)
	answer(w, http.StatusCreated, c)
}

func orPython(language string) string {
	if language == "" {
		return cell.WarmPython
	}
	return strings.ToLower(language)
}

// removeContext removes a context with its variables.
func (f *Front) removeContext(w http.ResponseWriter, r *http.Request) { f.endContext(w, r, true) }

func (f *Front) restartContext(w http.ResponseWriter, r *http.Request) { f.endContext(w, r, false) }

// errRestarted ends an evaluation when its context is restarted or removed.
var errRestarted = errors.New("its context was restarted")

func (f *Front) endContext(w http.ResponseWriter, r *http.Request, forget bool) {
	id := idIn(r.Context())
	b := f.box(id)
	c, err := b.context(r.PathValue("id"))
	if err != nil {
		fail(w, err)
		return
	}
	b.interrupt(c.ID)
	if err := b.wait(r.Context(), nil); err != nil {
		fail(w, err)
		return
	}
	defer b.done()
	if err := f.drop(r.Context(), id, b, c); err != nil {
		fail(w, err)
		return
	}
	if forget {
		b.mu.Lock()
		delete(b.contexts, c.ID)
		b.mu.Unlock()
		f.keep(id, b)
	}
	w.WriteHeader(http.StatusNoContent)
}

// drop drops the variables of a context. If there is no other context, or the interpreter does
// not answer, it ends the interpreter with the variables of all: the next evaluation starts a
// new one.
func (f *Front) drop(ctx context.Context, id cell.ID, b *box, c *codeContext) error {
	now, err := f.cfg.Engine.Record(id)
	if err != nil || now.Interpreter == nil || now.Interpreter.Ended != "" {
		return err
	}
	b.mu.Lock()
	mixed := b.mixed
	b.mu.Unlock()
	if mixed {
		res, err := f.cfg.Engine.Eval(ctx, id, api.EvalRequest{Code: dropContext(c.ID), Timeout: dropLimit}, nil)
		var done cell.Evaluated
		if err == nil {
			err = json.Unmarshal(res.Result, &done)
		}
		if err == nil && done.OK {
			return nil
		}
	}
	b.mu.Lock()
	b.current = ""
	b.mu.Unlock()
	_, err = f.cfg.Engine.Eval(ctx, id, api.EvalRequest{Code: "0", Fresh: true}, nil)
	return err
}

// dropLimit bounds the time for dropping the variables of a context.
const dropLimit = "10s"

// wait waits for the request's turn, until the context is done. After queueLimit it calls late
// once, if not nil.
func (b *box) wait(ctx context.Context, late func()) error {
	select {
	case b.turn <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(queueLimit)
	defer timer.Stop()
	for {
		select {
		case b.turn <- struct{}{}:
			return nil
		case <-timer.C:
			if late != nil {
				late()
			}
		case <-ctx.Done():
			return cell.Errorf(cell.Interrupted, "e2b.wait", "", "cannot wait for the sandbox's other evaluations: %w", context.Cause(ctx))
		}
	}
}

// done ends a request's turn.
func (b *box) done() { <-b.turn }

// interrupt ends what is evaluated in a context.
func (b *box) interrupt(context string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.under.stop != nil && b.under.context == context {
		b.under.stop(errRestarted)
	}
}

// queueLimit is how long a request waits for its turn before its headers are sent: half of the
// time for which E2B's clients wait for headers. Clients count the time of the code from the
// headers on, so they are not sent earlier.
const queueLimit = 30 * time.Second

// inPlace reports whether the interpreter has the variables of a context now. Without any other
// context, it has those of the default one.
func (b *box) inPlace(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current == id || !b.mixed && id == defaultContext
}

// contextsOf copies the contexts of a fork's source to the fork's box.
func (f *Front) contextsOf(id cell.ID, of *box) {
	of.mu.Lock()
	kept, mixed := maps.Clone(of.contexts), of.mixed
	of.mu.Unlock()
	if !mixed {
		return
	}
	b := f.box(id)
	b.mu.Lock()
	b.contexts, b.mixed = kept, true
	b.mu.Unlock()
	f.keep(id, b)
}

// quote quotes a Python string.
func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// switchContext replaces the present variables with those of a context. The interpreter, also a
// forked one, knows which context the present ones belong to.
func switchContext(to, cwd string) string {
	return fmt.Sprintf(`def __pando_switch(now, cwd):
    import builtins, os
    kept = builtins.__dict__.setdefault("__pando_contexts__", {})
    was = kept.get("/current", "default")
    kept["/current"] = now
    if was == now:
        return
    g = globals()
    own = {k for k in g if k.startswith("__")}
    kept[was] = {k: v for k, v in g.items() if k not in own}
    kept[was + "/cwd"] = os.getcwd()
    for k in [k for k in g if k not in own]:
        del g[k]
    if not callable(getattr(builtins, "_", None)):  # as gettext's is
        builtins.__dict__.pop("_", None)
    g.update(kept.get(now, {}))
    os.chdir(kept.get(now + "/cwd", cwd))
__pando_switch(%s, %s)
globals().pop("__pando_switch", None)`, quote(to), quote(cwd))
}

// dropContext drops the variables of a context.
func dropContext(id string) string {
	return fmt.Sprintf(`def __pando_drop(name):
    import builtins
    kept = builtins.__dict__.setdefault("__pando_contexts__", {})
    kept.pop(name, None)
    if name == kept.get("/current", "default"):
        g = globals()
        for k in [k for k in g if not k.startswith("__")]:
            del g[k]
        if not callable(getattr(builtins, "_", None)):
            builtins.__dict__.pop("_", None)
__pando_drop(%s)
del __pando_drop`, quote(id))
}

// withEnv sets environment variables for one evaluation, and restores them after it.
func withEnv(vars map[string]string) (before, after string) {
	b, _ := json.Marshal(vars)
	return fmt.Sprintf("def __pando_env(v):\n    import builtins, os\n    builtins.__pando_env__ = {k: os.environ.get(k) for k in v}\n    os.environ.update(v)\n__pando_env(%s)\ndel __pando_env", b),
		"def __pando_env():\n    import builtins, os\n    for k, v in builtins.__pando_env__.items():\n        if v is None:\n            os.environ.pop(k, None)\n        else:\n            os.environ[k] = v\n__pando_env()\ndel __pando_env"
}

type executeRequest struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id"`
	Language string            `json:"language"`
	EnvVars  map[string]string `json:"env_vars"`
}

// evalLimit is the time limit of an evaluation when the client has a limit of its own, after
// which it disconnects.
const evalLimit = "24h"

// execute evaluates code, and sends its outcome line by line.
func (f *Front) execute(w http.ResponseWriter, r *http.Request) {
	var req executeRequest
	if !decode(w, r, &req) {
		return
	}
	kind, ok := languages[orPython(req.Language)]
	if !ok {
		refuse(w, noLanguage, "cannot evaluate "+cell.Clip(req.Language)+": there are python, javascript and java")
		return
	}
	id := idIn(r.Context())
	b := f.box(id)
	c, err := b.context(req.Context)
	if err != nil {
		fail(w, err)
		return
	}
	if len(req.EnvVars) > 0 && kind != cell.WarmPython {
		refuse(w, noLanguage, "cannot set variables for one evaluation of "+req.Language+": give them when the sandbox is made")
		return
	}
	switch err := f.cfg.Engine.MayEval(id, kind); {
	case errors.Is(err, live.ErrOtherKind):
		refuse(w, noLanguage, err.Error()+": another sandbox can have one of "+req.Language)
		return
	case err != nil:
		fail(w, err)
		return
	}
	out := &lines{w: w, flush: http.NewResponseController(w)}
	if err := b.wait(r.Context(), out.begin); err != nil {
		return // the client has disconnected
	}
	defer b.done()
	ctx, stop := context.WithCancelCause(r.Context())
	defer stop(nil)
	b.evaluates(evaluation{c.ID, stop})
	defer b.evaluates(evaluation{})
	out.begin()
	if err := f.evaluate(ctx, id, b, c, kind, &req, out); err != nil {
		name, value := "Error", sentence(err)
		if context.Cause(ctx) == errRestarted {
			name, value = "Interrupted", errRestarted.Error()
		}
		out.send(map[string]any{"type": "error", "name": name, "value": value, "traceback": ""})
		out.send(map[string]any{"type": "end_of_execution"})
	}
}

func (b *box) evaluates(v evaluation) {
	b.mu.Lock()
	b.under = v
	b.mu.Unlock()
}

// evaluate evaluates in a living interpreter, or in a new one with a note: a client that can't
// request a new one would fail for ever.
func (f *Front) evaluate(ctx context.Context, id cell.ID, b *box, c *codeContext, kind string, req *executeRequest, out *lines) error {
	err := f.attempt(ctx, id, b, c, kind, req, out, false)
	if !errors.Is(err, live.ErrInterpreterGone) {
		return err
	}
	b.mu.Lock()
	b.current = ""
	b.mu.Unlock()
	out.send(map[string]any{"type": "stderr", "text": "pando: " + err.Error() + "; this is a new interpreter\n", "timestamp": time.Now().UTC()})
	return f.attempt(ctx, id, b, c, kind, req, out, true)
}

// attempt evaluates the code of a request, with fresh in a new interpreter.
func (f *Front) attempt(ctx context.Context, id cell.ID, b *box, c *codeContext, kind string, req *executeRequest, out *lines, fresh bool) error {
	ask := func(ctx context.Context, ev api.EvalRequest, tell func(api.StreamLine)) (api.EvalResult, error) {
		ev.Kind, ev.Fresh = kind, fresh
		fresh = false
		return f.cfg.Engine.Eval(ctx, id, ev, tell)
	}
	quiet := func(ctx context.Context, code string) error {
		res, err := ask(ctx, api.EvalRequest{Code: code}, nil)
		if err != nil {
			return err
		}
		var done cell.Evaluated
		if err := json.Unmarshal(res.Result, &done); err != nil || done.OK {
			return err
		}
		if done.Error != nil {
			return cell.Errorf(cell.Conflict, "e2b.execute", "restart the context", "cannot prepare the context: %s: %s", done.Error.Type, done.Error.Message)
		}
		return cell.Errorf(cell.Conflict, "e2b.execute", "restart the context", "cannot prepare the context: %s", done.Cause)
	}
	if kind == cell.WarmPython && !b.inPlace(c.ID) {
		if err := quiet(ctx, switchContext(c.ID, c.Cwd)); err != nil {
			return err
		}
		b.mu.Lock()
		b.current = c.ID
		b.mu.Unlock()
	}
	if len(req.EnvVars) > 0 {
		before, after := withEnv(req.EnvVars)
		if err := quiet(ctx, before); err != nil {
			return err
		}
		defer quiet(context.WithoutCancel(ctx), after)
	}
	if strings.TrimSpace(req.Code) == "" {
		out.send(map[string]any{"type": "end_of_execution"})
		return nil
	}
	var stdout, stderr runes
	var told [2]int64
	res, err := ask(ctx, api.EvalRequest{Code: req.Code, Timeout: evalLimit}, func(l api.StreamLine) {
		stamp := time.Now().UTC()
		told[0] += int64(len(l.Stdout))
		told[1] += int64(len(l.Stderr))
		if s := stdout.add(l.Stdout); s != "" {
			out.send(map[string]any{"type": "stdout", "text": s, "timestamp": stamp})
		}
		if s := stderr.add(l.Stderr); s != "" {
			out.send(map[string]any{"type": "stderr", "text": s, "timestamp": stamp})
		}
	})
	if err != nil {
		return err
	}
	var done cell.Evaluated
	if err := json.Unmarshal(res.Result, &done); err != nil {
		return err
	}
	for _, note := range leftOut(&done, told) {
		out.send(map[string]any{"type": "stderr", "text": "pando: " + note + "\n", "timestamp": time.Now().UTC()})
	}
	for _, d := range done.Display {
		out.send(resultLine(d, nil))
	}
	if done.Value != nil {
		out.send(resultLine(done.Value.MIME, done.Value))
	}
	switch {
	case done.Error != nil:
		out.send(map[string]any{"type": "error", "name": done.Error.Type, "value": done.Error.Message, "traceback": done.Error.Traceback})
	case !done.OK:
		out.send(map[string]any{"type": "error", "name": "Interrupted", "value": done.Cause, "traceback": ""})
	}
	out.send(map[string]any{"type": "number_of_executions", "execution_count": done.N})
	out.send(map[string]any{"type": "end_of_execution"})
	return nil
}

// leftOut describes the parts of an evaluation that the client does not get; told are the bytes
// of its streams that it got.
func leftOut(done *cell.Evaluated, told [2]int64) (notes []string) {
	for i, of := range [2]int64{done.Stdout, done.Stderr} {
		if n := of - told[i]; n > 0 {
			notes = append(notes, fmt.Sprintf("%d bytes of %s are left out", n, [2]string{"stdout", "stderr"}[i]))
		}
	}
	if v := done.Value; v != nil && v.JSONCut {
		notes = append(notes, "the value's json is left out: it is too long or too deep")
	}
	return notes
}

// forms are E2B's names of media types.
var forms = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg",
	"application/pdf": "pdf", "text/latex": "latex", "application/json": "json", "application/javascript": "javascript",
	"e2b/data": "data", "e2b/chart": "chart",
}

// documents are the media types with JSON text.
var documents = []string{"application/json", "e2b/data", "e2b/chart"}

// resultLine is one result in all its forms; that of the last expression is the main one.
func resultLine(b cell.Bundle, v *cell.Value) map[string]any {
	line := map[string]any{"type": "result", "is_main_result": v != nil}
	extra := map[string]any{}
	for t, s := range b {
		var form any = s
		if slices.Contains(documents, t) && json.Valid([]byte(s)) {
			form = json.RawMessage(s)
		}
		if name := forms[t]; name != "" {
			line[name] = form
		} else {
			extra[t] = form
		}
	}
	if len(extra) > 0 {
		line["extra"] = extra
	}
	if _, ok := line["text"]; !ok && v != nil {
		line["text"] = v.Repr
		if v.Cut > 0 {
			line["text"] = fmt.Sprintf("%s… (%d more characters are left out: have the code write them to a file)", v.Repr, v.Cut)
		}
	}
	if _, ok := line["json"]; !ok && v != nil {
		if j := jsonOf(v.JSON); j != nil {
			line["json"] = j
		}
	}
	return line
}

// lines sends JSON, a line at a time.
type lines struct {
	flush *http.ResponseController

	mu    sync.Mutex // guards the fields below
	w     http.ResponseWriter
	begun bool
}

// begin sends the headers, once.
func (l *lines) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun {
		return
	}
	l.begun = true
	l.w.Header().Set("Content-Type", "application/x-ndjson")
	l.w.WriteHeader(http.StatusOK)
	l.flush.Flush()
}

func (l *lines) send(v any) {
	l.begin()
	l.mu.Lock()
	defer l.mu.Unlock()
	json.NewEncoder(l.w).Encode(v)
	l.flush.Flush()
}

// runes joins characters that arrive in pieces.
type runes struct{ rest []byte }

func (r *runes) add(b []byte) string {
	b = append(r.rest, b...)
	n := len(b)
	for i := 1; i <= min(3, len(b)); i++ { // an incomplete character at the end waits
		if c := b[len(b)-i]; c >= 0xc0 {
			if want := map[bool]int{true: 2}[c < 0xe0] + map[bool]int{true: 3}[c >= 0xe0 && c < 0xf0] + map[bool]int{true: 4}[c >= 0xf0]; want > i {
				n = len(b) - i
			}
			break
		} else if c < 0x80 {
			break
		}
	}
	r.rest = slices.Clone(b[n:])
	return strings.ToValidUTF8(string(b[:n]), "�")
}
