package daemon

import (
	"net/http/httptest"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// Whoever may run things can't make a cell of the host's files.
func TestCreateReachesNothingOfTheHost(t *testing.T) {
	r := httptest.NewRequest("POST", "/v1/cells", nil)
	r = r.WithContext(access.With(r.Context(), access.Principal{Name: "some", Level: Act}))
	for _, req := range []api.CreateRequest{
		{From: "/etc"}, {Mounts: []string{"/etc:/mnt"}}, {Backend: "none"}, {Image: "dir:/"}, {Kernel: "/boot/vmlinuz"}, {Policy: "version: 1\nfiles: {mounts: [{from: /etc, to: /mnt}]}\n"},
	} {
		if err := mayReach(r, createReaches(req)); cell.KindOf(err) != cell.Denied {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if err := mayReach(r, createReaches(api.CreateRequest{Name: "a", Allow: []string{"a.example"}})); err != nil {
		t.Error(err)
	}
}

// A label by which another door knows its cells can't be set through this one.
func TestLabelsOfOtherDoors(t *testing.T) {
	if err := labelsOfOthers(map[string]string{"mine": "1", "e2b:template": "base"}); cell.KindOf(err) != cell.Invalid {
		t.Error(err)
	}
	if err := labelsOfOthers(map[string]string{"mine": "a:b"}); err != nil {
		t.Error(err)
	}
}
