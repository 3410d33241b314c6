package cell

import "testing"

func TestPlaceHolds(t *testing.T) {
	type req struct {
		method, scheme, host string
		port                 uint16
		path                 string
	}
	get := func(host, path string) req { return req{"GET", "https", host, 443, path} }
	for _, x := range []struct {
		place string
		req   req
		want  bool
	}{
		{"api.github.com", get("api.github.com", "/"), true},
		{"api.github.com", get("api.github.com", "/a/b"), true},
		{"api.github.com", get("x.api.github.com", "/"), false},
		{"api.github.com", get("api.github.com.evil.example", "/"), false},
		{"API.GitHub.com.", get("api.github.com", "/"), true},
		{"https://api.github.com", req{"GET", "http", "api.github.com", 80, "/"}, false},
		{"https://api.github.com", req{"GET", "http", "api.github.com", 443, "/"}, false},
		{"https://api.github.com", req{"GET", "https", "api.github.com", 8443, "/"}, false},
		{"https://api.github.com:8443", req{"GET", "https", "api.github.com", 8443, "/"}, true},
		{"http://localhost:8080", req{"GET", "http", "localhost", 8080, "/x"}, true},
		{"GET,HEAD https://a.example/**", req{"POST", "https", "a.example", 443, "/"}, false},
		{"GET,HEAD https://a.example/**", get("a.example", "/"), true},
		{"*.example.com", get("a.example.com", "/"), true},
		{"*.example.com", get("a.b.example.com", "/"), true},
		{"*.example.com", get("example.com", "/"), false},
		{"*.example.com", get(".example.com", "/"), false},
		{"*.example.com", get("badexample.com", "/"), false},
		{"https://a.example/repos/me/**", get("a.example", "/repos/me/x/y"), true},
		{"https://a.example/repos/me/**", get("a.example", "/repos/me"), true},
		{"https://a.example/repos/me/**", get("a.example", "/repos/meow"), false},
		{"https://a.example/repos/me/**", get("a.example", "/repos/you/me/x"), false},
		{"https://a.example/repos/*/issues", get("a.example", "/repos/x/issues"), true},
		{"https://a.example/repos/*/issues", get("a.example", "/repos/x/y/issues"), false},
		{"https://a.example/**/issues", get("a.example", "/repos/x/y/issues"), true},
		{"https://a.example/**/issues", get("a.example", "/issues"), true},
		{"https://a.example/**/issues", get("a.example", "/issues/3"), false},
		{"https://a.example/v1*/x", get("a.example", "/v1beta/x"), true},
		{"https://a.example/v1", get("a.example", "/v1/"), false},
		{"https://a.example/v1", get("a.example", "/v1"), true},
		{"https://[::1]:8443/", req{"GET", "https", "::1", 8443, "/x"}, true},
	} {
		p, err := ParsePlace(x.place)
		if err != nil {
			t.Errorf("%s: %v", x.place, err)
			continue
		}
		if got := p.Holds(x.req.method, x.req.scheme, x.req.host, x.req.port, x.req.path); got != x.want {
			t.Errorf("%s, %+v: %v", x.place, x.req, got)
		}
		again, err := ParsePlace(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%s is written %s, and read as %s, %v", x.place, p, again, err)
		}
	}
}

// A place that is not exact is rejected: a secret would go to an unintended host.
func TestPlaceRefused(t *testing.T) {
	for _, s := range []string{
		"", "*", "*.com", "https://*", "https://", "https://a b", "ftp://a.example", "https://u:p@a.example/", "https://a.example/?x", "https://a.example/#x",
		"https://a.example/a/../b", "https://a.example/./b", "https://a.example/a%2Fb", "https://a.example/a**b", "https://a*.example.com/",
		"https://*.*.example.com", "https://a.example:0/", "https://a.example:99999/", "get https://a.example", "GET,, https://a.example", "a..example", "-a.example", "https://a.example\n.evil",
	} {
		if p, err := ParsePlace(s); err == nil {
			t.Errorf("%q is %s", s, p)
		} else if KindOf(err) != Invalid {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestLentHeader(t *testing.T) {
	for as, want := range map[string][2]string{
		"Authorization: Bearer {secret}":               {"Authorization", "Bearer s3cret"},
		"x-api-key: {secret}":                          {"x-api-key", "s3cret"},
		"Authorization: Basic x-access-token:{secret}": {"Authorization", "Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0"},
		"Authorization: Basic {basic:x-access-token}":  {"Authorization", "Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0"},
	} {
		name, value := Lent{As: as, Secret: "s3cret"}.Header()
		if name != want[0] || value != want[1] {
			t.Errorf("%s: %s: %s", as, name, value)
		}
	}
	l := Lent{For: []string{"https://a.example/x/**", "https://b.example"}}
	if !l.Fits("GET", "https", "b.example", 443, "/") || l.Fits("GET", "https", "a.example", 443, "/y") {
		t.Error("Fits")
	}
}
