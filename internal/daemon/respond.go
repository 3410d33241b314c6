package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// done is returned by a handler that has written its answer itself.
type done struct{}

// told is done for work that has succeeded, whether its caller has read the answer or not.
type told struct{}

// answer runs a route's handler and writes its result.
func (d *Daemon) answer(w http.ResponseWriter, r *http.Request, route Route) {
	w, end, free := d.compress(w, r, route)
	defer free()
	if route.Takes == "" {
		r.Body = http.MaxBytesReader(w, r.Body, d.maxBody())
	}
	if key := r.Header.Get("Idempotency-Key"); r.Header["Idempotency-Key"] != nil && route.Method == http.MethodPost && d.cfg.Keys != nil && allowed(r, route.Access) == nil {
		if v := requestRecordOf(r); v != nil {
			v.route, v.object = &route, objectOf(r, route)
		}
		d.once(w, r, route, key)
	} else {
		d.reply(w, r, route)
	}
	end()
}

// reply is answer without idempotency keys. It reports whether the answer is a success.
func (d *Daemon) reply(w http.ResponseWriter, r *http.Request, route Route) (ok bool) {
	v := requestRecordOf(r)
	if v != nil {
		v.route, v.object = &route, objectOf(r, route)
	}
	var out any
	err := allowed(r, route.Access)
	if err == nil {
		err = within(r, route)
	}
	if err == nil {
		err = mayAsk(r, route)
	}
	if err == nil {
		err = refuseEncoded(w, r, route)
	}
	if err == nil {
		err = rejectUnusedPreconditions(r, route)
	}
	if err == nil {
		err = d.available(route)
	}
	if err == nil {
		err = checkQuery(route, r.URL.RawQuery)
	}
	if err == nil {
		out, err = route.handle(d.as(r), w, r)
	}
	if err != nil {
		kind := cell.KindOf(err)
		if cause := context.Cause(r.Context()); cell.KindOf(cause) == cell.Unauthenticated {
			err, kind = cause, cell.Unauthenticated // the token has expired, and ends everything begun with it
		}
		if hungUp(r) {
			kind = cell.Interrupted
		}
		if v != nil {
			v.kind = string(kind)
		}
		if kind == cell.Internal {
			d.cfg.Log.Error("request failed", "request", w.Header().Get("X-Request-Id"), "method", r.Method, "path", route.Path, "error", err)
		}
		err = d.as(r).cfg.Engine.Named(route.explain(r, err))
		if s, ok := out.(*liner); ok { // the answer has begun
			s.put(&api.StreamLine{Error: errorOf(err)})
			return false
		}
		writeError(w, err)
		return false
	}
	if a, ok := out.(accepted); ok {
		a.send(w)
		return true
	}
	switch out.(type) {
	case told:
		return true
	case done:
		return r.Context().Err() == nil
	}
	if out, err = cutPage(w, r, route, out); err != nil {
		writeError(w, d.as(r).cfg.Engine.Named(route.explain(r, err)))
		return false
	}
	writeJSON(w, http.StatusOK, out)
	return true
}

// hungUp reports whether a request failed because its client disconnected, which is no failure
// of the daemon.
func hungUp(r *http.Request) bool {
	return context.Cause(r.Context()) == context.Canceled
}

// brokenOff ends an answer that has begun and cannot be finished. Breaking the connection is the
// only way to report that.
func (d *Daemon) brokenOff(r *http.Request, what string, err error) {
	// Writes to a disconnected client fail before the context of the request ends.
	v := requestRecordOf(r)
	gone := v != nil && v.w != nil && v.w.gone.Load()
	if !hungUp(r) && !gone && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		id := ""
		if v != nil {
			id = v.id
		}
		d.cfg.Log.Error(what, "request", id, "error", err)
	}
	panic(http.ErrAbortHandler)
}

