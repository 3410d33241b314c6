package credential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// withLogins opens a store that reads login files.
func (d dirs) withLogins(t testing.TB) *Store {
	t.Helper()
	return d.withOpen(t, os.Open)
}

func (d dirs) withOpen(t testing.TB, open func(string) (*os.File, error)) *Store {
	t.Helper()
	s, err := Open(Config{Dir: durable.Disk(d.dir), Keys: durable.Disk(d.keys), Open: open})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// claudeFile is a login file of Claude Code's, with expiry in seconds since 1970.
func claudeFile(access string, expires int64) string {
	return fmt.Sprintf(`{"claudeAiOauth":{"accessToken":%q,"refreshToken":"sk-ant-ort01-never-read","expiresAt":%d}}`, access, expires*1000)
}

// A login's value is what its file says now, and is stored nowhere.
func TestLoginFile(t *testing.T) {
	const one, two = "sk-ant-oat01-1111111111111111", "sk-ant-oat01-2222222222222222"
	d, dir := newDirs(t), t.TempDir()
	at := filepath.Join(dir, "file")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(at+".new", []byte(text), 0o600), os.Rename(at+".new", at)); err != nil {
			t.Fatal(err)
		}
	}
	s := d.withLogins(t)
	login := &Login{Program: "claude", Path: at}
	if _, err := s.Add(Credential{Name: "anthropic", Login: login}, Secret{}, false); cell.KindOf(err) != cell.Unavailable || !strings.Contains(fmt.Sprint(err), "cannot read the login in "+at+": ") || !strings.Contains(cell.HintOf(err), "log in with `claude`") {
		t.Errorf("without a file: %v", err)
	}
	write(claudeFile(one, 32503680000))
	c, err := s.Add(Credential{Name: "anthropic", Login: login}, Secret{}, false)
	if err != nil || c.Env[0] != "CLAUDE_CODE_OAUTH_TOKEN" || c.Expires.Year() != 3000 {
		t.Fatalf("%+v, %v", c, err)
	}
	of := func(c Credential) string { return c.Lend("a-placeholder", NewSecret(one))[0].Login }
	elsewhere := c
	if elsewhere.Login = (&Login{Program: "claude", Path: at + "2"}); of(c) == "" || of(c) == of(elsewhere) || strings.Contains(of(c), "/") {
		t.Errorf("the gateway is told %q, of another file %q", of(c), of(elsewhere))
	}
	value := func(s *Store, want string) {
		t.Helper()
		if _, v, err := s.Get("anthropic"); v.Reveal() != want || (err == nil) != (want != "") {
			t.Errorf("the value is %q, %v; want %q", v.Reveal(), err, want)
		}
	}
	renewed := func(want bool) {
		t.Helper()
		if got := len(s.Renewed(t.Context())) == 1; got != want {
			t.Errorf("renewed: %v", got)
		}
	}
	value(s, one)
	value(d.withLogins(t), one) // after a restart
	if rec, err := s.read("anthropic"); err != nil || rec.Value != "" || *rec.Login != *login {
		t.Errorf("what is stored: %+v, %v", rec, err)
	}
	renewed(true) // cells may have been told by a daemon before this one
	renewed(false)

	write(claudeFile(two, 32503680000))
	renewed(true)
	value(s, two)
	write(claudeFile(two, 32503680000)) // as it was
	renewed(false)
	write(claudeFile(two, 1))
	renewed(true)
	if c, _, _ := s.Get("anthropic"); !c.Expired(time.Now()) || c.Expired(time.Unix(0, 0)) {
		t.Errorf("it expires at %s", c.Expires)
	}
	if _, problems, _ := s.Check("anthropic"); len(problems) != 1 || !strings.Contains(problems[0], "has expired: run `claude` once on this host") {
		t.Errorf("%q", problems)
	}

	write(`{"claudeAiOauth":{"accessTok`) // half of it
	value(s, two)
	value(d.withLogins(t), "") // it was never whole
	write(`{}`)                // logged out
	value(s, "")
	renewed(true)
	write(claudeFile(one, 32503680000))
	value(s, one)

	other := filepath.Join(t.TempDir(), "away")
	if err := errors.Join(os.Rename(dir, other), os.Symlink(other, dir)); err != nil {
		t.Fatal(err)
	}
	if _, problems, err := s.Check("anthropic"); len(problems) != 1 || !strings.Contains(problems[0], "leads through a symbolic link") {
		t.Errorf("through a link: %q, %v", problems, err)
	}
	if err := s.Remove("anthropic"); err != nil || len(s.Renewed(t.Context())) != 0 {
		t.Errorf("removed: %v", err)
	}
}

