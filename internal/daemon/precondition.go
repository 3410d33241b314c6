package daemon

import (
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/engine"
)

// Preconditions (optimistic concurrency, RFC 9110, 13): a request that replaces something names
// in If-Match the ETag of the version that it replaces, and fails if that has changed.

// setTag sets the ETag of an answer.
func setTag(w http.ResponseWriter, tag string) { w.Header().Set("ETag", `"`+tag+`"`) }

// tags are the entity tags of a header such as If-Match.
type tags struct {
	any  bool // *: any version
	list []string
}

// readTags parses such a header. ok is false for a malformed one. Weak tags compare like others
// in If-None-Match, and match nothing in If-Match, since ours are strong.
func readTags(header string) (t tags, ok bool) {
	header = strings.TrimSpace(header)
	if header == "*" {
		return tags{any: true}, true
	}
	for header != "" {
		var rest string
		header = strings.TrimPrefix(header, "W/")
		if !strings.HasPrefix(header, `"`) {
			return t, false
		}
		tag, rest, found := strings.Cut(header[1:], `"`)
		if !found || strings.ContainsFunc(tag, func(r rune) bool { return r < 0x21 || r == 0x7f || r == utf8.RuneError }) {
			return t, false
		}
		t.list = append(t.list, plainTag(tag))
		rest = strings.TrimLeft(rest, " \t")
		if rest == "" {
			return t, true
		}
		if header, ok = strings.CutPrefix(rest, ","); !ok {
			return t, false
		}
		header = strings.TrimLeft(header, " \t")
	}
	return t, false
}

// has reports whether tag, "" for a missing object, is one of them.
func (t tags) has(tag string) bool {
	return tag != "" && (t.any || slices.Contains(t.list, tag))
}

// conditional reports whether a request has preconditions.
func conditional(r *http.Request) bool {
	return r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != ""
}

// checkPreconditions checks the preconditions of a request against tag, the present version; "" is a missing
// object.
func checkPreconditions(r *http.Request, tag string) error {
	const opName = "daemon.meets"
	bad := func(name string) error {
		return cell.Errorf(cell.Invalid, opName, "send an ETag as it was answered, in its quotes, or *", "%s is no list of ETags", name)
	}
	if h := strings.Join(r.Header.Values("If-Match"), ", "); h != "" {
		t, ok := readTags(h)
		switch {
		case !ok:
			return bad("If-Match")
		case tag == "":
			return cell.Errorf(cell.Stale, opName, "read it again", "it was removed since you read it")
		case !t.has(tag):
			return cell.Errorf(cell.Stale, opName, "read it again, and decide anew", "it changed since you read it: now it is %s", tag)
		}
	}
	if h := strings.Join(r.Header.Values("If-None-Match"), ", "); h != "" {
		t, ok := readTags(h)
		switch {
		case !ok:
			return bad("If-None-Match")
		case t.has(tag):
			return cell.Errorf(cell.Stale, opName, "read it, or choose another name", "it exists already: %s", tag)
		}
	}
	return nil
}

// precondition says which object has the ETag that a route compares with If-Match and
// If-None-Match; "" for a route without preconditions.
func (t Traits) precondition() string {
	switch {
	case t.has(fileTag):
		return "the file's bytes: GET /v1/cells/{cell}/file, or stat with digest"
	case t.has(cellTag):
		return "the cell: GET /v1/cells/{cell}"
	case t.has(runTag):
		return "the run: GET /v1/runs/{run}"
	case t.has(templateTag):
		return "the template that is replaced: GET /v1/templates/{template}"
	}
	return ""
}

// rejectUnusedPreconditions rejects If-Match and If-None-Match on routes that ignore them.
func rejectUnusedPreconditions(r *http.Request, route Route) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || route.Method == anyMethod || !conditional(r) || route.Traits.precondition() != "" {
		return nil
	}
	return cell.Errorf(cell.Invalid, "daemon", "leave them out; /docs lists the routes with preconditions", "this route has no preconditions: If-Match and If-None-Match")
}

// precondition returns the precondition that the engine checks before a change; nil without one.
func precondition(r *http.Request) engine.Seen {
	if !conditional(r) {
		return nil
	}
	return func(tag string) error { return checkPreconditions(r, tag) }
}

// disposition makes a browser save a file under its name.
func disposition(name string) string {
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "attachment"
}
