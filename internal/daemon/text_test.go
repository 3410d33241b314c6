package daemon

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// A name that JSON cannot hold is refused, and no other is taken for it.
func TestNamesThatAreNoText(t *testing.T) {
	for arg, want := range map[string]string{ // as it stands in a JSON string; "" is refused
		"caf\xe9":            "",
		`caf\udce9`:          "",
		`\ud83d`:             "",
		`\ud83dx`:            "",
		`\ud83d\n`:           "",
		`\ud83d\u0041`:       "",
		`\ude00\ud83d`:       "",
		`\ud83d\ude00\udce9`: "",
		`\\\udce9`:           "",
		`\ud83d\ude00`:       "😀",
		`\\udce9`:            `\udce9`,
		`\ufffd`:             "\ufffd",
		"\ufffd":             "\ufffd",
		`\\\\ud83d\"`:        `\\ud83d"`,
		`café`:               "café",
	} {
		v, err := decode[api.RunRequest](nil, httptest.NewRequest("POST", "/v1/runs", strings.NewReader(`{"command":["`+arg+`"]}`)))
		switch {
		case want == "":
			if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "it is not UTF-8") {
				t.Errorf("%q: %q, %v", arg, v.Command, err)
			}
		case err != nil || len(v.Command) != 1 || v.Command[0] != want:
			t.Errorf("%q: %q, %v", arg, v.Command, err)
		}
	}
	for query, refused := range map[string]bool{"path=caf%E9": true, "path=caf%C3%A9": false, "dir=caf%E9&path=x": false, "path=x&path=%FF": true} {
		if err := checkQuery(Route{Method: "GET", Path: "/v1/x?path&dir"}, query); (err != nil) != refused {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// A parameter that a route has not is refused, with those that it has: on every route.
func TestX47UnknownParametersAreRefused(t *testing.T) {
	for _, r := range Routes {
		path, known := r.Split()
		for _, query := range []string{"surprise=1", "Limit=1", "%zz=1", "a;b"} {
			err := checkQuery(r, query)
			if r.Method == anyMethod {
				if err != nil {
					t.Errorf("%s: what a program in a cell is asked is refused: %v", path, err)
				}
				continue
			}
			if cell.KindOf(err) != cell.Invalid {
				t.Errorf("%s %s?%s: %v", r.Method, path, query, err)
			}
		}
		for _, name := range known {
			if err := checkQuery(r, name+"=1"); err != nil {
				t.Errorf("%s %s: %v", r.Method, path, err)
			}
			several := strings.Contains(Params[name].Does, "repeatable")
			if err := checkQuery(r, name+"=1&"+name+"=2"); (err == nil) != (several || r.Method == anyMethod) {
				t.Errorf("%s %s, %s given twice: %v", r.Method, path, name, err)
			}
		}
	}
	err := checkQuery(Route{Method: "GET", Path: "/v1/runs?cell&limit"}, "limti=1")
	if e, ok := errors.AsType[*cell.Error](err); !ok || e.Hint != "it takes cell, limit" {
		t.Errorf("a mistake is answered by %v", err)
	}
}
