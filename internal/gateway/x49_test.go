package gateway_test

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
)

const (
	trkValue = "trk_4mK2xQ9vLw8Zt3Rb6Yc1"
	trkHeld  = "trk_pandoA7bC9dE2fG4hJ6kL8mN1pQ3"
	stranger = "attacker-key-999"
)

// pinned is a cell with a credential lent for https://api.test, and the requests
// that arrive there.
type pinned struct {
	*gatewaytest.Bench
	client *http.Client

	mu      sync.Mutex
	arrived []*http.Request
}

func newPinned(t *testing.T, p gatewaytest.Policy, lent ...cell.Lent) *pinned {
	b := &pinned{Bench: gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(p, lent...))}
	b.Record("api.test. 60 IN A 203.0.113.1")
	b.Record("free.test. 60 IN A 203.0.113.1")
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		b.mu.Lock()
		b.arrived = append(b.arrived, r)
		b.mu.Unlock()
		fmt.Fprint(w, "served")
	})
	b.HTTPS("203.0.113.1:443", h, "api.test", "free.test")
	b.HTTPS("203.0.113.1:8443", h, "api.test")
	b.HTTP("203.0.113.1:80", h)
	b.client = gatewaytest.Client(b.Cell, b.Link, b.Trust)
	return b
}

func (b *pinned) take() []*http.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.arrived
	b.arrived = nil
	return out
}

func pinPolicy() gatewaytest.Policy {
	return gatewaytest.Policy{Rules: []gatewaytest.Rule{
		{Effect: cell.Allow, Host: "api.test", Path: "/v1/", Ports: []uint16{443}, Credential: "trk"},
		{Effect: cell.Allow, Host: "api.test", Ports: []uint16{80, 443, 8443}},
		{Effect: cell.Allow, Host: "free.test", Open: true},
	}}
}

func trk(as string) cell.Lent {
	return cell.Lent{Handle: "trk", Placeholder: trkHeld, Secret: trkValue, For: []string{"https://api.test/v1/**"}, As: as}
}

func basicOf(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }

