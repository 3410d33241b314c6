package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/internal/testenv"
)

// REST, E2B's routes and MCP answer over HTTP/2, at one address and on one connection, with
// streams that stay open beside each other.
func TestHTTP2AtEveryDoor(t *testing.T) {
	t.Parallel()
	testenv.Python(t)
	h := newHost(t)
	s := serving(t, h)
	key := secret(t, h, "run")
	ctx, cancel := context.WithTimeout(t.Context(), 3*testenv.Patience())
	defer cancel()

	var dialled atomic.Int64
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	ask := func(method, path, host, body string, header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, method, s.URLs[0]+path, strings.NewReader(body))
		must(t, err)
		r.Host = host
		resp := done(t, tr, r, header...)
		if resp.ProtoMajor != 2 {
			t.Fatalf("%s %s is answered over %s", method, path, resp.Proto)
		}
		return resp
	}

	var box e2bBox
	must(t, json.NewDecoder(ask("POST", "/v2/sandboxes", "", `{"templateID":"base","timeout":300}`, "X-Api-Key", key, "Content-Type", "application/json").Body).Decode(&box))
	envd := box.header()
	ask("POST", "/files?path=greeting", "", "hello\n", append(envd, "Content-Type", "application/octet-stream")...)

	// A stream that stays open while all else is asked for: a server in the sandbox.
	resp := ask("POST", "/process.Process/Start", "", startMessage("python3", "-u", "-m", "http.server", "8000"), append(envd, "Content-Type", "application/connect+json")...)
	said := readUntil(t, resp.Body, func(b []byte) bool { return bytes.Contains(b, []byte(`"data"`)) })
	if !bytes.Contains(said, []byte(`"start"`)) {
		t.Errorf("the stream begins with %q", said)
	}
	resp = ask("GET", "/greeting", fmt.Sprintf("8000-%s.localhost", box.SandboxID), "", "X-Access-Token", box.EnvdAccessToken)
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "hello\n" {
		t.Errorf("the server in the sandbox answers %q, %v", b, err)
	}

	// MCP with a session, which keeps a stream of its own open.
	session, err := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: s.URLs[0] + "/mcp", HTTPClient: &http.Client{Transport: bearer{tr, key, t}},
	}, nil)
	must(t, err)
	defer session.Close()
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"cell": box.SandboxID, "shell": "cat greeting"}})
	must(t, err)
	if text := fmt.Sprint(res.StructuredContent); res.IsError || !strings.Contains(text, "hello") {
		t.Errorf("MCP's exec: %s %v", text, res.Content)
	}

	var cell struct{ Cell, State string }
	must(t, json.NewDecoder(ask("GET", "/v1/cells/"+box.SandboxID, "", "", "Authorization", "Bearer "+key).Body).Decode(&cell))
	if cell.Cell != box.SandboxID || cell.State != "running" {
		t.Errorf("REST: %+v", cell)
	}
	ask("DELETE", "/sandboxes/"+box.SandboxID, "", "", "X-Api-Key", key)
	if n := dialled.Load(); n != 1 {
		t.Errorf("all of this took %d connections", n)
	}
}

// done sends a request with names and values of its header, and returns its answer, which is no
// error.
func done(t *testing.T, by http.RoundTripper, r *http.Request, header ...string) *http.Response {
	t.Helper()
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := by.RoundTrip(r)
	must(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode/100 != 2 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s: %s: %s", r.Method, r.URL.Path, resp.Status, b)
	}
	return resp
}

// e2bBox is a sandbox as E2B's clients know it.
type e2bBox struct{ SandboxID, EnvdAccessToken string }

// header has names and values of requests to the daemon in the sandbox.
func (b e2bBox) header() []string {
	return []string{"E2b-Sandbox-Id", b.SandboxID, "E2b-Sandbox-Port", "49983", "X-Access-Token", b.EnvdAccessToken}
}

// startMessage is the body of a request that starts a process, by the Connect protocol.
func startMessage(program string, args ...string) string {
	b, _ := json.Marshal(map[string]any{"process": map[string]any{"cmd": program, "args": args}, "stdin": false}) // text can be marshalled
	n := len(b)
	return string([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + string(b)
}

// bearer sends a token, and takes no answer but of HTTP/2.
type bearer struct {
	http.RoundTripper
	secret string
	t      *testing.T
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.secret)
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil && resp.ProtoMajor != 2 {
		b.t.Errorf("%s %s is answered over %s", r.Method, r.URL.Path, resp.Proto)
	}
	return resp, err
}

// readUntil reads what comes until it is enough.
func readUntil(t *testing.T, r io.Reader, enough func([]byte) bool) (all []byte) {
	t.Helper()
	b := make([]byte, 4096)
	for !enough(all) {
		n, err := r.Read(b)
		all = append(all, b[:n]...)
		if err != nil {
			t.Fatalf("%v after %q", err, all)
		}
	}
	return all
}
