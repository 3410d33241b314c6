package e2e

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// subscription is a login of Codex with ChatGPT, as its program keeps it.
func subscription(expires time.Time, signature string) (token, file string) {
	part := func(v any) string {
		b, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	token = part(map[string]any{"alg": "RS256", "kid": "k1", "typ": "JWT"}) + "." + part(map[string]any{
		"exp": expires.Unix(), "iat": 1700000000, "iss": "https://auth.openai.com", "sub": "auth0|0123456789abcdef",
		"https://api.openai.com/auth":    map[string]any{"chatgpt_account_id": account, "chatgpt_plan_type": "plus", "chatgpt_user_id": "user-1", "user_id": "user-1"},
		"https://api.openai.com/profile": map[string]any{"email": "user@example.com", "email_verified": true},
	}) + "." + signature
	b, _ := json.Marshal(map[string]any{
		"auth_mode": "chatgpt", "OPENAI_API_KEY": nil, "last_refresh": time.Now().UTC().Format(time.RFC3339),
		"tokens": map[string]any{"id_token": token, "access_token": token, "refresh_token": "rt_not-a-real-one-0123456789", "account_id": account},
	})
	return token, string(b)
}

const account = "0b7d8c4e-6a51-4f3e-9d20-3c1a5e7f9b24"

// TestAgentsChatGPT starts Codex as it comes from npm with the login that its program has with ChatGPT on
// this host: the cell has a token of its claims that is good for nothing. Before each request Codex asks
// where the account's work is done; the form of that answer is that of openai/codex 0.171.0.
func TestAgentsChatGPT(t *testing.T) {
	prog := agentProgram(t, "E2E_CODEX", "codex")
	if !ownNetwork(t) {
		return
	}
	token, file := subscription(time.Now().Add(time.Hour), strings.Repeat("not-a-real-signature_", 16))
	s := openAI(token, "exec_command", map[string]any{"cmd": friendlier})
	model := s.answer
	s.authorised = func(r *http.Request) bool {
		return r.Header.Get("Authorization") == "Bearer "+token && r.Header.Get("Chatgpt-Account-Id") == account
	}
	s.answer = func(w http.ResponseWriter, path string, body []byte) {
		if path != "/backend-api/wham/accounts/check" {
			model(w, path, body)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"accounts":[{"id":"`+account+`","structure":"personal","workspace_backend_origin":"NO_CONSTRAINT","account_routing_override":"NO_CONSTRAINT"}],"account_ordering":["`+account+`"],"default_account_id":"`+account+`"}`)
	}
	h := scripted(t, prog, s, "chatgpt.com")
	auth := filepath.Join(h.work, "home", ".codex", "auth.json")
	must(t, os.MkdirAll(filepath.Dir(auth), 0o700))
	must(t, os.WriteFile(auth, []byte(file), 0o600))
	if o := h.pando("login", "codex", "--from-host"); !strings.Contains(o, "credential chatgpt") || strings.Contains(o, token) {
		t.Errorf("the login says %s", o)
	}
	h.works("codex", "codex at a terminal", [3]string{"/quit", "/quit", "\r"}, "permissions: YOLO mode", "Ask Codex to do anything")

	// The value is nowhere in the cell, nor is what refreshes it.
	cell := h.runs()[0].CellName
	for _, secret := range []string{"not-a-real-signature", "rt_not-a-real-one", token[:64]} {
		if r := h.try("exec", "-n", cell, "--", "sh", "-c", "env | grep -F -e "+secret+"; grep -rlF -e "+secret+" ~ . 2>/dev/null"); r.out != "" {
			t.Errorf("%s is in the cell: %s", secret, r.out)
		}
	}
	// When it has expired, the error says what to do; when the program has refreshed it, all goes on.
	_, old := subscription(time.Now().Add(-time.Hour), strings.Repeat("not-a-real-signature_", 16))
	must(t, os.WriteFile(auth, []byte(old), 0o600))
	if r := h.try("codex", "--cell", cell, "--prompt", "Again."); r.code == 0 || !strings.Contains(r.stderr, "run `codex` once on this host") {
		t.Errorf("with an expired token: %+v", r)
	}
	must(t, os.WriteFile(auth, []byte(file), 0o600))
	h.write("greet.sh", "echo Hello\n")
	h.pando("codex", "--cell", cell, "--continue", "--prompt", "Again.")
}

// TestAgentsGoogle starts Gemini CLI as it comes from npm with the login that its program has with a Google
// account on this host.
func TestAgentsGoogle(t *testing.T) {
	prog := agentProgram(t, "E2E_GEMINI", "gemini")
	if !ownNetwork(t) {
		return
	}
	const token = "ya29.not-a-real-token-but-as-long-as-one-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	file := func(expires time.Time) []byte {
		b, _ := json.Marshal(map[string]any{"access_token": token, "refresh_token": "1//not-a-real-one-0123456789", "token_type": "Bearer", "scope": "openid", "expiry_date": expires.UnixMilli()})
		return b
	}
	s := googleAI("")
	model := s.answer
	s.authorised = func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+token }
	s.answer = func(w http.ResponseWriter, path string, body []byte) {
		say := func(text string) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, text)
		}
		switch method := strings.TrimPrefix(path, "/v1internal:"); {
		case strings.HasSuffix(method, "enerateContent"):
			model(w, path, body)
		case method == "loadCodeAssist":
			say(`{"currentTier":{"id":"free-tier","name":"Free"},"cloudaicompanionProject":"project-1"}`)
		case path == "/oauth2/v2/userinfo":
			say(`{"email":"user@example.com"}`)
		default:
			say(`{}`)
		}
	}
	h := scripted(t, prog, s, "cloudcode-pa.googleapis.com", "www.googleapis.com")
	at := filepath.Join(h.work, "home", ".gemini", "oauth_creds.json")
	must(t, os.MkdirAll(filepath.Dir(at), 0o700))
	must(t, os.WriteFile(at, file(time.Now().Add(time.Hour)), 0o600))
	if o := h.pando("login", "gemini", "--from-host"); !strings.Contains(o, "credential google") || strings.Contains(o, token) {
		t.Errorf("the login says %s", o)
	}
	h.works("gemini", "gemini", [3]string{"\x03", "again to exit", "\x03"}, "Type your message")
	cell := h.runs()[0].CellName
	must(t, os.WriteFile(at, file(time.Now().Add(-time.Hour)), 0o600))
	if r := h.try("gemini", "--cell", cell, "--prompt", "Again."); r.code == 0 || !strings.Contains(r.stderr, "run `gemini` once on this host") {
		t.Errorf("with an expired token: %+v", r)
	}
}