// strangers are ways in which a program brings authentication of its own.
var strangers = []struct {
	name, url string
	header    http.Header
	trailer   http.Header
}{
	{"As", "", http.Header{"X-Api-Key": {stranger}}, nil},
	{"bearer", "", http.Header{"Authorization": {"Bearer " + stranger}}, nil},
	{"basic", "", http.Header{"Authorization": {basicOf("me:" + stranger)}}, nil},
	{"digest", "", http.Header{"Authorization": {`Digest username="me", response="0"`}}, nil},
	{"SigV4", "", http.Header{"Authorization": {"AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00"}}, nil},
	{"no scheme", "", http.Header{"Authorization": {stranger}}, nil},
	{"proxy", "", http.Header{"Proxy-Authorization": {"Bearer " + stranger}}, nil},
	{"api-key", "", http.Header{"Api-Key": {stranger}}, nil},
	{"google", "", http.Header{"X-Goog-Api-Key": {stranger}}, nil},
	{"x-auth-token", "", http.Header{"X-Auth-Token": {stranger}}, nil},
	{"private-token", "", http.Header{"Private-Token": {stranger}}, nil},
	{"lower case", "", http.Header{"x-api-key": {stranger}}, nil},
	{"underscores", "", http.Header{"X_Api_Key": {stranger}}, nil},
	{"amz token", "", http.Header{"X-Amz-Security-Token": {stranger}}, nil},
	{"signature", "", http.Header{"Signature-Input": {"sig1=()"}, "Signature": {"sig1=:AA==:"}}, nil},
	{"gRPC metadata", "", http.Header{"Authorization-Bin": {base64.StdEncoding.EncodeToString([]byte(stranger))}}, nil},
	{"header of the service", "", http.Header{"X-Acme-Access-Token": {stranger}}, nil},
	{"harmless name", "", http.Header{"X-Note": {"ghp_0123456789abcdefghijABCDEFGHIJ012345"}}, nil},
	{"harmless name, unknown shape", "", http.Header{"X-Note": {"Zm9vYmFy0123456789abcdEFGH"}}, nil},
	{"user agent", "", http.Header{"User-Agent": {"curl sk-ant-api03-0123456789abcdef"}}, nil},
	{"?key=", "?key=" + stranger, nil, nil},
	{"?api_key=", "?x=1&api_key=" + stranger, nil, nil},
	{"?access_token=", "?access_token=" + stranger, nil, nil},
	{"?token=", "?token=" + stranger, nil, nil},
	{"? escaped", "?%74oken=" + stranger, nil, nil},
	{"? behind ;", "?a=1;token=" + stranger, nil, nil},
	{"signed URL", "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA&X-Amz-Signature=00", nil, nil},
	{"signed URL of Azure", "?sv=2024&sp=w&sig=abc%3D", nil, nil},
	{"any parameter", "?q=ghp_0123456789abcdefghijABCDEFGHIJ012345", nil, nil},
	{"path", "/bot/glpat-0123456789abcdefghij", nil, nil},
	{"cookie", "", http.Header{"Cookie": {"session=" + stranger}}, nil},
	{"cookie beside one of the edge", "", http.Header{"Cookie": {"__cf_bm=1; uid=" + stranger}}, nil},
	{"cookie behind white space", "", http.Header{"Cookie": {"__cf_bm=1 uid=" + stranger}}, nil},
	{"cookie behind a tab", "", http.Header{"Cookie": {"__cf_bm=1\tuid=" + stranger}}, nil},
	{"cookie behind a comma", "", http.Header{"Cookie": {"__cf_bm=1, uid=" + stranger}}, nil},
	{"cookie behind a quoted one", "", http.Header{"Cookie": {`__cf_bm="1"uid=` + stranger}}, nil},
	{"sub-protocol", "", http.Header{"Sec-Websocket-Protocol": {"realtime, openai-insecure-api-key." + stranger}}, nil},
	{"sub-protocol alone", "", http.Header{"Sec-Websocket-Protocol": {stranger}}, nil},
	{"session of another shape", "", http.Header{"Session-Id": {"ses_" + stranger}}, nil},
	{"affinity of another shape", "", http.Header{"X-Session-Affinity": {"0123456789abcdefghijABCDEFGHIJ"}}, nil},
	{"rewritten URL", "", http.Header{"X-Original-Url": {"/v1/x?token=" + stranger}}, nil},
	{"twice", "", http.Header{"X-Api-Key": {trkHeld, stranger}}, nil},
	{"in one line", "", http.Header{"X-Api-Key": {trkHeld + ", " + stranger}}, nil},
	{"placeholder and another header", "", http.Header{"X-Api-Key": {trkHeld}, "Authorization": {"Bearer " + stranger}}, nil},
	{"placeholder and a parameter", "?key=" + stranger, http.Header{"X-Api-Key": {trkHeld}}, nil},
	{"placeholder's password, another's user", "", http.Header{"Authorization": {basicOf(stranger + ":" + trkHeld)}}, nil},
	{"placeholder's scheme", "", http.Header{"Authorization": {stranger + " " + trkHeld}}, nil},
	{"trailer", "", nil, http.Header{"X-Api-Key": {stranger}}},
	{"trailer of a harmless name", "", nil, http.Header{"X-Sum": {"ghp_0123456789abcdefghijABCDEFGHIJ012345"}}},
}

