package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/secret/secrettest"
)

// No kind of token goes to a pinned host beside the credential, in a place that has a harmless name.
func TestPinnedHostsGetNoKindOfToken(t *testing.T) {
	for _, k := range secrettest.Tokens(t) {
		if !k.Requests {
			continue
		}
		token, _, _ := strings.Cut(k.Value, "\n")
		t.Run(k.Name(), func(t *testing.T) {
			for name, r := range map[string]*http.Request{
				"path":   {URL: &url.URL{Path: "/x/" + token}, Header: http.Header{}},
				"query":  {URL: &url.URL{Path: "/", RawQuery: "q=" + url.QueryEscape(token)}, Header: http.Header{}},
				"header": {URL: &url.URL{Path: "/"}, Header: http.Header{"User-Agent": {"curl " + token}}},
			} {
				if what := foreign(r, nil); what == "" {
					t.Errorf("%q passes in the %s", token, name)
				}
			}
		})
	}
}
