package credential

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// A login file is that of a program of this host, which alone refreshes its login: a refresh token
// is used once. The credential's value is the access token in the file, read again when the file
// changes. It is kept in memory, and nothing else of the file is.

// Login names a login file.
type Login struct {
	Program string `json:"program"` // as an agent is named: "claude", "codex"
	Path    string `json:"path"`    // absolute
}

// MaxLogin bounds a login file, in bytes.
const MaxLogin = 1 << 20

// LoginFile returns the path of the file in which a program keeps its login, and an error where it has none
// that can be lent. getenv reads the user's environment.
func LoginFile(program string, getenv func(string) string) (string, error) {
	below := func(variable, dir string, names ...string) (string, error) {
		if v := getenv(variable); v != "" {
			dir = v
		} else {
			dir = filepath.Join(getenv("HOME"), dir)
		}
		return filepath.Abs(filepath.Join(append([]string{dir}, names...)...))
	}
	why := "no file is known in which it keeps one"
	switch program {
	case "gemini":
		return below("GEMINI_CLI_HOME", "", ".gemini", "oauth_creds.json")
	case "claude":
		return below("CLAUDE_CONFIG_DIR", ".claude", ".credentials.json")
	case "codex":
		return below("CODEX_HOME", ".codex", "auth.json")
	case "opencode":
		return below("XDG_DATA_HOME", ".local/share", "opencode", "auth.json")
	case "copilot":
		why = "in a cell Copilot CLI uses a key of a model service, and no login of GitHub's"
	}
	return "", cell.Errorf(cell.Unsupported, "credential.LoginFile", "pando login "+program+", with an API key", "cannot lend the login of %s: %s", cell.Clip(program), why)
}

// check accepts what can be read.
func (l *Login) check() error {
	if _, err := LoginFile(l.Program, func(string) string { return "/" }); err != nil {
		return err
	}
	if !filepath.IsAbs(l.Path) {
		return invalid("give an absolute path", "cannot read the login file %q", l.Path)
	}
	return nil
}

// id tells login files apart for a gateway, which needs no path.
func (l *Login) id() string {
	sum := sha256.Sum256([]byte(filepath.Clean(l.Path)))
	return l.Program + "-" + hex.EncodeToString(sum[:])
}

// Expired is the problem of a login with an expired token.
func (l *Login) Expired() string {
	return "the login in " + l.Path + " has expired: " + Renew(l.Program)
}

// loginState is what a login file said when it was read.
type loginState struct {
	of      Login
	info    fs.FileInfo
	value   string
	expires time.Time // zero: not known
	failed  time.Time // since then it can't be read; zero: it can
}

// loginWait is how long a login file may take to answer, loginGrace how long what it said counts while it
// can't be read: its program replaces it.
const (
	loginWait  = 3 * time.Second
	loginGrace = 10 * time.Second
)

// loginKey is what is read: the name of the credential says which service's key of a file is meant.
type loginKey struct {
	name string
	Login
}

// loginRead is one reading of a login file.
type loginRead struct {
	began time.Time
	done  chan struct{} // closed when what follows is set
	state loginState
	err   error
	now   error // of the file at this moment: err without grace
}

// login returns what a login file says. What it said before counts for a while when it is missing, half
// written or can't be read.
func (s *Store) login(ctx context.Context, name string, l *Login) (loginState, error) {
	r, err := s.look(ctx, name, l)
	if err != nil {
		return loginState{}, err
	}
	return r.state, r.err
}

// loginNow is login of what the file says at this moment.
func (s *Store) loginNow(ctx context.Context, name string, l *Login) (loginState, error) {
	r, err := s.look(ctx, name, l)
	if err == nil {
		err = r.now
	}
	if err != nil {
		return loginState{}, err
	}
	return r.state, nil
}

// look returns a reading that began after the call did. The caller holds no lock: the file may be on a file
// system that does not answer.
func (s *Store) look(ctx context.Context, name string, l *Login) (*loginRead, error) {
	if s.cfg.Open == nil {
		return nil, cell.Errorf(cell.Unsupported, "credential.Login", "", "cannot read login files here")
	}
	for next := false; ; next = true {
		r, mine := s.reader(name, l)
		limit := time.NewTimer(time.Until(r.began.Add(loginWait)))
		select {
		case <-r.done:
			limit.Stop()
		case <-limit.C:
			return nil, l.silent()
		case <-ctx.Done():
			limit.Stop()
			return nil, context.Cause(ctx)
		}
		if mine || next { // else it may have begun before the file was what it is now
			return r, nil
		}
	}
}

