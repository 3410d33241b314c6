package daemon

import (
	"net/http/httptest"
	"net/url"
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
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if err := textQuery(q); (err != nil) != refused {
			t.Errorf("%s: %v", query, err)
		}
	}
}