// What a login file said counts for ten seconds while it can't be read, so that no moment of its replacement ends
// requests, and no key that was taken away is lent on. A check tells at once.
func TestLoginFileForAMoment(t *testing.T) {
	const one = "sk-ant-oat01-1111111111111111"
	synctest.Test(t, func(t *testing.T) {
		at := filepath.Join(t.TempDir(), "file")
		denied := false
		s := newDirs(t).withOpen(t, func(path string) (*os.File, error) {
			if denied {
				return nil, cell.Errorf(cell.Unavailable, "test", "", "others may read it")
			}
			return os.Open(path)
		})
		write := func(text string) func() error {
			return func() error { return os.WriteFile(at, []byte(text), 0o600) }
		}
		set := func(f func() error) {
			t.Helper()
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
		whole := write(claudeFile(one, 32503680000))
		set(whole)
		if _, err := s.Add(Credential{Name: "anthropic", Login: &Login{Program: "claude", Path: at}}, Secret{}, false); err != nil {
			t.Fatal(err)
		}
		s.Renewed(t.Context())
		for _, x := range []struct {
			what, says  string
			spoil, mend func() error
		}{
			{"empty", "it is no JSON", write(""), whole},
			{"missing", "no such file", func() error { return os.Remove(at) }, whole},
			{"for others", "others may read it", func() error { denied = true; return nil }, func() error { denied = false; return nil }},
		} {
			// looks is what is seen at one tick.
			looks := func(what string, there, good, renewed bool) {
				t.Helper()
				_, v, err := s.Get("anthropic")
				if there != (v.Reveal() == one && err == nil) || !there && !strings.Contains(fmt.Sprint(err), x.says) {
					t.Errorf("%s, %s: the value is %q, %v", x.what, what, v.Reveal(), err)
				}
				if _, problems, err := s.Check("anthropic"); good != (len(problems) == 0) || !good && !strings.Contains(problems[0], x.says) {
					t.Errorf("%s, %s: %q, %v", x.what, what, problems, err)
				}
				if names := s.Renewed(t.Context()); renewed != (len(names) == 1) {
					t.Errorf("%s, %s: renewed %q", x.what, what, names)
				}
			}
			for range 3 { // each moment counts for itself
				set(x.spoil)
				looks("for a moment", true, false, false)
				time.Sleep(9 * time.Second)
				looks("for 9 s", true, false, false)
				set(x.mend)
				looks("again", true, true, false)
			}
			set(x.spoil)
			looks("for a moment", true, false, false)
			time.Sleep(10 * time.Second)
			looks("for 10 s", false, false, true)
			time.Sleep(time.Hour)
			looks("for good", false, false, false)
			set(x.mend)
			looks("in the end", true, true, true)
		}
		set(write("{}"))
		if _, v, err := s.Get("anthropic"); v.Reveal() != "" || !strings.Contains(fmt.Sprint(err), "no access token") {
			t.Errorf("logged out: %q, %v", v.Reveal(), err)
		}
	})
}

// A login that is not stored, or was, leaves nothing behind that counts for another under its name.
func TestLoginFileOfAnother(t *testing.T) {
	const one, two = "sk-ant-oat01-1111111111111111", "sk-ant-oat01-2222222222222222"
	s, dir := newDirs(t).withLogins(t), t.TempDir()
	write := func(name, text string) *Login {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return &Login{Program: "claude", Path: filepath.Join(dir, name)}
	}
	add := func(l *Login, replace bool, want cell.Kind) {
		t.Helper()
		if _, err := s.Add(Credential{Name: "anthropic", Login: l}, Secret{}, replace); cell.KindOf(err) != want {
			t.Fatal(err)
		}
	}
	value := func(want string) {
		t.Helper()
		if _, v, _ := s.Get("anthropic"); v.Reveal() != want {
			t.Errorf("the value is %q, want %q", v.Reveal(), want)
		}
	}
	a, b := write("a", claudeFile(one, 0)), write("b", claudeFile(two, 0))
	add(a, false, "")
	add(b, false, cell.Exists)
	write("a", "{") // half of it
	value(one)
	add(a, true, cell.Unavailable)

	add(b, true, "")
	write("b", "{")
	value(two)
	write("a", claudeFile(one, 0))
	add(a, true, "")
	if _, err := s.login(t.Context(), "anthropic", b); err == nil { // by a call from before
		t.Error("a file that was never whole since says something")
	}
	value(one)

	if _, err := s.Add(Credential{Name: "anthropic"}, NewSecret(sample), true); err != nil || len(s.files) != 0 {
		t.Errorf("%v; a login is left", err)
	}
}

// hung is a file system that answers or does not.
type hung struct {
	opened atomic.Int32
	gate   atomic.Pointer[chan struct{}]
}

// open opens the file that is there now, and answers when the gate is open.
func (h *hung) open(path string) (*os.File, error) {
	h.opened.Add(1)
	f, err := os.Open(path)
	if gate := h.gate.Load(); gate != nil {
		<-*gate
	}
	return f, err
}

// hang closes the gate until the returned function is called.
func (h *hung) hang() (answer func()) {
	gate := make(chan struct{})
	h.gate.Store(&gate)
	return func() {
		h.gate.Store(nil)
		close(gate)
	}
}

// A login file that does not answer is an error after three seconds, one read waits for it, and nothing
// else does.
func TestLoginFileHangs(t *testing.T) {
	const one, two = "sk-ant-oat01-1111111111111111", "sk-ant-oat01-2222222222222222"
	synctest.Test(t, func(t *testing.T) {
		at := filepath.Join(t.TempDir(), "file")
		write := func(access string) {
			t.Helper()
			if err := errors.Join(os.WriteFile(at+".new", []byte(claudeFile(access, 32503680000)), 0o600), os.Rename(at+".new", at)); err != nil {
				t.Fatal(err)
			}
		}
		var h hung
		s := newDirs(t).withOpen(t, h.open)
		takes := func(want time.Duration, what string, f func()) {
			t.Helper()
			began := time.Now()
			if f(); time.Since(began) != want {
				t.Errorf("%s takes %s, want %s", what, time.Since(began), want)
			}
		}
		login := Credential{Name: "anthropic", Login: &Login{Program: "claude", Path: at}}
		silent := func(err error) {
			t.Helper()
			if cell.KindOf(err) != cell.Unavailable || !strings.Contains(fmt.Sprint(err), "cannot read the login in "+at+": the login file does not answer: its file system takes longer than 3s") || !strings.Contains(cell.HintOf(err), "pando login claude") {
				t.Errorf("the error is %v (%s)", err, cell.HintOf(err))
			}
		}
		get := func() {
			t.Helper()
			_, _, err := s.Get("anthropic")
			silent(err)
		}
		write(one)
		if _, err := s.Add(login, Secret{}, false); err != nil {
			t.Fatal(err)
		}

		// A reading that began before the file was replaced does not count for a call after that.
		answer := h.hang()
		go s.Renewed(t.Context())
		synctest.Wait()
		write(two)
		time.AfterFunc(time.Second, answer)
		takes(time.Second, "a slow file", func() {
			if _, v, err := s.Get("anthropic"); v.Reveal() != two || err != nil {
				t.Errorf("the value is %q, %v", v.Reveal(), err)
			}
		})

		before := h.opened.Load()
		answer = h.hang()
		go s.Get("anthropic")
		synctest.Wait()
		takes(0, "all else", func() {
			_, err := s.Add(Credential{Name: "openai"}, NewSecret(sample), false)
			_, _, gerr := s.Get("openai")
			_, _, cerr := s.Check("openai")
			if err := errors.Join(err, gerr, cerr, s.Remove("openai")); err != nil || len(s.List()) != 1 {
				t.Error(err)
			}
		})
		takes(3*time.Second, "get", get)
		takes(0, "a later get", get)
		takes(0, "check", func() {
			if _, problems, err := s.Check("anthropic"); len(problems) != 1 || !strings.Contains(problems[0], "does not answer") {
				t.Errorf("%q, %v", problems, err)
			}
		})
		takes(0, "add", func() {
			_, err := s.Add(login, Secret{}, true)
			silent(err)
		})
		if got := h.opened.Load() - before; got != 1 {
			t.Errorf("%d reads wait", got)
		}
		answer()
		synctest.Wait()
		if _, v, err := s.Get("anthropic"); v.Reveal() != two || err != nil {
			t.Errorf("once it answers: %q, %v", v.Reveal(), err)
		}

		// The end of the daemon waits for none, and a credential that is removed leaves nothing behind.
		answer = h.hang()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		takes(time.Second, "an end", func() {
			if names := s.Renewed(ctx); len(names) != 0 {
				t.Errorf("renewed: %q", names)
			}
		})
		takes(0, "remove", func() {
			if err := s.Remove("anthropic"); err != nil {
				t.Error(err)
			}
		})
		answer()
		synctest.Wait()
		if len(s.files)+len(s.reads) != 0 {
			t.Errorf("left: %d states, %d reads", len(s.files), len(s.reads))
		}
	})
}

// What is no token that can be lent is refused, and no error quotes the file.
func TestLoginForms(t *testing.T) {
	const key = "sk-proj-0123456789"
	jwt := jwtOf(`{"exp":1}`)
	for _, x := range []struct{ program, service, file, want, err string }{
		{"claude", "anthropic", claudeFile("sk-ant-oat01-1", 0), "sk-ant-oat01-1", ""},
		{"claude", "anthropic", `{"claudeAiOauth":{"refreshToken":"sk-secret"}}`, "", "no access token"},
		{"claude", "anthropic", `{"claudeAiOauth":"sk-secret"}`, "", "no access token"},
		{"claude", "anthropic", `sk-secret`, "", "no JSON"},
		{"codex", "openai", `{"OPENAI_API_KEY":"` + key + `"}`, key, ""},
		{"codex", "openai", `{"OPENAI_API_KEY":null,"tokens":{"access_token":"sk-secret","refresh_token":"sk-secret"}}`, "", "login with ChatGPT"},
		{"codex", "openai", `{"OPENAI_API_KEY":["sk-secret"]}`, "", "not known"},
		{"codex", "openai", `{}`, "", "no API key"},
		{"codex", "chatgpt", `{}`, "", "no login with ChatGPT"},
		{"codex", "openai", `{"OPENAI_API_KEY":"` + key + `","tokens":{"access_token":"` + jwt + `"}}`, key, ""},
		{"codex", "openai", `{"auth_mode":"chatgpt","OPENAI_API_KEY":"sk-secret","tokens":{"access_token":"sk-secret"}}`, "", "login with ChatGPT"},
		{"codex", "chatgpt", `{"OPENAI_API_KEY":null,"tokens":{"access_token":"` + jwt + `","refresh_token":"sk-secret"}}`, jwt, ""},
		{"codex", "chatgpt", `{"auth_mode":"chatgpt","OPENAI_API_KEY":"sk-secret","tokens":{"access_token":"` + jwt + `"}}`, jwt, ""},
		{"codex", "chatgpt", `{"OPENAI_API_KEY":null,"tokens":{"access_token":"sk-secret"}}`, "", "no JSON Web Token"},
		{"codex", "chatgpt", `{"OPENAI_API_KEY":"sk-secret"}`, "", "no login with ChatGPT"},
		{"gemini", "google", `{"access_token":"ya29.x","refresh_token":"sk-secret","expiry_date":1}`, "ya29.x", ""},
		{"gemini", "google", `{"refresh_token":"sk-secret"}`, "", "no access token"},
		{"gemini", "gemini", `{"access_token":"sk-secret"}`, "", "login with Google"},
		{"opencode", "openai", `{"anthropic":{"type":"api","key":"sk-secret"},"openai":{"type":"api","key":"` + key + `"}}`, key, ""},
		{"opencode", "anthropic", `{"anthropic":{"type":"oauth","access":"sk-secret","refresh":"sk-secret"}}`, "", "of a subscription"},
		{"opencode", "anthropic", `{"openai":{"type":"api","key":"sk-secret"}}`, "", "no API key of anthropic"},
	} {
		got, _, err := ParseLogin(x.program, x.service, []byte(x.file))
		if got != x.want || (err == nil) != (x.err == "") || !strings.Contains(fmt.Sprint(err), x.err) && err != nil || strings.Contains(fmt.Sprint(err), "sk-secret") {
			t.Errorf("%s of %s: %q, %v", x.program, x.file, got, err)
		}
	}
	for ms, year := range map[int64]int{math.MinInt64: 1, -1: 1, 0: 1, 1: 1970, 253402300799999: 9999, 253402300800000: 1, math.MaxInt64: 1} {
		file := fmt.Sprintf(`{"claudeAiOauth":{"accessToken":"sk-ant-oat01-1","expiresAt":%d}}`, ms)
		_, expires, err := ParseLogin("claude", "anthropic", []byte(file))
		if _, jerr := json.Marshal(expires); errors.Join(err, jerr) != nil || expires.Year() != year || expires.IsZero() != (year == 1) {
			t.Errorf("expiresAt %d: %s, %v", ms, expires, errors.Join(err, jerr))
		}
	}
	for text, year := range map[string]int{"-1": 1, "0": 1, "1700000000": 2023, "1.7e9": 2023, "253402300800": 1, "1e300": 1, `"x"`: 1} {
		_, expires, err := ParseLogin("codex", "chatgpt", []byte(`{"tokens":{"access_token":"`+jwtOf(`{"exp":`+text+`}`)+`"}}`))
		if err != nil || expires.Year() != year {
			t.Errorf("exp %s: %s, %v", text, expires, err)
		}
	}
	for text, year := range map[string]int{"-1": 1, "0": 1, "1700000000000": 2023, "1700000000000.5": 2023, "1e300": 1} {
		_, expires, err := ParseLogin("gemini", "google", []byte(`{"access_token":"ya29.x","expiry_date":`+text+`}`))
		if err != nil || expires.Year() != year {
			t.Errorf("expiry_date %s: %s, %v", text, expires, err)
		}
	}
	env := func(v string) string { return map[string]string{"HOME": "/home/me", "CODEX_HOME": "/elsewhere"}[v] }
	for program, want := range map[string]string{"claude": "/home/me/.claude/.credentials.json", "codex": "/elsewhere/auth.json", "opencode": "/home/me/.local/share/opencode/auth.json", "gemini": "/home/me/.gemini/oauth_creds.json", "copilot": "", "other": ""} {
		if got, err := LoginFile(program, env); got != want || (cell.KindOf(err) == cell.Unsupported) != (want == "") {
			t.Errorf("%s: %q, %v", program, got, err)
		}
	}
}
