package daemon

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/cell"
)

func notText(what string) error {
	return cell.Errorf(cell.Invalid, "daemon", "name such a file within the cell, or name its folder", "cannot read %s: it is not UTF-8", what)
}

// repeatable are the parameters that may be given several times. Of another one all values but
// the first would have no effect.
var repeatable = []string{"label", "include", "only", "of"}

// checkQuery rejects unknown parameters, which would have no effect, and parameters that are not
// UTF-8: paths in a cell are passed on as JSON. dir is always allowed, since clients always send
// it. The query of a program in a cell is not checked.
func checkQuery(route Route, raw string) error {
	if raw == "" || route.Method == anyMethod {
		return nil
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return cell.Errorf(cell.Invalid, "daemon.Query", "escape it as application/x-www-form-urlencoded", "the query can't be read: %w", err)
	}
	_, known := route.Split()
	for name, values := range q {
		if name != "dir" && !slices.Contains(known, name) {
			hint := "it takes none"
			if len(known) > 0 {
				hint = "it takes " + strings.Join(known, ", ")
			}
			return cell.Errorf(cell.Invalid, "daemon.Query", hint, "there is no parameter %s", strconv.Quote(cell.Clip(name)))
		}
		if len(values) > 1 && !slices.Contains(repeatable, name) {
			return cell.Errorf(cell.Invalid, "daemon.Query", "give it once", "the parameter %s is given %d times", name, len(values))
		}
		for _, v := range values {
			if name != "dir" && !utf8.ValidString(v) {
				return notText(name)
			}
		}
	}
	return nil
}