// reader returns the reading of a login file that is under way, or begins one. There is one at a time,
// and nothing waits for its end: no call of the system's takes back a read that hangs.
func (s *Store) reader(name string, l *Login) (r *loginRead, mine bool) {
	s.reading.Lock()
	defer s.reading.Unlock()
	key := loginKey{name, *l}
	if r := s.reads[key]; r != nil {
		return r, false
	}
	r = &loginRead{began: time.Now(), done: make(chan struct{})}
	s.reads[key] = r
	old := s.files[name]
	if old.of != *l { // the name was another file's
		old = loginState{}
	}
	go func() {
		var whole bool
		r.state, whole, r.now = key.read(s.cfg.Open, old)
		s.note(key, r, whole)
		close(r.done)
	}()
	return r, true
}

// note ends a reading, and keeps its result where the credential is still that of this file. whole says that
// the file could be read.
func (s *Store) note(key loginKey, r *loginRead, whole bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.reading.Lock()
	defer s.reading.Unlock()
	delete(s.reads, key)
	r.err = r.now
	old := s.files[key.name]
	switch c := s.all[key.name]; {
	case c == nil || c.Login == nil || *c.Login != key.Login:
	case r.err == nil:
		r.state.failed = time.Time{}
		s.files[key.name] = r.state
	case !whole && old.of == key.Login && (old.failed.IsZero() || time.Since(old.failed) < loginGrace):
		if old.failed.IsZero() {
			old.failed = time.Now()
		}
		s.files[key.name] = old
		r.state, r.err = old, nil
	default:
		delete(s.files, key.name)
	}
}

// read reads the file unless it is as it was. whole reports that it is there and JSON: what is wrong then is
// what it says.
func (k loginKey) read(open func(string) (*os.File, error), old loginState) (now loginState, whole bool, err error) {
	f, err := k.open(open)
	if err != nil {
		return now, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return now, false, k.unusable(err)
	}
	if old.info != nil && os.SameFile(old.info, info) && old.info.ModTime().Equal(info.ModTime()) && old.info.Size() == info.Size() {
		return old, true, nil
	}
	b, err := bound.ReadAll(f, k.Path, MaxLogin)
	if err != nil {
		return now, false, k.unusable(err)
	}
	now.of, now.info = k.Login, info
	if now.value, now.expires, err = ParseLogin(k.Program, k.name, b); err == nil {
		err = checkValue(now.value)
	}
	if err != nil {
		return loginState{}, json.Valid(b), k.unusable(err)
	}
	return now, true, nil
}

// open opens the file. A link in its path could lead to where a cell's work goes.
func (l *Login) open(open func(string) (*os.File, error)) (*os.File, error) {
	dir := filepath.Dir(l.Path)
	real, err := filepath.EvalSymlinks(dir)
	if err == nil && real != filepath.Clean(dir) {
		err = errors.New(dir + " leads through a symbolic link to " + real)
	}
	if err != nil {
		return nil, l.unusable(err)
	}
	f, err := open(l.Path)
	switch _, told := errors.AsType[*cell.Error](err); {
	case err == nil:
		return f, nil
	case !told:
		return nil, l.unusable(err)
	case cell.HintOf(err) == "":
		return nil, cell.Errorf(cell.Unavailable, "credential.Login", l.again(), "%w", err)
	}
	return nil, err
}

// unusable is the error of a login file that can't be read.
func (l *Login) unusable(err error) error {
	return cell.Errorf(cell.Unavailable, "credential.Login", l.again(), "cannot read the login in %s: %w", l.Path, err)
}

// silent is the error of a login file that does not answer.
func (l *Login) silent() error {
	return cell.Errorf(cell.Unavailable, "credential.Login", "see to the file system that it is on, or use an API key: pando login "+l.Program,
		"cannot read the login in %s: the login file does not answer: its file system takes longer than %s", l.Path, loginWait)
}

// again says what the user does when there is no login in the file.
func (l *Login) again() string {
	return "log in with `" + l.Program + "` on this host, or use an API key: pando login " + l.Program
}

// Renew says how the user renews the login of a program.
func Renew(program string) string { return "run `" + program + "` once on this host, then go on" }

