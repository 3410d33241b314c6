package daemon

import (
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// A label by which another door knows its cells can't be set through this one.
func TestLabelsOfOtherDoors(t *testing.T) {
	if err := labelsOfOthers(map[string]string{"mine": "1", "e2b:template": "base"}); cell.KindOf(err) != cell.Invalid {
		t.Error(err)
	}
	if err := labelsOfOthers(map[string]string{"mine": "a:b"}); err != nil {
		t.Error(err)
	}
}
