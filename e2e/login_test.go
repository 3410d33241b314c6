package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// TestLoginAtATerminal: at a terminal it asks from where the key comes, and shows none of it.
func TestLoginAtATerminal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	key, _ := newAgentKey()
	s := h.sit("login", "claude")
	s.sees("Claude Code's key (not shown):")
	s.types(key + "\r")
	s.sees("Claude Code is logged in: credential anthropic, as ANTHROPIC_API_KEY")
	if code := s.ends(); code != 0 || strings.Contains(s.text(), key[:20]) {
		t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}

	token := "sk-ant-oat01-" + key
	h.env = append(h.env, "CLAUDE_CODE_OAUTH_TOKEN="+token)
	s = h.sit("login", "claude")
	s.sees("1  the variable CLAUDE_CODE_OAUTH_TOKEN of this shell")
	s.sees("which? [1]")
	s.types("\r")
	s.sees("as CLAUDE_CODE_OAUTH_TOKEN, for https://api.anthropic.com/**")
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}
	for _, value := range []string{key, token} {
		if at := holding(h, h.work, value); len(at) > 0 {
			t.Errorf("the value is in %s", strings.Join(at, ", "))
		}
	}
}

// tokens is a service with one login: an answer costs the newest access token, and a refresh token is good for
// one use. A second use of one, or an unknown one, takes the login back, as OAuth's servers do (RFC 9700, 4.14).
type tokens struct {
	mu              sync.Mutex
	n               int
	access, refresh string
	refreshes       []string // addresses of the servers that were asked for new tokens
	misplaced       bool     // a refresh token was in another request
	reused          bool
}

// next makes the login's next pair of tokens.
func (s *tokens) next() (access, refresh string) {
	key, _ := newAgentKey()
	s.n++
	s.access = "sk-ant-oat01-" + key[13:]
	s.refresh = fmt.Sprintf("sk-ant-ort01-%d-%s", s.n, key[20:60])
	return s.access, s.refresh
}

