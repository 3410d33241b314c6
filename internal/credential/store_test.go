package credential

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

type dirs struct{ dir, keys string }

func (d dirs) open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(Config{Dir: durable.Disk(d.dir), Keys: durable.Disk(d.keys)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newDirs(t testing.TB) dirs { return dirs{t.TempDir(), t.TempDir()} }

func TestStoreKeeps(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	c, err := s.Add(Credential{Name: "mine", For: []string{"https://api.example.com/v1/**"}, Env: []string{"MY_TOKEN"}}, NewSecret(sample), false)
	if err != nil {
		t.Fatal(err)
	}
	if c.As != "Authorization: Bearer {secret}" || c.Kind != Token || c.Created.IsZero() {
		t.Errorf("%+v", c)
	}
	for _, st := range []*Store{s, d.open(t)} {
		got, secret, err := st.Get("mine")
		if err != nil || secret.Reveal() != sample {
			t.Fatal(secret.Reveal(), err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Error(diff)
		}
		if list := st.List(); len(list) != 1 || list[0].Name != "mine" {
			t.Errorf("%+v", list)
		}
	}
	if _, err := s.Add(c, NewSecret("another-value"), false); cell.KindOf(err) != cell.Exists {
		t.Errorf("stored twice: %v", err)
	}
	if _, err := s.Add(c, NewSecret("another-value"), true); err != nil {
		t.Error(err)
	}
	if _, secret, _ := d.open(t).Get("mine"); secret.Reveal() != "another-value" {
		t.Error("it was not replaced")
	}
	if err := s.Remove("mine"); err != nil {
		t.Error(err)
	}
	if _, _, err := d.open(t).Get("mine"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("removed: %v", err)
	}
	if err := s.Remove("mine"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("removed again: %v", err)
	}
}

// The value is in no file, in no form that our own scanner knows.
func TestF9StoredEncrypted(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	if _, err := s.Add(Credential{Name: "anthropic"}, NewSecret(sample), false); err != nil {
		t.Fatal(err)
	}
	sc := NewScanner(map[string]Secret{"it": NewSecret(sample)})
	n := 0
	for _, dir := range []string{d.dir, d.keys} {
		filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			n++
			b, _ := os.ReadFile(path)
			st := sc.Stream()
			st.Write(b)
			if f := st.Found(); len(f) > 0 {
				t.Errorf("%s: %v", path, f)
			}
			if info, _ := e.Info(); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return nil
		})
	}
	if n != 2 {
		t.Errorf("%d files", n)
	}
}

func TestSecretIsNeverShown(t *testing.T) {
	s := NewSecret(sample)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s, "all", []Secret{s})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "all", map[string]Secret{"a": s})
	b, err := json.Marshal(map[string]any{"s": s, "p": &s, "l": []Secret{s}})
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		A Secret
		B *Secret
	}
	h := holder{s, &s}
	for _, text := range []string{log.String(), string(b), s.String(), fmt.Sprint(s, &s, h, &h), fmt.Sprintf("%s %v %+v %#v %q %x %X %d", s, s, s, s, s, s, s, s), fmt.Sprintf("%#v %+v %x", h, h, h)} {
		if strings.Contains(text, sample) || strings.Contains(text, "736b2d616e74") {
			t.Errorf("it is shown: %s", text)
		}
		if !strings.Contains(text, hidden) {
			t.Errorf("nothing stands for it: %s", text)
		}
	}
}