func (b *pinned) send(t *testing.T, url string, h, trailer http.Header) (int, gateway.Denial) {
	t.Helper()
	method, body := "GET", io.Reader(nil)
	if trailer != nil {
		method, body = "POST", io.NopCloser(strings.NewReader("x"))
	}
	req, err := http.NewRequestWithContext(b.Ctx(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range h {
		req.Header[name] = v
	}
	req.Trailer = trailer
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	var out struct{ Error gateway.Denial }
	json.Unmarshal(text, &out)
	return res.StatusCode, out.Error
}

// TestX49OtherAuthenticationIsDenied: to a host that a lent credential is for, no
// request passes with a key that a program brought, wherever it is in the request,
// on whatever path, port, scheme and version of HTTP; each is recorded.
func TestX49OtherAuthenticationIsDenied(t *testing.T) {
	for _, two := range []bool{false, true} {
		b := newPinned(t, pinPolicy(), trk("x-api-key: {secret}"))
		b.client.Transport.(*http.Transport).ForceAttemptHTTP2 = two
		for _, base := range []string{"https://api.test/v1/x", "https://api.test/elsewhere", "http://api.test/v1/x", "https://api.test:8443/v1/x"} {
			for _, w := range strangers {
				// Elsewhere the placeholder is denied itself, and another path may have another rule.
				if base != "https://api.test/v1/x" && (strings.HasPrefix(w.name, "placeholder") || w.name == "rewritten URL") || two && base != "https://api.test/v1/x" {
					continue
				}
				status, denial := b.send(t, base+w.url, w.header, w.trailer)
				if w.trailer != nil {
					// The library's server ends an HTTP/2 connection when trailers come
					// for a request that was refused meanwhile.
					b.client.CloseIdleConnections()
				}
				if status != http.StatusForbidden || denial.Kind != "denied" || denial.RequestID == "" && w.trailer == nil {
					t.Errorf("%s, %s: %d %+v", base, w.name, status, denial)
				}
				pin := denial.Rule == "pin" && strings.Contains(denial.Reason, "pin: false") && strings.Contains(denial.Line, "pin: false")
				if !pin && !(denial.Rule == "credential" && strings.Contains(fmt.Sprint(w.header), trkHeld)) {
					t.Errorf("%s, %s: the denial says %+v", base, w.name, denial)
				}
				b.Events.Wait(t, w.name, func(e gatewaytest.Event) bool {
					return e.Kind == "decision" && e.Decided.Decision.Effect == cell.Deny && e.Decided.Decision.Reason == denial.Reason
				})
			}
		}
		for _, r := range b.take() {
			if r.Trailer == nil {
				t.Errorf("arrived: %s %s %v", r.Method, r.URL, r.Header)
			}
			for _, v := range r.Trailer {
				if len(v) > 0 {
					t.Errorf("arrived: the trailers %v", r.Trailer)
				}
			}
		}
		if used := b.Events.All(func(e gatewaytest.Event) bool {
			return e.Kind == "flow" && e.Flow.Secret != "" && e.Flow.Status == http.StatusOK
		}); len(used) > 0 {
			t.Errorf("told as put in: %+v", used)
		}
		if s := b.Events.Text(); strings.Contains(s, trkValue) {
			t.Error("the value is in the events")
		}
	}
	// The user of an absolute URL, which no client of net/http sends.
	b := newPinned(t, pinPolicy(), trk("x-api-key: {secret}"))
	c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, "api.test:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "GET http://me:%s@api.test/v1/x HTTP/1.1\r\nHost: api.test\r\n\r\n", stranger)
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != http.StatusForbidden || len(b.take()) > 0 {
		t.Errorf("the user in the URL: %v, %v", res, err)
	}
}

// TestX49OwnCredentialPasses: agents and tools send the placeholder in their own
// ways, with much besides, and each arrives with the value.
func TestX49OwnCredentialPasses(t *testing.T) {
	uuid := "3f2b8c1e-9a4d-4e7f-8b6a-1c2d3e4f5a6b"
	claude := http.Header{
		"Anthropic-Beta": {"claude-code-20250219,oauth-2025-04-20,interleaved-thinking-2025-05-14,context-management-2025-06-27"}, "Anthropic-Version": {"2023-06-01"},
		"Anthropic-Dangerous-Direct-Browser-Access": {"true"}, "X-App": {"cli"}, "User-Agent": {"claude-cli/2.1.40 (external, sdk-cli)"}, "X-Stainless-Arch": {"x64"},
		"X-Stainless-Runtime-Version": {"v24.3.0"}, "X-Stainless-Timeout": {"600"}, "X-Claude-Code-Session-Id": {uuid}, "X-Client-Request-Id": {uuid}, "Content-Type": {"application/json"},
		"Accept-Encoding": {"gzip, deflate, br, zstd"},
	}
	with := func(h http.Header, name, v string) http.Header {
		h = h.Clone()
		h[name] = append(h[name], v)
		return h
	}
	codex := http.Header{"Originator": {"codex_cli_rs"}, "Session_id": {uuid}, "Conversation_id": {uuid}, "Openai-Beta": {"responses=experimental"}, "Version": {"0.98.0"}, "User-Agent": {"codex_cli_rs/0.98.0 (Debian 13.0.0; x86_64) dumb"},
		"X-Codex-Turn-State": {"gAAAAABo1q2w3e4r5t6y7u8i9o0p"}, "Cookie": {"__cf_bm=abcDEF0123456789abcdef; _cfuvid=xyz"}}
	session := "ses_de0f9180dfferdsDkWLVLpwi5P"
	opencode := http.Header{"Originator": {"opencode"}, "Session-Id": {session}, "X-Session-Affinity": {session}, "X-Session-Id": {session}, "User-Agent": {"opencode/1.18.33 (linux 6.18.44; x64) ai-sdk/provider-utils/4.0.40 runtime/bun/1.3.14"}}
	gemini := http.Header{"X-Goog-Api-Client": {"google-genai-sdk/1.30.0 gl-node/v24.3.0"}, "User-Agent": {"GeminiCLI/0.28.0/gemini-2.5-pro (linux; x64)"}}
	npm := http.Header{"Npm-Session": {"0a1b2c3d4e5f60718293a4b5c6d7e8f9"}, "Npm-Command": {"publish"}, "Npm-Auth-Type": {"web"}, "Pacote-Req-Type": {"packument"}, "User-Agent": {"npm/11.6.0 node/v24.3.0 linux x64 workspaces/false"}}
	trace := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "X-Request-Id": {"0af7651916cd43dd8448eb211c80319c"}, "Idempotency-Key": {"stainless-node-retry-0af7651916cd43dd8448eb21"}, "If-None-Match": {`"0af7651916cd43dd8448eb211c80319c"`}}
	for _, x := range []struct {
		name, as, query string
		header          http.Header
		want            [2]string
	}{
		{"Claude Code with a key", "x-api-key: {secret}", "?beta=true", with(claude, "X-Api-Key", trkHeld), [2]string{"X-Api-Key", trkValue}},
		{"Claude Code with a subscription", "Authorization: Bearer {secret}", "?beta=true", with(claude, "Authorization", "Bearer "+trkHeld), [2]string{"Authorization", "Bearer " + trkValue}},
		{"Codex", "Authorization: Bearer {secret}", "", with(codex, "Authorization", "Bearer "+trkHeld), [2]string{"Authorization", "Bearer " + trkValue}},
		{"opencode", "Authorization: Bearer {secret}", "", with(opencode, "Authorization", "Bearer "+trkHeld), [2]string{"Authorization", "Bearer " + trkValue}},
		{"Gemini CLI", "x-goog-api-key: {secret}", "?alt=sse", with(gemini, "X-Goog-Api-Key", trkHeld), [2]string{"X-Goog-Api-Key", trkValue}},
		{"Gemini by ?key=", "x-goog-api-key: {secret}", "?key=" + trkHeld + "&alt=sse", gemini, [2]string{"X-Goog-Api-Key", trkValue}},
		{"git", "Authorization: Basic {basic:x-access-token}", "?service=git-upload-pack", http.Header{"Authorization": {basicOf("x-access-token:" + trkHeld)}, "Git-Protocol": {"version=2"}}, [2]string{"Authorization", basicOf("x-access-token:" + trkValue)}},
		{"git, user in the URL", "Authorization: Bearer {secret}", "", http.Header{"Authorization": {basicOf("octocat:" + trkHeld)}}, [2]string{"Authorization", basicOf("octocat:" + trkValue)}},
		{"npm", "Authorization: Bearer {secret}", "", with(npm, "Authorization", "Bearer "+trkHeld), [2]string{"Authorization", "Bearer " + trkValue}},
		{"gh", "Authorization: Bearer {secret}", "?per_page=100&page=2", http.Header{"Authorization": {"token " + trkHeld}, "X-Github-Api-Version": {"2022-11-28"}, "Time-Zone": {"Etc/UTC"}}, [2]string{"Authorization", "token " + trkValue}},
		{"cargo", "Authorization: {secret}", "", http.Header{"Authorization": {trkHeld}}, [2]string{"Authorization", trkValue}},
		{"a user alone", "Authorization: Bearer {secret}", "", http.Header{"Authorization": {basicOf(trkHeld + ":")}}, [2]string{"Authorization", basicOf(trkValue + ":")}},
		{"nothing", "x-api-key: {secret}", "?page_token=abc&sort_key=name&cursor=0af7651916cd43dd8448eb211c80319c", trace, [2]string{"X-Api-Key", trkValue}},
		{"an empty header", "x-api-key: {secret}", "", http.Header{"X-Api-Key": {""}}, [2]string{"X-Api-Key", trkValue}},
	} {
		b := newPinned(t, pinPolicy(), trk(x.as))
		if status, denial := b.send(t, "https://api.test/v1/messages"+x.query, x.header, nil); status != http.StatusOK {
			t.Errorf("%s: %d %+v", x.name, status, denial)
			continue
		}
		r := b.take()[0]
		if got := r.Header.Values(x.want[0]); len(got) != 1 || got[0] != x.want[1] || strings.Contains(fmt.Sprint(r.URL, r.Header), trkHeld) {
			t.Errorf("%s: arrived %s %v", x.name, r.URL, r.Header)
		}
		f := b.Events.Wait(t, "flow", func(e gatewaytest.Event) bool { return e.Kind == "flow" }).Flow
		if f.Secret != "trk" || f.Without != "" {
			t.Errorf("%s: the flow says %+v", x.name, f)
		}
	}
}

// TestX49RecordSaysWhatWasPutIn: a credential is told as put in where it was, and
// where a host of its got none, this is told.
func TestX49RecordSaysWhatWasPutIn(t *testing.T) {
	p := pinPolicy()
	p.Unpinned = []string{"trk"}
	b := newPinned(t, p, trk("x-api-key: {secret}"))
	for path, x := range map[string]struct {
		header       http.Header
		put, without string
		arrives      string
	}{
		"/v1/own":    {http.Header{"X-Api-Key": {trkHeld}}, "trk", "", trkValue},
		"/v1/none":   {nil, "trk", "", trkValue},
		"/v1/other":  {http.Header{"X-Api-Key": {stranger}}, "", "trk", stranger},
		"/health":    {nil, "", "trk", ""},
		"/v1/beside": {http.Header{"Authorization": {"Bearer " + stranger}}, "trk", "", trkValue},
	} {
		if status, denial := b.send(t, "https://api.test"+path, x.header, nil); status != http.StatusOK {
			t.Errorf("%s with pin: false: %d %+v", path, status, denial)
			continue
		}
		if got := b.take()[0].Header.Get("X-Api-Key"); got != x.arrives {
			t.Errorf("%s: arrived %q", path, got)
		}
		d := b.Decided(cell.Allow, func(a cell.Access) bool { return a.Act == cell.Request && a.Path == path })
		f := b.Events.Wait(t, "flow", func(e gatewaytest.Event) bool { return e.Kind == "flow" && e.Flow.Path == path }).Flow
		if d.Decision.Credential != x.put || f.Secret != x.put || f.Without != x.without {
			t.Errorf("%s: decided with %q; the flow says %q, without %q", path, d.Decision.Credential, f.Secret, f.Without)
		}
	}
	// A host that no credential is for is none of this; and what never left the
	// cell was put into nothing.
	b = newPinned(t, pinPolicy(), trk("x-api-key: {secret}"))
	if status, _ := b.send(t, "https://free.test/v1/x?key=mine", http.Header{"X-Api-Key": {stranger}}, nil); status != http.StatusOK {
		t.Errorf("a host that is not pinned: %d", status)
	}
	p = pinPolicy()
	p.Rules[0].Host, p.Rules[1].Host = "down.test", "down.test"
	lent := trk("x-api-key: {secret}")
	lent.For = []string{"https://down.test/**"}
	b = newPinned(t, p, lent)
	b.Record("down.test. 60 IN A 203.0.113.9")
	if status, _ := b.send(t, "https://down.test/v1/x", nil, nil); status != http.StatusBadGateway {
		t.Errorf("a host that is down: %d", status)
	}
	if f := b.Events.Wait(t, "flow", func(e gatewaytest.Event) bool { return e.Kind == "flow" }).Flow; f.Secret != "" {
		t.Errorf("what never left the cell is told as put in: %+v", f)
	}
}

// TestX49TLSIsOpenedOnEveryPort: where the policy itself has no reason to look
// into TLS to a host, a credential for that host is one, also for connections that
// were there before it was lent.
func TestX49TLSIsOpenedOnEveryPort(t *testing.T) {
	p := gatewaytest.Policy{Rules: []gatewaytest.Rule{{Effect: cell.Allow, Host: "api.test", Ports: []uint16{443, 8443}}}}
	b := newPinned(t, p)
	own := http.Header{"Authorization": {"Bearer " + stranger}}
	c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, "api.test:8443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	early := tls.Client(c, &tls.Config{ServerName: "api.test", RootCAs: b.Trust})
	if err := early.Handshake(); err != nil {
		t.Fatal(err)
	}
	if status, _ := b.send(t, "https://api.test:8443/v1/x", own, nil); status != http.StatusOK || len(b.take()) != 1 {
		t.Errorf("before a credential is lent: %d", status)
	}
	b.client.CloseIdleConnections()
	if err := b.Gateway.Govern(gatewaytest.With(p, trk("x-api-key: {secret}"))(b.World, b.Authority)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(early, "GET /v1/early HTTP/1.1\r\nHost: api.test\r\nAuthorization: Bearer "+stranger+"\r\n\r\n")
	if n, err := early.Read(make([]byte, 1)); err == nil {
		t.Errorf("a connection that was passed through goes on: %d bytes", n)
	}
	for _, port := range []string{"", ":8443"} {
		if status, denial := b.send(t, "https://api.test"+port+"/v1/x", own, nil); status != http.StatusForbidden || denial.Rule != "pin" {
			t.Errorf("port %q: %d %+v", port, status, denial)
		}
	}
	if r := b.take(); len(r) > 0 {
		t.Errorf("arrived: %s %v", r[0].URL, r[0].Header)
	}
}
