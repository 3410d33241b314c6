package engine

import (
	"regexp"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// cellID is the id of a cell in a text.
var cellID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\b(cell )?c-[0-9a-f]{16}\b`)
})

// Named is an error in which cells that the caller sees are called by their names: keepers
// and drivers know ids alone.
func (v *View) Named(err error) error {
	return withNames(err, v.cell)
}

// withNames is an error in which cells are called by their names.
func withNames(err error, find func(cell.ID) (state.Cell, error)) error {
	if err == nil {
		return nil
	}
	call := func(text string) string {
		return cellID().ReplaceAllStringFunc(text, func(s string) string {
			id := strings.TrimPrefix(s, "cell ")
			c, err := find(cell.ID(id))
			switch {
			case err != nil:
				return s
			case c.Template != "":
				return "the cell of template " + c.Template
			}
			return strings.TrimSuffix(s, id) + c.Title()
		})
	}
	text, hint := call(err.Error()), call(cell.HintOf(err))
	if text == err.Error() && hint == cell.HintOf(err) {
		return err
	}
	return cell.Errorf(cell.KindOf(err), "engine", hint, "%s", text).About(cell.SubjectOf(err))
}

// failure is an error as records have it.
func (e *Engine) failure(err error) *state.Error {
	err = withNames(err, e.reg.Cell)
	return &state.Error{Kind: cell.KindOf(err), Subject: cell.SubjectOf(err), Message: err.Error(), Hint: cell.HintOf(err)}
}