// objectOf returns the object in a request's path: "web", "r-1/stdout".
func objectOf(r *http.Request, route Route) string {
	path, _ := route.Split()
	var names []string
	for _, w := range PathWords(path) {
		names = append(names, r.PathValue(w))
	}
	return strings.Join(names, "/")
}

// explain prefixes an error with the failed action.
func (route Route) explain(r *http.Request, err error) error {
	if strings.HasPrefix(err.Error(), "cannot ") {
		return err
	}
	what := pathWord().ReplaceAllStringFunc(route.cannot, func(w string) string {
		noun, name, _ := strings.Cut(w, "{")
		name = strings.TrimSuffix(name, "}")
		v := r.PathValue(name)
		if v == "-" {
			return "the latest " + name
		}
		return noun + strings.Trim(strconv.Quote(cell.Clip(v)), `"`)
	})
	return fmt.Errorf("cannot %s: %w", what, err)
}

// pathWord matches a path parameter in Route.cannot, with the noun before it.
var pathWord = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(cell |run |receipt |credential |template |token |operation |port |exec )?\{[a-z]+\}`)
})

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"kind":"internal","message":"cannot encode the answer"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

func writeError(w http.ResponseWriter, err error) {
	e := errorOf(err)
	if cell.KindOf(err) == cell.Limited {
		w.Header().Set("Retry-After", strconv.Itoa(cell.RetryAfter(err)))
	}
	writeJSON(w, api.ReasonOf(e.Kind).Status, e)
}

// errorOf returns err as an error of the API.
func errorOf(err error) *api.Error {
	return &api.Error{Kind: api.Kind(cell.KindOf(err)), Subject: string(cell.SubjectOf(err)), Message: err.Error(), Hint: cell.HintOf(err)}
}

func notFound(r *http.Request) error {
	return cell.Errorf(cell.NotFound, "daemon", "see /docs or GET /v1/openapi.json for the paths of this API", "cannot find %s in this API", strconv.Quote(cell.Clip(r.URL.Path)))
}

// methods are the methods that routes have.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}

// noRoute answers requests that no route matches: the path does not exist, or takes other
// methods.
func noRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	var allow []string
	for _, m := range methods {
		other := *r
		other.Method = m
		if _, pattern := mux.Handler(&other); pattern != "/" && pattern != "" {
			allow = append(allow, m)
		}
	}
	err := notFound(r)
	if len(allow) > 0 {
		w.Header().Set("Allow", strings.Join(allow, ", "))
		err = cell.Errorf(cell.WrongMethod, "daemon", "use "+strings.Join(allow, " or "), "cannot %s %s", cell.Clip(r.Method), strconv.Quote(cell.Clip(r.URL.Path)))
	}
	if v := requestRecordOf(r); v != nil {
		v.kind = string(cell.KindOf(err))
	}
	writeError(w, err)
}

// decode reads a JSON body strictly: unknown fields are errors, and so are fields that the
// caller may not use. An empty body is the zero value.
func decode[T any](_ http.ResponseWriter, r *http.Request) (v T, err error) {
	body, err := bodyOf(r)
	if err != nil {
		return v, err
	}
	return decodeBody[T](r, body)
}

// decodeCounted is decode for a request that says how many cells are made: left out, it is one, and zero is
// refused.
func decodeCounted[T any](_ http.ResponseWriter, r *http.Request) (v T, err error) {
	body, err := bodyOf(r)
	if err == nil {
		v, err = decodeBody[T](r, body)
	}
	if err != nil || len(body) == 0 {
		return v, err
	}
	var said struct{ Count *int }
	if json.Unmarshal(body, &said) == nil && said.Count != nil && *said.Count < 1 { // what is no JSON was refused
		return v, cell.Errorf(cell.Invalid, "daemon.decode", "leave it out for one cell", "cannot make %d cells: count has to be at least 1", *said.Count)
	}
	return v, nil
}

// bodyOf reads a JSON body.
func bodyOf(r *http.Request) ([]byte, error) {
	if err := typed(r, "application/json"); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body) // which answer has bounded
	if err != nil {
		return nil, unread(err)
	}
	if !bound.IsText(body) {
		return nil, notText("the request")
	}
	return body, nil
}

func decodeBody[T any](r *http.Request, body []byte) (v T, err error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err = dec.Decode(&v)
	if errors.Is(err, io.EOF) {
		return v, nil
	}
	if err != nil {
		return v, unreadJSON(err, reflect.TypeFor[T]())
	}
	if dec.More() {
		return v, cell.Errorf(cell.Invalid, "daemon.decode", "", "cannot read the request: there is more than one JSON value in it")
	}
	if err := bound.Unique(body, "the request", reflect.TypeFor[T]()); err != nil {
		return v, err
	}
	return v, mayName(r.Context(), v)
}

// unread explains why a body could not be read.
func unread(err error) error {
	if m, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return cell.Errorf(cell.TooLarge, "daemon", "send a smaller request", "cannot read the request: it is longer than %d bytes", m.Limit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return cell.Errorf(cell.Timeout, "daemon", "", "cannot read the request: it comes too slowly")
	}
	return cell.Errorf(cell.Invalid, "daemon", "", "cannot read the request: %w", err)
}

// typed refuses a body of another media type. A body without a type is accepted where JSON is
// expected.
func typed(r *http.Request, want string) error {
	said := r.Header.Get("Content-Type")
	if said == "" && (want == "application/json" || r.ContentLength == 0) {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(said); err == nil && kind == want {
		return nil
	}
	return cell.Errorf(cell.WrongType, "daemon", "send Content-Type: "+want, "cannot read a body of type %s", strconv.Quote(cell.Clip(said)))
}

// selector reads a path segment; "-" stands for an empty one.
func selector(r *http.Request, name string) string {
	if v := r.PathValue(name); v != "-" {
		return v
	}
	return ""
}

// cellOf resolves the cell in the path. Requests that change something must name it: an empty
// name is then a mistake, and not the latest cell.
func (d *Daemon) cellOf(r *http.Request) (cell.ID, error) {
	if selector(r, "cell") == "" && r.Method != http.MethodGet && r.Method != http.MethodHead {
		return "", unnamed("cell")
	}
	return d.cfg.Engine.SelectCell(selector(r, "cell"), r.URL.Query().Get("dir"))
}

func unnamed(what string) error {
	return cell.Errorf(cell.Invalid, "daemon", "give its name or id", "no %s is named", what)
}

func (d *Daemon) runOf(r *http.Request) (cell.RunID, error) {
	if selector(r, "run") == "" && r.Method != http.MethodGet && r.Method != http.MethodHead {
		return "", unnamed("run")
	}
	return d.cfg.Engine.SelectRun(selector(r, "run"), r.URL.Query().Get("dir"))
}

// targetOf resolves the run or cell in the path that a verdict is about. For "-" instead of a
// cell it takes the one that choose returns.
func (d *Daemon) targetOf(r *http.Request, choose func(sel, dir string) (cell.ID, error)) (t result.Target, err error) {
	if r.PathValue("run") != "" {
		t.Run, err = d.runOf(r)
	} else {
		t.Cell, err = choose(selector(r, "cell"), r.URL.Query().Get("dir"))
	}
	return t, err
}

func queryInt(r *http.Request, name string) (int, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, cell.Errorf(cell.Invalid, "daemon", "", "%s must be a number, not %q", name, s)
	}
	return n, nil
}

func queryBool(r *http.Request, name string) bool {
	v := r.URL.Query().Get(name)
	return v == "1" || v == "true"
}

// sendFile streams a body that is not JSON.
func sendFile(w http.ResponseWriter, kind, name string, body io.Reader) (any, error) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	io.Copy(w, body)
	return done{}, nil
}
