package daemon

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// anchors is the number of a page's last items that a cursor names: the next page begins after
// the last of them that still exists.
const anchors = 16

// nextCursor is the header with the cursor of the next page.
const nextCursor = "X-Next-Cursor"

// paged is a list that its handler has already cut, since building all of it would be expensive.
type paged struct{ list any }

// page cuts a list to a page: limit items after cursor. If there are more, X-Next-Cursor is set.
// Items that are added or removed meanwhile neither hide nor repeat others. Routes without these
// parameters return their answers unchanged.
func cutPage(w http.ResponseWriter, r *http.Request, route Route, out any) (any, error) {
	if p, ok := out.(paged); ok {
		return p.list, nil
	}
	_, params := route.Split()
	if !slices.Contains(params, "cursor") {
		return out, nil
	}
	limit, err := queryInt(r, "limit")
	if err != nil {
		return nil, err
	}
	if limit < 0 {
		return nil, cell.Errorf(cell.Invalid, "daemon.page", "", "limit can't be negative")
	}
	list := reflect.ValueOf(out)
	if cursor := r.URL.Query().Get("cursor"); cursor != "" {
		var behind []string
		b, err := base64.RawURLEncoding.DecodeString(cursor)
		if err == nil {
			err = json.Unmarshal(b, &behind)
		}
		if err != nil || len(behind) == 0 || len(behind) > anchors {
			return nil, cell.Errorf(cell.Invalid, "daemon.page", "use X-Next-Cursor of an answer unchanged", "%q is no cursor", cell.Clip(cursor))
		}
		at := -1
		for i := range list.Len() {
			if slices.Contains(behind, idOf(list.Index(i))) {
				at = i
			}
		}
		if at < 0 {
			return nil, cell.Errorf(cell.Conflict, "daemon.page", "begin again without cursor", "the item that the cursor points to was removed")
		}
		list = list.Slice(at+1, list.Len())
	}
	if limit == 0 || list.Len() <= limit {
		return list.Interface(), nil
	}
	list = list.Slice(0, limit)
	var behind []string
	for i := max(0, limit-anchors); i < limit; i++ {
		behind = append(behind, idOf(list.Index(i)))
	}
	b, err := json.Marshal(behind)
	if err != nil {
		return nil, err
	}
	w.Header().Set(nextCursor, base64.RawURLEncoding.EncodeToString(b))
	return list.Interface(), nil
}

// ids are the fields of package api that identify items of lists; the first that a type has is
// used.
var ids = []string{"ID", "Path", "Digest", "Name"}

// idOf is the identity of an item of a list.
func idOf(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for _, name := range ids {
		if f := v.FieldByName(name); f.IsValid() && f.Kind() == reflect.String && f.Len() > 0 {
			return strings.Clone(f.String())
		}
	}
	return ""
}
