package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What means the same is decided alike, and what could mean more than one thing
// is refused.
func TestF64PathsHaveOneForm(t *testing.T) {
	for path, want := range map[string]string{
		"/":                   "/",
		"/a/b":                "/a/b",
		"/a/":                 "/a/",
		"/%61/b":              "/a/b",
		"/a%20b":              "/a%20b",
		"/a%c3%a9":            "/a%C3%A9",
		"/%7Euser/.x/..y/...": "/~user/.x/..y/...",
		"/.env":               "/.env",
		"*":                   "",
		"":                    "-",
		"a":                   "-",
		"//a":                 "-",
		"/a//b":               "-",
		"/a/./b":              "-",
		"/a/../b":             "-",
		"/a/..":               "-",
		"/%2e%2e/b":           "-",
		"/a/%2E":              "-",
		"/a/..;x/b":           "-",
		"/a%2fb":              "-",
		"/a%5cb":              "-",
		"/a\\b":               "-",
		"/a%00":               "-",
		"/a\x00":              "-",
		"/a%0a":               "-",
		"/a b":                "-",
		"/a%252fb":            "-",
		"/a%":                 "-",
		"/a%2":                "-",
		"/a%zz":               "-",
		"/a?b":                "-",
		"/a#b":                "-",
	} {
		got, ok := CanonicalPath(path)
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%q is %q; want %q", path, got, want)
		}
	}
}

func TestPathPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern  string
		yes, not []string
	}{
		{"/", []string{"/"}, []string{"/a", ""}},
		{"/a", []string{"/a"}, []string{"/a/", "/ab", "/A"}},
		{"/**", []string{"/", "/a", "/a/b/"}, []string{""}},
		{"/a/*", []string{"/a/b"}, []string{"/a", "/a/", "/a/b/c", "/a/b/"}},
		{"/a/**", []string{"/a", "/a/", "/a/b", "/a/b/c/"}, []string{"/ab", "/", "/b/a"}},
		{"/**/z", []string{"/z", "/a/z", "/a/b/z"}, []string{"/z/a", "/az"}},
		{"/a/**/z", []string{"/a/z", "/a/b/z", "/a/z/z"}, []string{"/a", "/a/zz", "/z"}},
		{"/a/**/m/**/z", []string{"/a/m/z", "/a/m/m/z", "/a/x/m/y/z"}, []string{"/a/z", "/a/m", "/a/x/y/z"}},
		{"/a*c/x", []string{"/ac/x", "/abc/x"}, []string{"/a/c/x", "/abcd/x"}},
		{"/*.json", []string{"/a.json", "/.json"}, []string{"/a/b.json", "/a.jsonx"}},
		{"/a*b*c", []string{"/abc", "/axbxc", "/abbcc"}, []string{"/acb", "/ab"}},
	} {
		canonical, err := ParsePathPattern(c.pattern)
		if err != nil || canonical != c.pattern {
			t.Errorf("%s: %q, %v", c.pattern, canonical, err)
			continue
		}
		p := NewPathPattern(canonical)
		for _, path := range c.yes {
			if !p.Match(path) {
				t.Errorf("%s does not match %q", c.pattern, path)
			}
		}
		for _, path := range c.not {
			if p.Match(path) {
				t.Errorf("%s matches %q", c.pattern, path)
			}
		}
	}
	for _, s := range []string{"", "a", "/a/**b", "/a/../b", "/a//b", "/**/**", "/[ab]", "/{a,b}", "/a%2fb", "/a?b", "https://a/b"} {
		if _, err := ParsePathPattern(s); err == nil {
			t.Errorf("%q is a pattern", s)
		}
	}
}

// The matcher, which goes back to the latest ** only, agrees with one that
// tries everything.
func TestPathMatcherTriesEnough(t *testing.T) {
	var plain func(segs, path []string) bool
	plain = func(segs, path []string) bool {
		switch {
		case len(segs) == 0:
			return len(path) == 0
		case segs[0] == "**":
			return plain(segs[1:], path) || len(path) > 0 && plain(segs, path[1:])
		}
		return len(path) > 0 && MatchSegment(segs[0], path[0]) && plain(segs[1:], path[1:])
	}
	seg := rapid.SampledFrom([]string{"a", "b", "ab", "*", "a*", "**", ""})
	part := rapid.SampledFrom([]string{"a", "b", "ab", "abb", ""})
	rapid.Check(t, func(t *rapid.T) {
		segs, path := rapid.SliceOfN(seg, 1, 6).Draw(t, "pattern"), rapid.SliceOfN(part, 1, 6).Draw(t, "path")
		p := PathPattern{text: "/" + strings.Join(segs, "/"), segs: segs}
		if got, want := p.Match("/"+strings.Join(path, "/")), plain(segs, path); got != want {
			t.Fatalf("%q matches %q: %v; want %v", segs, path, got, want)
		}
	})
}

func TestHosts(t *testing.T) {
	for s, want := range map[string]string{
		"example.com": "example.com", "Example.COM.": "example.com", "*.Example.com": "*.example.com", "bücher.example": "xn--bcher-kva.example",
		"localhost": "localhost", "_dmarc.example.com": "_dmarc.example.com", "*": "*", "10.0.0.1": "10.0.0.1", "10.0.0.0/8": "10.0.0.0/8",
		"10.0.0.1/32": "10.0.0.1", "::1": "::1", "2001:DB8::0:1": "2001:db8::1", "::ffff:10.0.0.1": "10.0.0.1", "::ffff:10.0.0.0/104": "10.0.0.0/8",
		"64:ff9b::a00:1": "10.0.0.1", "fd00::/8": "fd00::/8",
	} {
		if got, err := CanonicalHost(s); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", s, got, err, want)
		}
	}
	for _, s := range []string{"", ".", "a..b", "-a", "a-", "*.*.a", "a.*", "*a.b", "a b", "a/b", "127.1", "0x7f.1", "0x7f000001", "2130706433", "1.2.3.4.5", "256.1.1.1",
		"10.0.0.1/8", "fe80::1%eth0", "a.example.1", "::ffff:10.0.0.1/90", strings.Repeat("a", 64) + ".b", strings.Repeat("a.", 127) + "b", "a\x00b", "a\nb", "user@a", "[::1]"} {
		if got, err := CanonicalHost(s); err == nil {
			t.Errorf("%q is the host %q", s, got)
		}
	}
	for s, want := range map[string]string{"a.example": "a.example|", "a.example:443": "a.example|443", "a.example:*": "a.example|1-65535", "a.example:8000-8010": "a.example|8000-8010",
		"[::1]:80": "::1|80", "[::1]": "::1|", "::1": "::1|", "10.0.0.0/8:5432": "10.0.0.0/8|5432", "[fd00::/8]:443": "fd00::/8|443", "@npm": "registry.npmjs.org|443"} {
		got, err := parseTarget(s)
		if err != nil || strings.Join(got.hosts, ",")+"|"+strings.Join(got.ports, ",") != want {
			t.Errorf("%q: %+v, %v; want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"a:0", "a:65536", "a:", "a:b", "a:80-70", "a:080", "[::1]80", "[::1", "@nosuch", "https://a.example", "a:80,443", "a:-1", "a: 80"} {
		if got, err := parseTarget(s); err == nil {
			t.Errorf("%q: %+v", s, got)
		}
	}
}