func TestStoreRefuses(t *testing.T) {
	s := newDirs(t).open(t)
	ok := []string{"https://a.example"}
	for name, c := range map[string]Credential{
		"no place":      {Name: "x"},
		"a bad place":   {Name: "x", For: []string{"*"}},
		"a bad name":    {Name: "../x", For: ok},
		"an id":         {Name: "c-0123456789abcdef", For: ok},
		"no header":     {Name: "x", For: ok, As: "{secret}"},
		"no secret":     {Name: "x", For: ok, As: "Authorization: Bearer"},
		"twice":         {Name: "x", For: ok, As: "Authorization: {secret} {secret}"},
		"two lines":     {Name: "x", For: ok, As: "A: {secret}\r\nHost: evil"},
		"a name's line": {Name: "x", For: ok, As: "A\r\nB: {secret}"},
		"host":          {Name: "x", For: ok, As: "Host: {secret}"},
		"no user":       {Name: "x", For: ok, As: "Authorization: Basic {basic:}"},
		"variable":      {Name: "x", For: ok, Env: []string{"A=B"}},
		"no variable":   {Name: "x", For: ok, Env: []string{""}},
		"kind":          {Name: "x", Kind: "what", For: ok},
		"key":           {Name: "x", Kind: SSH, Key: "SHA256:abc", For: []string{"github.com"}},
		"no host":       {Name: "x", Kind: SSH, Key: "SHA256:" + strings.Repeat("a", 43)},
		"path":          {Name: "x", Kind: SSH, Key: "SHA256:" + strings.Repeat("a", 43), For: []string{"github.com/x"}},
		"comment":       {Name: "x", For: ok, Comment: "a\nb"},
	} {
		if _, err := s.Add(c, NewSecret(sample), false); cell.KindOf(err) != cell.Invalid || cell.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", name, err, cell.HintOf(err))
		}
	}
	for name, v := range map[string]string{"empty": "", "short": "1234567", "two lines": "abcdefgh\nijkl", "spaces": " abcdefgh", "beyond ASCII": "abcdefgh…", "long": strings.Repeat("x", maxValue+1)} {
		_, err := s.Add(Credential{Name: "x", For: ok}, NewSecret(v), false)
		if cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && len(v) > 3 && strings.Contains(err.Error()+cell.HintOf(err), v[:4]) {
			t.Errorf("%s: the error tells the value: %v", name, err)
		}
	}
}

// What can't be read is told by name, and the rest can be used.
func TestStoreDamage(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	for _, n := range []string{"anthropic", "openai", "github"} {
		if _, err := s.Add(Credential{Name: n}, NewSecret(n+"-0123456789"), false); err != nil {
			t.Fatal(err)
		}
	}
	file := func(n string) string { return filepath.Join(d.dir, n+".age") }
	b, _ := os.ReadFile(file("openai"))
	b[len(b)-1] ^= 1
	os.WriteFile(file("openai"), b, 0o600)
	a, _ := os.ReadFile(file("anthropic"))
	os.WriteFile(file("github"), a, 0o600) // one in the other's place
	s = d.open(t)
	if _, _, err := s.Get("anthropic"); err != nil {
		t.Error(err)
	}
	for _, n := range []string{"openai", "github"} {
		if _, _, err := s.Get(n); cell.KindOf(err) != cell.Corrupt || !strings.Contains(err.Error(), n) {
			t.Errorf("%s: %v", n, err)
		}
		if _, problems, err := s.Check(n); err != nil || len(problems) != 1 {
			t.Errorf("%s: %v, %v", n, problems, err)
		}
		if _, err := s.Add(Credential{Name: n}, NewSecret("a-new-one-0123"), true); err != nil {
			t.Errorf("%s: %v", n, err)
		}
		if _, problems, err := s.Check(n); err != nil || len(problems) != 1 { // its shape
			t.Errorf("%s: %v, %v", n, problems, err)
		}
	}
	// A key that others may read is no key.
	os.Chmod(filepath.Join(d.keys, keyName), 0o640)
	s = d.open(t)
	if _, _, err := s.Get("anthropic"); cell.KindOf(err) != cell.Denied {
		t.Errorf("others may read the key: %v", err)
	}
	// Without it, nothing is stored with another one beside.
	os.Remove(filepath.Join(d.keys, keyName))
	s = d.open(t)
	if _, err := s.Add(Credential{Name: "npm"}, NewSecret("npm_0123456789"), false); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("the key is gone: %v", err)
	}
	for _, n := range []string{"anthropic", "openai", "github"} {
		if err := s.Remove(n); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Add(Credential{Name: "npm"}, NewSecret("npm_0123456789"), false); err != nil {
		t.Error(err)
	}
}

