package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// grants is a service that gives a token for a code, as Claude Code's does (RFC 6749, 4.1.3, with
// RFC 7636): the code is that of the last page of a browser.
type grants struct {
	code, token string

	mu   sync.Mutex
	saw  []string // method, host and path of each request
	form map[string]any
	used string // the last header Authorization
}

func (s *grants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw = append(s.saw, r.Method+" "+r.Host+r.URL.Path)
	if a := r.Header.Get("Authorization"); a != "" {
		s.used = a
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/v1/oauth/token":
		s.form = map[string]any{}
		if json.Unmarshal(body, &s.form); s.form["code"] != s.code {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"access_token": s.token, "token_type": "Bearer", "expires_in": 31536000, "scope": "user:inference"})
	case "/api/hello", "/v1/oauth/hello":
		io.WriteString(w, `{"message":"hello"}`)
	default:
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, `{"type":"error","error":{"type":"permission_error","message":"scope"}}`)
	}
}

// TestLoginBySetupToken: Claude Code's own login runs in a cell at this terminal, and the token that it
// shows at its end is stored, and is nowhere else: not on the screen, not in what pando keeps.
func TestLoginBySetupToken(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	world(t, inside4, "192.0.2.8")
	h := newHost(t)
	key, _ := newAgentKey()
	s := &grants{code: "a-code-of-a-page", token: "sk-ant-oat01-" + strings.TrimPrefix(key, "sk-ant-api03-") + "0123456789_bcdefghijklmnopqr-0123456789-0123456789-AA"} // longer than a row
	ca := newAuthority(t)
	ca.serveTLS(inside4+":443", s, "api.anthropic.com", "platform.claude.com")
	zone := newNames(t, "127.0.0.1:5300")
	zone.set("api.anthropic.com", inside4)
	zone.set("platform.claude.com", inside4)
	h.env = append(h.env, "PANDO_RESOLVER="+zone.addr, "PANDO_ROOTS="+ca.file(h), "ANTHROPIC_API_KEY="+key)
	for i, kv := range h.env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			h.env[i] = "PATH=" + filepath.Dir(prog) + ":" + path
		}
	}

	c := h.sit("login", "claude", "--setup-token")
	c.sees("Paste code here")
	shown := strings.ReplaceAll(c.text(), "\n", "")
	address, err := url.Parse(regexp.MustCompile(`https://claude\.com/\S+?state=[\w-]{43}`).FindString(shown))
	if err != nil || address.Query().Get("state") == "" {
		t.Fatalf("no address is on the screen:\n%s", c.text())
	}
	c.presses(s.code+"#"+address.Query().Get("state"), "***")
	c.types("\r")
	c.sees("Claude Code is logged in: credential anthropic, as CLAUDE_CODE_OAUTH_TOKEN")
	if code := c.ends(); code != 0 || strings.Contains(c.text(), "sk-ant-o") {
		t.Errorf("exit code %d; on the screen:\n%s", code, c.text())
	}
	s.mu.Lock()
	if len(s.saw) != 1 || s.form["redirect_uri"] != "https://platform.claude.com/oauth/code/callback" {
		t.Errorf("it asked %q, for a token with %v", s.saw, s.form)
	}
	s.mu.Unlock()
	if at := holding(h, h.work, s.token[20:]); len(at) > 0 {
		t.Errorf("the token is in %s", strings.Join(at, ", "))
	}
	if o := h.pando("ls", "--json"); strings.TrimSpace(o) != "[]" {
		t.Errorf("a cell is left:\n%s", o)
	}
	if o := h.pando("runs", "--json"); strings.TrimSpace(o) != "[]" {
		t.Errorf("there is a run:\n%s", o)
	}
	h.exits(0, "run", "--allow", "@anthropic", "--credential", "anthropic", "--", "sh", "-c", `curl -s -H "Authorization: Bearer $CLAUDE_CODE_OAUTH_TOKEN" https://api.anthropic.com/v1/me`)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used != "Bearer "+s.token {
		t.Errorf("a cell that it is lent to sends %q, and the token is %q", s.used, s.token)
	}
}
