package daemon

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// What names something of the host is for who may do everything.
func TestHostIsOutOfReachBelowAdmin(t *testing.T) {
	for name, what := range map[string][]string{
		"a source":          runReaches(api.RunRequest{From: "/root"}),
		"a mount":           runReaches(api.RunRequest{Mounts: []string{"/:/host:rw"}}),
		"no isolation":      runReaches(api.RunRequest{Backend: "none"}),
		"none as default":   runReaches(api.RunRequest{Prefer: "none"}),
		"a directory image": runReaches(api.RunRequest{Image: "dir:/"}),
		"a kernel":          runReaches(api.RunRequest{Kernel: "/boot/vmlinuz"}),
		"a layout":          runReaches(api.RunRequest{Image: "oci:/root/layout"}),
		"a relative layout": runReaches(api.RunRequest{Image: "oci:./layout"}),
		"an archive":        runReaches(api.RunRequest{Image: "oci:image.tar"}),
		"a policy":          runReaches(api.RunRequest{Policy: "files: {mounts: [/:/host]}"}),
		"applying":          runReaches(api.RunRequest{OnSuccess: "apply"}),
	} {
		for _, l := range access.Levels {
			r := httptest.NewRequestWithContext(access.With(t.Context(), access.Principal{Name: "x", Level: l}), "POST", "/", http.NoBody)
			if err := mayReach(r, what); (err == nil) != (l == Admin) || err != nil && cell.KindOf(err) != cell.Denied {
				t.Errorf("%s with scope %s: %v", name, l, err)
			}
		}
		if mayReach(httptest.NewRequest("POST", "/", http.NoBody), what) == nil {
			t.Errorf("%s for nobody", name)
		}
	}
	if what := runReaches(api.RunRequest{Backend: "gvisor", Image: "oci:docker.io/library/python:3", Cell: "web"}); len(what) > 0 {
		t.Errorf("of the host: %v", what)
	}
}
