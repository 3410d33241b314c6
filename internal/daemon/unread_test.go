package daemon

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// A number that is no whole number, or is too large, is said as it is.
func TestNumbersThatDoNotFit(t *testing.T) {
	for body, want := range map[string]string{
		`{"count": 1.5}`: "count has to be a whole number, not 1.5",
		`{"count": 1e3}`: "count has to be a whole number, not 1e3",
		`{"count": "1"}`: "count has to be a whole number, not a string",
		`{"count": ` + strings.Repeat("9", 5000) + `}`: "count has to be a whole number, not 999",
	} {
		r, _ := http.NewRequest("POST", "/v1/cells/a/fork", strings.NewReader(body))
		_, err := decode[api.ForkRequest](nil, r)
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("%.30s: %.200s", body, err)
		}
	}
}

// What is wrong with a body is said in the words of JSON, with the fields there are.
func TestBodiesThatCannotBeRead(t *testing.T) {
	for body, want := range map[string][2]string{
		`{"nmae": "x"}`:            {`it has an unknown field "nmae"`, "it takes name, from, repositories"},
		`{"name": 3}`:              {"name has to be a string, not a number", "/docs"},
		`{"allow": "example.com"}`: {"allow has to be a list, not a string", "/docs"},
		`{"labels": ["a"]}`:        {"labels has to be an object, not a list", "/docs"},
		`{"lease": {"extend": 1}}`: {"lease.extend has to be true or false, not a number", "/docs"},
		`{"lease": {"for": 1.5}}`:  {"lease.for has to be a string, not a number", "/docs"},
		`[]`:                       {"it has to be an object, not a list", "/docs"},
		`{`:                        {"its JSON ends in the middle", ""},
		`{"name": x}`:              {"it is no JSON from byte 10 on", ""},
		`{"name":"a","Name":"b"}`:  {`"name" and "Name" are in one object, and differ in case alone`, "once"},
		`{"name":"a","name":"b"}`:  {`"name" is in one object twice`, "once"},
	} {
		r, _ := http.NewRequest("POST", "/v1/cells", strings.NewReader(body))
		r = r.WithContext(access.With(r.Context(), access.Principal{Level: access.Admin}))
		_, err := decode[api.CreateRequest](nil, r)
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), want[0]) || !strings.Contains(cell.HintOf(err), want[1]) {
			t.Errorf("%s: %v; %s", body, err, cell.HintOf(err))
		}
	}
}

// No cells is no wish of a caller that asks for cells: it is refused, and one that says nothing gets one.
func TestCountsOfNothing(t *testing.T) {
	for body, want := range map[string]string{`{"count":0}`: "cannot make 0 cells: count has to be at least 1", `{"count":-2}`: "cannot make -2 cells", `{"Count":0}`: "count has to be", `{"count":1}`: "", `{"count":null}`: "", `{}`: "", ``: ""} {
		for name, read := range map[string]func(r *http.Request) error{
			"fork":      func(r *http.Request) error { _, err := decodeCounted[api.ForkRequest](nil, r); return err },
			"branch":    func(r *http.Request) error { _, err := decodeCounted[api.BranchRequest](nil, r); return err },
			"warm fork": func(r *http.Request) error { _, err := decodeCounted[api.WarmForkRequest](nil, r); return err },
		} {
			r, _ := http.NewRequest("POST", "/v1/cells/a/fork", strings.NewReader(body))
			err := read(r.WithContext(access.With(r.Context(), access.Principal{Level: access.Admin})))
			if want == "" && err != nil || want != "" && (cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s %s: %v", name, body, err)
			}
		}
	}
}