// ParseLogin reads the token of a service in a login file, and when it expires. The forms are those that
// Claude Code 2.1.328, Codex 0.171.0, Gemini CLI 0.61.0 and opencode 1.18.33 write. No error quotes the file.
func ParseLogin(program, service string, b []byte) (token string, expires time.Time, err error) {
	if !json.Valid(b) {
		return "", expires, errors.New("it is no JSON")
	}
	switch program {
	case "codex":
		return codexLogin(service, b)
	case "gemini":
		return geminiLogin(service, b)
	case "opencode":
		token, err = opencodeLogin(service, b)
	default:
		return claudeLogin(b)
	}
	return token, expires, err
}

func claudeLogin(b []byte) (token string, expires time.Time, err error) {
	var f struct {
		OAuth struct {
			Access  string `json:"accessToken"`
			Expires int64  `json:"expiresAt"` // milliseconds
		} `json:"claudeAiOauth"`
	}
	if json.Unmarshal(b, &f) != nil || f.OAuth.Access == "" {
		return "", expires, errors.New("it has no access token")
	}
	return f.OAuth.Access, timeOf(f.OAuth.Expires), nil
}

// timeOf is a time of a login file; zero where it is none that JSON could say.
func timeOf(milliseconds int64) (t time.Time) {
	if at := time.UnixMilli(milliseconds).UTC(); milliseconds > 0 && at.Year() < 10_000 {
		t = at
	}
	return t
}

func geminiLogin(service string, b []byte) (token string, expires time.Time, err error) {
	var f struct {
		Access  string  `json:"access_token"`
		Expires float64 `json:"expiry_date"` // milliseconds
	}
	switch err := json.Unmarshal(b, &f); {
	case err != nil || f.Access == "":
		return "", expires, errors.New("it has no access token")
	case service != "google":
		return "", expires, errors.New("it is a login with Google, and has no API key")
	}
	if f.Expires < 1e15 {
		expires = timeOf(int64(f.Expires))
	}
	return f.Access, expires, nil
}

func codexLogin(service string, b []byte) (token string, expires time.Time, err error) {
	var f struct {
		Mode   string `json:"auth_mode"` // "chatgpt", "apikey"; earlier versions do not write it
		Key    string `json:"OPENAI_API_KEY"`
		Tokens struct {
			Access string `json:"access_token"`
		} `json:"tokens"`
	}
	if json.Unmarshal(b, &f) != nil {
		return "", expires, errors.New("it is of a form that is not known")
	}
	subscribed := f.Tokens.Access != "" && (f.Key == "" || f.Mode == "chatgpt")
	switch {
	case service == "chatgpt" && subscribed:
		claims, err := Claims(f.Tokens.Access)
		if err != nil {
			return "", expires, errors.New("its access token is none: " + err.Error())
		}
		if at, ok := claims["exp"].(float64); ok && at < 1e12 {
			expires = timeOf(int64(at) * 1000)
		}
		return f.Tokens.Access, expires, nil
	case subscribed:
		return "", expires, errors.New("it is a login with ChatGPT, and has no API key")
	case f.Key == "":
		return "", expires, errors.New("it has no login with ChatGPT and no API key")
	case service == "chatgpt":
		return "", expires, errors.New("it has an API key, and no login with ChatGPT")
	}
	return f.Key, expires, nil
}

func opencodeLogin(service string, b []byte) (string, error) {
	var f map[string]struct{ Type, Key string }
	switch err := json.Unmarshal(b, &f); {
	case err == nil && f[service].Type == "api" && f[service].Key != "":
		return f[service].Key, nil
	case err == nil && f[service].Type == "oauth":
		return "", errors.New("its login of " + service + " is that of a subscription, and opencode reads an API key alone in a cell")
	}
	return "", errors.New("it has no API key of " + service)
}

// Renewed returns the credentials with login files that say something else than at the last call, or
// can't be read any more; at the first call all that are read from one: a cell may have been told
// before this process began. It returns none when ctx has ended.
func (s *Store) Renewed(ctx context.Context) (names []string) {
	for _, c := range s.List() {
		if c.Login == nil {
			continue
		}
		now, _ := s.login(ctx, c.Name, c.Login) // the error comes again where it is put to use
		if ctx.Err() != nil {
			return nil
		}
		s.reading.Lock()
		if told, ok := s.told[c.Name]; !ok || told.value != now.value || !told.expires.Equal(now.expires) {
			s.told[c.Name] = now
			names = append(names, c.Name)
		}
		s.reading.Unlock()
	}
	return names
}
