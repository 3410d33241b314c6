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

// Optimistic concurrency, in the words of RFC 9110: who replaces something as a
// whole says with If-Match what it was when they saw it, by the ETag of that
// answer, and is refused when it is something else by now.

// setTag says in an answer what was seen.
func setTag(w http.ResponseWriter, tag string) { w.Header().Set("ETag", `"`+tag+`"`) }

// tags are what a header like If-Match names.
type tags struct {
	any  bool // *: whatever there is
	list []string
}

// readTags reads such a header. ok is false for one that is none; weak tags are
// compared like others in If-None-Match, and are none in If-Match, where ours never
// are.
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

// has reports whether what there is, "" for nothing, is one of them.
func (t tags) has(tag string) bool {
	return tag != "" && (t.any || slices.Contains(t.list, tag))
}

// conditional reports whether a request says what must be there.
func conditional(r *http.Request) bool {
	return r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != ""
}

// meets refuses a request whose caller saw something else than tag, which is what
// there is now; "" is nothing.
func meets(r *http.Request, tag string) error {
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
			return cell.Errorf(cell.Stale, opName, "look again", "what you saw is not there any more")
		case !t.has(tag):
			return cell.Errorf(cell.Stale, opName, "look again, and decide anew", "it is not what you saw any more: now it is %s", tag)
		}
	}
	if h := strings.Join(r.Header.Values("If-None-Match"), ", "); h != "" {
		t, ok := readTags(h)
		switch {
		case !ok:
			return bad("If-None-Match")
		case t.has(tag):
			return cell.Errorf(cell.Stale, opName, "look at it, or choose another name", "it is there already: %s", tag)
		}
	}
	return nil
}

// minds says what the ETags are of that a route looks at in If-Match and
// If-None-Match; "" for a route that looks at none. There a request that changes
// something is refused with them: who sends them means them.
func minds(route string) string {
	switch route {
	case "PUT /v1/cells/{cell}/file", "DELETE /v1/cells/{cell}/file":
		return "the file's bytes: GET /v1/cells/{cell}/file, or stat with digest"
	case "POST /v1/cells/{cell}/lease", "POST /v1/cells/{cell}/restore", "POST /v1/cells/{cell}/undo",
		"POST /v1/cells/{cell}/accept", "POST /v1/cells/{cell}/discard", "POST /v1/cells/{cell}/revert":
		return "the cell: GET /v1/cells/{cell}"
	case "POST /v1/runs/{run}/accept", "POST /v1/runs/{run}/discard", "POST /v1/runs/{run}/revert":
		return "the run: GET /v1/runs/{run}"
	case "POST /v1/templates":
		return "the template that is replaced: GET /v1/templates/{template}"
	}
	return ""
}

// mindful refuses conditions where nobody would look at them.
func mindful(r *http.Request, route Route) error {
	path, _ := route.Split()
	if r.Method == http.MethodGet || r.Method == http.MethodHead || route.Method == anyMethod || !conditional(r) || minds(route.Method+" "+path) != "" {
		return nil
	}
	return cell.Errorf(cell.Invalid, "daemon", "leave them out, or see /docs for where they mean something", "If-Match and If-None-Match mean nothing here")
}

// saw is what the engine asks before it changes something; nil without conditions.
func saw(r *http.Request) engine.Seen {
	if !conditional(r) {
		return nil
	}
	return func(tag string) error { return meets(r, tag) }
}

// disposition has a browser keep a file under its name, whatever that is.
func disposition(name string) string {
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "attachment"
}
