package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// statuses are the HTTP statuses of error kinds, and their codes in the Connect protocol.
var statuses = map[cell.Kind]struct {
	status int
	word   string
}{
	cell.Invalid:      {http.StatusBadRequest, "invalid_argument"},
	cell.NotFound:     {http.StatusNotFound, "not_found"},
	cell.Exists:       {http.StatusConflict, "already_exists"},
	cell.Conflict:     {http.StatusConflict, "failed_precondition"},
	cell.Denied:       {http.StatusForbidden, "permission_denied"},
	cell.Unsupported:  {http.StatusBadRequest, "unimplemented"},
	cell.Unavailable:  {http.StatusServiceUnavailable, "unavailable"},
	cell.Timeout:      {http.StatusRequestTimeout, "deadline_exceeded"},
	cell.Interrupted:  {http.StatusServiceUnavailable, "aborted"},
	cell.NotRunnable:  {http.StatusBadRequest, "invalid_argument"},
	cell.NoSuchBinary: {http.StatusBadRequest, "not_found"},
	cell.Limited:      {http.StatusTooManyRequests, "resource_exhausted"},
	cell.TooLarge:     {http.StatusRequestEntityTooLarge, "resource_exhausted"},

	cell.Unauthenticated: {http.StatusUnauthorized, "unauthenticated"},
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	if s, ok := statuses[cell.KindOf(err)]; ok {
		return s.status
	}
	return http.StatusInternalServerError
}

// sentence returns an error with its hint, for people.
func sentence(err error) string {
	if hint := cell.HintOf(err); hint != "" {
		return err.Error() + " (" + hint + ")"
	}
	return err.Error()
}

// problem is an error in E2B's format. Clients read its code.
type problem struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, problem{status, message})
}

// Refuse answers with an error of the engine.
func (f *Front) Refuse(w http.ResponseWriter, _ *http.Request, err error) { fail(w, err) }

func fail(w http.ResponseWriter, err error) {
	if cell.KindOf(err) == cell.Limited {
		w.Header().Set("Retry-After", strconv.Itoa(cell.RetryAfter(err)))
	}
	refuse(w, statusOf(err), sentence(err))
}

// gone answers for a sandbox that can't be reached: clients interpret 502 so.
func (f *Front) gone(w http.ResponseWriter, id cell.ID, err error) {
	answer(w, http.StatusBadGateway, map[string]any{"code": http.StatusBadGateway, "sandboxId": string(id), "message": sentence(err)})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

// maxBody bounds a JSON request, in bytes, and maxValues its expansion.
const (
	maxBody   = 16 << 20
	maxValues = 1 << 17
)

// decode reads a request, and lists unknown members in a header of the answer. It rejects what
// the caller may not name.
func decode[T request](w http.ResponseWriter, r *http.Request, to *T) bool {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, "cannot read the request: "+err.Error())
		return false
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return true
	}
	if !bound.IsText(b) {
		fail(w, notText("the request"))
		return false
	}
	if err := bound.Values(b, "the request", maxValues); err != nil {
		fail(w, err)
		return false
	}
	if err := json.Unmarshal(b, to); err != nil {
		refuse(w, http.StatusBadRequest, "cannot read the request: "+err.Error())
		return false
	}
	if err := bound.Unique(b, "the request", reflect.TypeFor[T]()); err != nil {
		fail(w, err)
		return false
	}
	ignore(w, unknown("", b, reflect.TypeFor[T]())...)
	if err := fields.MayName(r.Context(), to); err != nil {
		fail(w, err)
		return false
	}
	return true
}

// notText rejects names that JSON can't hold: the daemon would read them as other names.
func notText(what string) error {
	return cell.Errorf(cell.Invalid, "e2b", "name such a file within the sandbox, or name its folder", "cannot read %s: it is not UTF-8", what)
}

// maxIgnored bounds the listed names of ignored members.
const maxIgnored = 50

// ignore lists ignored members of a request.
func ignore(w http.ResponseWriter, names ...string) {
	if len(names) == 0 {
		return
	}
	if old := w.Header().Get(headerIgnored); old != "" {
		names = append(strings.Split(old, ", "), names...)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > maxIgnored {
		names = append(names[:maxIgnored], "...")
	}
	w.Header().Set(headerIgnored, strings.Join(names, ", "))
}

// known lists the query parameters of a request that its route does not have.
func known(w http.ResponseWriter, r *http.Request, names ...string) {
	var other []string
	for name := range r.URL.Query() {
		if !slices.Contains(names, name) && len(other) <= maxIgnored {
			other = append(other, printable(name))
		}
	}
	ignore(w, other...)
}

// printable makes a name safe for a list in a header.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f && r != ',' {
			return r
		}
		return '?'
	}, cell.Clip(name))
}

// unknown lists the members of a JSON object for which a type has no field, also in nested
// objects.
func unknown(prefix string, b []byte, t reflect.Type) (names []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		var list []json.RawMessage
		if json.Unmarshal(b, &list) != nil {
			return nil
		}
		for _, e := range list {
			if names = append(names, unknown(prefix, e, t.Elem())...); len(names) > maxIgnored {
				break
			}
		}
		return names
	}
	var members map[string]json.RawMessage
	if t.Kind() != reflect.Struct || json.Unmarshal(b, &members) != nil {
		return nil
	}
	known := map[string]reflect.Type{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known[name] = t.Field(i).Type
	}
	for name, v := range members {
		if k, ok := known[name]; ok {
			names = append(names, unknown(prefix+name+".", v, k)...)
			continue
		}
		if len(names) <= maxIgnored {
			names = append(names, prefix+printable(name))
		}
	}
	slices.Sort(names)
	return names
}

type cellKey struct{}

func withCell(ctx context.Context, c *api.Cell) context.Context {
	return context.WithValue(ctx, cellKey{}, c)
}

// cellIn returns the cell of a request to a sandbox.
func cellIn(ctx context.Context) *api.Cell { return ctx.Value(cellKey{}).(*api.Cell) }

// idIn returns its id.
func idIn(ctx context.Context) cell.ID { return cell.ID(cellIn(ctx).ID) }
