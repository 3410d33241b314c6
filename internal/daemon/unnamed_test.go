package daemon

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// latestWillDo are the routes that change something and may leave out what they are about:
// a person sees what it was about, and can take it back; the last changes nothing.
var latestWillDo = map[string]bool{
	"POST /v1/cells/{cell}/accept": true, "POST /v1/cells/{cell}/discard": true, "POST /v1/cells/{cell}/revert": true, "POST /v1/cells/{cell}/undo": true, "POST /v1/cells/{cell}/sync": true, "POST /v1/cells/{cell}/fetch": true,
	"POST /v1/cells/{cell}/sign-offs":   true, // the signature names it
	"POST /v1/runs/{run}/policy/replay": true, "POST /v1/runs/{run}/replay": true,
}

// What changes a cell or a run has to name it: "-" is not the latest one.
func TestX20RoutesNameWhatTheyChange(t *testing.T) {
	d, _ := house(t, Config{})
	tried := 0
	for _, r := range Routes {
		path, _ := r.Split()
		if r.Method == http.MethodGet || r.Method == anyMethod || !strings.Contains(path, "{cell}") && !strings.Contains(path, "{run}") || latestWillDo[r.Method+" "+path] {
			continue
		}
		body := map[string]string{"POST /v1/cells/{cell}/mkdir": `{"path": "x"}`, "POST /v1/cells/{cell}/rename": `{"path": "x", "to": "y"}`}[r.Method+" "+path]
		req := httptest.NewRequest(r.Method, regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(path, "x")+"?path=x", strings.NewReader(cmp.Or(body, "{}")))
		req.SetPathValue("cell", "-")
		req.SetPathValue("run", "-")
		if !strings.Contains(path, "{run}") {
			req.SetPathValue("run", "")
		}
		_, err := r.handle(d, httptest.NewRecorder(), req)
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "is named") {
			t.Errorf("%s %s: %v", r.Method, path, err)
		}
		tried++
	}
	if tried < 15 {
		t.Errorf("only %d routes were tried", tried)
	}
}
