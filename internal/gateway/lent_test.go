package gateway

import (
	"net/http"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
)

// What the store knows of services, a gateway can put in.
func TestLentWellKnown(t *testing.T) {
	for _, name := range credential.KnownNames() {
		c, _ := credential.WellKnown(name)
		list, err := newLent(c.Lend("the-placeholder", credential.NewSecret("the-value")))
		if err != nil || len(list) == 0 {
			t.Errorf("%s: %v, %v", name, list, err)
		}
		for _, s := range list {
			h := http.Header{}
			if s.putIn(h); h.Get(s.header) == "" {
				t.Errorf("%s: nothing is put in", name)
			}
		}
	}
}

func TestLentGoesWhereItIsFor(t *testing.T) {
	github, _ := credential.WellKnown("github")
	list, err := newLent(append(github.Lend("the-placeholder", credential.NewSecret("the-value")), cell.Lent{
		Handle: "narrow", Placeholder: "another-placeholder", Secret: "another", As: "X-Key: {secret}", For: []string{"GET,POST https://a.example/repos/me/**"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	l := &compiledPolicy{lent: list}
	for _, x := range []struct {
		handle, method, host, path string
		want                       string // the header
	}{
		{"github", "GET", "api.github.com", "/user", "Bearer the-value"},
		{"github", "POST", "github.com", "/me/x.git/git-receive-pack", "Basic eC1hY2Nlc3MtdG9rZW46dGhlLXZhbHVl"},
		{"github", "GET", "gist.github.com", "/", ""},
		{"narrow", "POST", "a.example", "/repos/me/x", "another"},
		{"narrow", "DELETE", "a.example", "/repos/me/x", ""},
		{"narrow", "GET", "a.example", "/repos/you/x", ""},
		{"narrow", "GET", "a.example", "/repos/me/../you/x", ""},
		{"narrow", "GET", "a.example", "/repos/me/..%2Fyou/x", ""},
		{"narrow", "GET", "a.example", "/repos/me//x", ""},
		{"narrow", "GET", "b.example", "/repos/me/x", ""},
	} {
		s, lent := l.lentAs(x.handle, cell.Access{Method: x.method, Scheme: "https", Port: 443, Path: x.path}, x.host)
		if !lent || (s == nil) != (x.want == "") {
			t.Errorf("%+v: %v, %v", x, s, lent)
			continue
		}
		if s != nil {
			h := http.Header{}
			if s.putIn(h); h.Get(s.header) != x.want {
				t.Errorf("%+v: %v", x, h)
			}
		}
	}
	if _, lent := l.lentAs("nothing", cell.Access{}, "a.example"); lent {
		t.Error("what is not lent is")
	}
}

// Git sends what the cell has as a password; the value takes its place.
func TestLentReplacesThePlaceholder(t *testing.T) {
	list, err := newLent([]cell.Lent{{Handle: "x", Placeholder: "the-placeholder", Secret: "the-value", For: []string{"a.example"}, As: "Authorization: Bearer {secret}"}})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest("GET", "https://a.example/", nil)
	r.SetBasicAuth("me", "the-placeholder")
	if !list[0].carries(r) {
		t.Error("the placeholder is not seen")
	}
	list[0].putIn(r.Header)
	if _, password, _ := r.BasicAuth(); password != "the-value" || len(r.Header.Values("Authorization")) != 1 {
		t.Errorf("%v", r.Header)
	}
}