func (s *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path == "/v1/oauth/token" {
		s.refreshes = append(s.refreshes, fmt.Sprint(r.Context().Value(http.LocalAddrContextKey)))
		if s.reused = s.reused || !strings.Contains(string(body), `"`+s.refresh+`"`); s.reused {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		access, refresh := s.next()
		json.NewEncoder(w).Encode(map[string]any{"access_token": access, "refresh_token": refresh})
		return
	}
	if s.misplaced = s.misplaced || strings.Contains(fmt.Sprint(r.Header, r.URL, string(body)), "sk-ant-ort"); s.reused || r.Header.Get("Authorization") != "Bearer "+s.access {
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// TestLoginOfTheHost: two cells and the program of the host live on one login. Its service takes it back when a
// refresh token is used twice. When it has expired, requests of the cells are refused with what renews it; the
// program alone refreshes it, and all three go on. The value is nowhere in the cells nor in what is stored.
func TestLoginOfTheHost(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	world(t, inside4, "192.0.2.8")
	h := newHost(t)
	s := &tokens{}
	ca := newAuthority(t)
	ca.serveTLS(inside4+":443", s, "api.anthropic.com", "platform.claude.com")
	mine, err := net.Listen("tcp", "127.0.0.1:0") // the service as the host's program reaches it
	h.must(err)
	server := &http.Server{Handler: s}
	go server.Serve(mine)
	t.Cleanup(func() { server.Close() })
	zone := newNames(t, "127.0.0.1:5300")
	zone.set("api.anthropic.com", inside4)
	zone.set("platform.claude.com", inside4)
	dir := filepath.Join(h.work, "login")
	h.must(os.Mkdir(dir, 0o700))
	h.env = append(h.env, "PANDO_RESOLVER="+zone.addr, "PANDO_ROOTS="+ca.file(h), "CLAUDE_CONFIG_DIR="+dir)

	// The host's program: it writes its file, and uses what it has.
	var access, refresh string
	var values []string
	save := func(expires time.Time) {
		t.Helper()
		values = append(values, access, refresh)
		b, err := json.Marshal(map[string]any{"claudeAiOauth": map[string]any{"accessToken": access, "refreshToken": refresh, "expiresAt": expires.UnixMilli()}})
		h.must(err)
		h.must(os.WriteFile(filepath.Join(dir, "new"), b, 0o600))
		h.must(os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, ".credentials.json")))
	}
	ask := func(path, token, body string) (status int, answer map[string]string) {
		t.Helper()
		r, err := http.NewRequest("POST", "http://"+mine.Addr().String()+path, strings.NewReader(body))
		h.must(err)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		h.must(err)
		defer resp.Body.Close()
		json.NewDecoder(resp.Body).Decode(&answer)
		return resp.StatusCode, answer
	}
	renew := func(with string) (status int) {
		t.Helper()
		status, got := ask("/v1/oauth/token", "", `{"grant_type":"refresh_token","refresh_token":"`+with+`"}`)
		if status == http.StatusOK {
			access, refresh = got["access_token"], got["refresh_token"]
		}
		return status
	}

	later := time.Now().Add(24 * time.Hour)
	s.mu.Lock()
	access, refresh = s.next()
	s.mu.Unlock()
	first := refresh
	save(later)
	h.pando("login", "claude", "--from-host")
	cells := []string{"one", "two"}
	for _, name := range cells {
		h.pando("run", "--detach", "--cell", name, "--allow", "@anthropic", "--credential", "anthropic", "--", "sleep", "1000")
	}
	asks := func(name string) string {
		return h.try("exec", "-n", name, "--", "sh", "-c", `curl -s -m 9 -w ' %{http_code}' -H "Authorization: Bearer $CLAUDE_CODE_OAUTH_TOKEN" https://api.anthropic.com/v1/messages/count_tokens -d '{}'`).out
	}
	all := func(status, text string) {
		t.Helper()
		for _, name := range cells {
			var o string
			testenv.Eventually(t, func() bool {
				o = asks(name)
				return strings.HasSuffix(o, " "+status) && strings.Contains(o, text)
			}, "status "+status+" for cell "+name)
		}
	}
	for range 2 {
		all("200", "")
		save(time.Now().Add(-time.Minute))
		all("403", "run `claude` once on this host, then go on")
		if status := renew(refresh); status != http.StatusOK {
			t.Fatalf("the host's program got status %d", status)
		}
		save(later)
		all("200", "")
		if status, _ := ask("/v1/messages/count_tokens", access, "{}"); status != http.StatusOK {
			t.Errorf("the host's program got status %d", status)
		}
	}

	// No token is in the cells; the placeholder is found the same way.
	search := func(name, pattern string) string {
		return h.pando("exec", "-n", name, "--", "sh", "-c", `if env | grep -q "$0" || cat /proc/[0-9]*/environ 2>/dev/null | grep -aq "$0" || grep -rqs -D skip "$0" "$HOME" . /tmp; then echo found; else echo none; fi`, pattern)
	}
	kept := strings.TrimSpace(h.pando("exec", "-n", "one", "--", "sh", "-c", `printf %s "$CLAUDE_CODE_OAUTH_TOKEN" | tee kept`))
	if got := search("one", "[s]"+kept[1:]); got != "found\n" {
		t.Errorf("the placeholder %q: %s", kept, got)
	}
	for _, name := range cells {
		for _, value := range values {
			if got := search(name, "[s]"+value[1:]); got != "none\n" {
				t.Errorf("cell %s has %.20s…", name, value)
			}
		}
	}
	s.mu.Lock()
	refreshes, misplaced, reused := slices.Clone(s.refreshes), s.misplaced, s.reused
	s.mu.Unlock()
	if want := []string{mine.Addr().String(), mine.Addr().String()}; !slices.Equal(refreshes, want) || misplaced || reused {
		t.Errorf("refreshes at %q, want %q; in another request: %v; reused: %v", refreshes, want, misplaced, reused)
	}
	// A second refresher would have ended all that: the first token again takes the login back.
	if status := renew(first); status != http.StatusBadRequest {
		t.Errorf("a used refresh token: status %d", status)
	}
	all("401", "")

	// None is in what is stored either, among that the checkpoints.
	if at := holding(h, filepath.Join(h.work, ".pando"), kept); len(at) == 0 {
		t.Error("the placeholder is in no file of the cell: what is searched is elsewhere")
	}
	h.pando("stop", "one", "two")
	for _, name := range cells {
		h.pando("checkpoint", name)
	}
	for _, value := range values {
		if at := holding(h, filepath.Join(h.work, ".pando"), value); len(at) > 0 {
			t.Errorf("%.20s… is in %s", value, strings.Join(at, ", "))
		}
	}
}