func TestWellKnown(t *testing.T) {
	s := newDirs(t).open(t)
	for _, x := range []struct{ name, value, as, env string }{
		{"anthropic", "sk-ant-api03-" + strings.Repeat("x", 90), "x-api-key: {secret}", "ANTHROPIC_API_KEY"},
		{"anthropic", "sk-ant-oat01-" + strings.Repeat("x", 90), "Authorization: Bearer {secret}", "CLAUDE_CODE_OAUTH_TOKEN"},
		{"github", "ghp_" + strings.Repeat("x", 36), "Authorization: Bearer {secret}", "GH_TOKEN"},
		{"npm", "npm_" + strings.Repeat("x", 36), "Authorization: Bearer {secret}", "NPM_TOKEN"},
	} {
		c, err := s.Add(Credential{Name: x.name}, NewSecret(x.value), true)
		if err != nil || c.As != x.as || c.Env[0] != x.env {
			t.Errorf("%s: %+v, %v", x.name, c, err)
		}
		if _, problems, err := s.Check(x.name); err != nil || len(problems) > 0 {
			t.Errorf("%s: %v, %v", x.name, problems, err)
		}
	}
	for _, n := range KnownNames() {
		c, ok := WellKnown(n)
		if !ok || len(c.Env) == 0 {
			t.Errorf("%s: %+v", n, c)
		}
		value := sample
		if n == "chatgpt" {
			if _, err := s.Add(Credential{Name: n}, NewSecret(value), true); err == nil {
				t.Errorf("%s is kept with a value that has no claims", n)
			}
			value = jwtOf(claims)
		}
		if _, err := s.Add(Credential{Name: n}, NewSecret(value), true); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
	// A credential with explicit destinations is not completed.
	c, err := s.Add(Credential{Name: "github", For: []string{"https://api.github.com/repos/me/**"}}, NewSecret("ghp_0123456789"), true)
	if err != nil || len(c.Also) != 0 || len(c.For) != 1 || c.As == "" {
		t.Errorf("%+v, %v", c, err)
	}
	if l := c.Lend("p", NewSecret("v")); len(l) != 1 || l[0].Secret != "v" || l[0].Placeholder != "p" || l[0].Handle != "github" {
		t.Errorf("%+v", l)
	}
	c, _ = WellKnown("github")
	if l := c.Lend("p", NewSecret("v")); len(l) != 2 || !l[1].Fits("POST", "https", "github.com", 443, "/a/b.git/git-receive-pack") || l[0].Fits("GET", "https", "github.com", 443, "/") {
		t.Errorf("%+v", l)
	}
}

func TestPlaceholderHasTheShape(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range []string{sample, "sk-ant-oat01-" + strings.Repeat("x", 90), "ghp_" + strings.Repeat("x", 36), "AIza" + strings.Repeat("x", 35), strings.Repeat("y", 64), "12345678"} {
		shape := ShapeOf(NewSecret(v))
		if strings.Contains(shape, v[len(v)-4:]) && v != "12345678" {
			t.Errorf("the shape %s tells of %s", shape, v)
		}
		for range 100 {
			p := placeholder(shape)
			if seen[p] {
				t.Fatalf("%s was made twice", p)
			}
			seen[p] = true
			prefix, _, _ := strings.Cut(shape, "{")
			if !strings.HasPrefix(p, prefix) || len(v) > 40 && len(p) != len(v) || checkValue(p) != nil {
				t.Errorf("%s is no placeholder for %s", p, v)
			}
		}
	}
}
