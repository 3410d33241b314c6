package access

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// ownHeaders are the headers that carry a token, or the address of a cell, to pando
// itself. E2B's clients send the last four.
var ownHeaders = []string{"X-Api-Key", "X-Access-Token", "E2b-Traffic-Access-Token", "E2b-Sandbox-Id", "E2b-Sandbox-Port"}

// tokenShape is the shape of every token of pando: of callers, and of sandboxes.
var tokenShape = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(pando|e2b)_([a-z]+_)?[0-9a-f]{40}`)
})

// Strip removes from a request what its caller showed to pando, before the request
// goes to a program in a cell. Every door that passes requests on calls it.
//
// It removes the headers of pando's own tokens, every Bearer authorization (a door
// takes each as a token of its own), and each header, cookie and query parameter
// that holds a token of the request or something of a token's shape. Other
// authorization is the program's, and stays.
func Strip(r *http.Request) {
	shown := shownIn(r)
	holds := func(v string) bool {
		if tokenShape().MatchString(v) {
			return true
		}
		for _, s := range shown {
			if strings.Contains(v, s) {
				return true
			}
		}
		return false
	}
	for _, h := range ownHeaders {
		r.Header.Del(h)
	}
	keep(r.Header, "Authorization", func(v string) bool {
		kind, rest, _ := strings.Cut(strings.TrimSpace(v), " ")
		if strings.EqualFold(kind, "bearer") || holds(v) {
			return false
		}
		plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
		return err != nil || !holds(string(plain))
	})
	keepCookies(r.Header, holds)
	for name := range r.Header {
		keep(r.Header, name, func(v string) bool { return !holds(v) && !holds(unescaped(v)) })
	}
	r.URL.RawQuery = keepParameters(r.URL.RawQuery, holds)
	r.Trailer = nil
}

// shortest is how long a token is at least: shorter values are in other text by chance.
const shortest = 16

// shownIn lists the tokens that a request shows to pando, without their beginnings.
func shownIn(r *http.Request) (shown []string) {
	values := []string{Presented(r)}
	for _, h := range ownHeaders[:3] {
		values = append(values, r.Header.Values(h)...)
	}
	for _, v := range values {
		if v = bare(strings.TrimSpace(v)); len(v) >= shortest {
			shown = append(shown, v)
		}
	}
	return shown
}

// keep leaves of a header the values for which ok holds.
func keep(h http.Header, name string, ok func(string) bool) {
	var kept []string
	for _, v := range h[name] {
		if ok(v) {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		delete(h, name)
		return
	}
	h[name] = kept
}

// keepCookies removes single cookies from the header that carries all.
func keepCookies(h http.Header, holds func(string) bool) {
	for i, line := range h["Cookie"] {
		var kept []string
		for c := range strings.SplitSeq(line, ";") {
			if c = strings.TrimSpace(c); c != "" && !holds(c) && !holds(unescaped(c)) {
				kept = append(kept, c)
			}
		}
		h["Cookie"][i] = strings.Join(kept, "; ")
	}
	keep(h, "Cookie", func(v string) bool { return v != "" })
}

// keepParameters removes parameters from a query, and leaves the others as they were
// sent.
func keepParameters(query string, holds func(string) bool) string {
	if query == "" {
		return ""
	}
	var kept []string
	for p := range strings.SplitSeq(query, "&") {
		if !holds(p) && !holds(unescaped(p)) {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, "&")
}

func unescaped(s string) string {
	plain, err := url.QueryUnescape(s)
	if err != nil {
		return s
	}
	return plain
}
