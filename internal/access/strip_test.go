package access

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	someToken    = "pando_0123456789abcdef0123456789abcdef01234567"
	trafficToken = "pando_traffic_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// Nothing that a caller showed to pando reaches the program in a cell; what the
// program's own client sent does.
func TestX03TokensAreStripped(t *testing.T) {
	e2b := "e2b_" + strings.TrimPrefix(someToken, "pando_")
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, c := range []struct {
		name, url string
		sent      http.Header
		want      http.Header
		wantURL   string
	}{
		{"bearer", "/", http.Header{"Authorization": {"Bearer " + someToken}}, http.Header{}, "/"},
		{"bearer in another case", "/", http.Header{"Authorization": {"bEaReR " + someToken}}, http.Header{}, "/"},
		{"bearer without the beginning", "/", http.Header{"Authorization": {"Bearer " + strings.TrimPrefix(someToken, "pando_")}}, http.Header{}, "/"},
		{"as E2B's key", "/", http.Header{"X-Api-Key": {e2b}, "Accept": {"*/*"}}, http.Header{"Accept": {"*/*"}}, "/"},
		{"sandbox's tokens", "/", http.Header{"X-Access-Token": {trafficToken}, "E2b-Traffic-Access-Token": {trafficToken}, "E2b-Sandbox-Id": {"c-1"}, "E2b-Sandbox-Port": {"3000"}}, http.Header{}, "/"},
		{"a program's own login", "/", http.Header{"Authorization": {basic("ada:secret")}}, http.Header{"Authorization": {basic("ada:secret")}}, "/"},
		{"a token as a password", "/", http.Header{"Authorization": {basic("ada:" + someToken)}}, http.Header{}, "/"},
		{"two authorizations", "/", http.Header{"Authorization": {"Bearer " + someToken, basic("ada:secret")}}, http.Header{"Authorization": {basic("ada:secret")}}, "/"},
		{"among cookies", "/", http.Header{"Cookie": {"session=1; key=" + e2b + "; theme=dark"}}, http.Header{"Cookie": {"session=1; theme=dark"}}, "/"},
		{"the only cookie", "/", http.Header{"Cookie": {"key=" + e2b}}, http.Header{}, "/"},
		{"a WebSocket sub-protocol", "/", http.Header{"Sec-Websocket-Protocol": {"bearer." + someToken}}, http.Header{}, "/"},
		{"where a page came from", "/", http.Header{"Referer": {"https://x/?token=" + someToken}}, http.Header{}, "/"},
		{"in a header of any name", "/", http.Header{"X-Other": {"a", "v=" + strings.ToUpper(someToken)}}, http.Header{"X-Other": {"a"}}, "/"},
		{"in the query", "/a?x=1&token=" + someToken + "&y=%20", http.Header{}, http.Header{}, "/a?x=1&y=%20"},
		{"escaped in the query", "/a?token=" + strings.Replace(someToken, "_", "%5F", 1), http.Header{}, http.Header{}, "/a"},
		{"the token of the request, elsewhere without its beginning", "/?k=" + strings.TrimPrefix(someToken, "pando_"), http.Header{"X-Api-Key": {someToken}, "X-Copy": {strings.TrimPrefix(someToken, "pando_")}}, http.Header{}, "/"},
		{"nothing of ours", "/a?b=c;d&e", http.Header{"Cookie": {"a=b; c=d"}, "X-Y": {"pando_is_a_tree"}}, http.Header{"Cookie": {"a=b; c=d"}, "X-Y": {"pando_is_a_tree"}}, "/a?b=c;d&e"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", c.url, nil)
			r.Header = c.sent.Clone()
			r.Trailer = http.Header{"X-Api-Key": nil}
			Strip(r)
			if d := cmp.Diff(c.want, r.Header); d != "" {
				t.Errorf("headers (-want +got)\n%s", d)
			}
			if got := r.URL.RequestURI(); got != c.wantURL {
				t.Errorf("URL %s, want %s", got, c.wantURL)
			}
			if r.Trailer != nil {
				t.Errorf("trailers %v", r.Trailer)
			}
		})
	}
}
