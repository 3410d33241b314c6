package engine

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// storeToken stores a credential on the bed.
func (b *bed) storeToken(name, value string) {
	b.Helper()
	_, err := b.govern.AddCredential(b.ctx, api.CredentialRequest{Name: name, Secret: value, For: []string{"https://api.example.com/**"}, Env: []string{"TOKEN"}})
	b.must(err)
}

// lendTo lends to a cell.
func (b *bed) lendTo(c *state.Cell, handle string) {
	b.Helper()
	c.Setup.Handles = []string{handle} // as its policy would
	_, _, err := b.govern.Lend(c, []string{handle})
	b.must(err)
}

const leak = "not-of-any-known-shape-9Zk3"

// lendingBed has a cell "a" that was lent a credential.
func lendingBed(t *testing.T) (*bed, *state.Cell) {
	b := newBed(t, "f: x", ".gitignore: ignored\n")
	b.storeToken("mine", leak)
	b.run("a", "true")
	c, err := b.reg.Cell(b.id("a"))
	b.must(err)
	b.lendTo(&c, "mine")
	return b, &c
}

func TestF9SearchAfterARun(t *testing.T) {
	t.Parallel()
	b, _ := lendingBed(t)
	coded := base64.StdEncoding.EncodeToString([]byte("user:" + leak))
	for _, x := range []struct{ script, in, path, encoding string }{
		{"echo clean > g; echo clean", "", "", ""},
		{"mkdir -p d; echo 'key = " + leak + "' > d/conf", "workspace", "d/conf", "plain"},
		{"echo " + coded + " > coded", "workspace", "coded", "base64"},
		{"echo " + leak + " > ignored", "workspace", "ignored", "plain"},
		{"ln -s /" + leak + " link", "workspace", "link", "plain"},
		{"echo > name-" + leak, "workspace", "name-[secret]", "plain"},
		{"echo " + leak + " | gzip > f.gz", "workspace", "f.gz", "plain, compressed"},
		{"mkdir ~/log && echo " + leak + " > ~/log/transcript", state.InHome, "log/transcript", "plain"},
		{"echo out " + leak[:9] + "'\x1b[1m'" + leak[9:], "stdout", "", "plain, with terminal escapes"},
		{"echo " + coded + " >&2", "stderr", "", "base64"},
	} {
		r := b.run("a", x.script)
		if r.Secrets == nil || len(r.Secrets.Lent) != 1 || r.Secrets.Lent[0].Credential != "mine" || len(r.Secrets.Scanned) < 5 || len(r.Secrets.NotScanned) == 0 {
			t.Fatalf("%s: %+v", x.script, r.Secrets)
		}
		found := map[state.SecretFound]bool{}
		for _, f := range r.Secrets.Found {
			found[state.SecretFound(f)] = true
		}
		if x.in == "" {
			if len(found) > 0 {
				t.Errorf("%s: %v", x.script, found)
			}
			continue
		}
		if !found[state.SecretFound{In: x.in, Path: x.path, Credential: "mine", Encoding: x.encoding}] {
			t.Errorf("%s: %v", x.script, r.Secrets.Found)
		}
		if !strings.Contains(strings.Join(r.Notes, "\n"), "SECRET FOUND: the value of mine is in "+x.path) {
			t.Errorf("%s: notes %q", x.script, r.Notes)
		}
		got, err := b.All().Receipt(r.ID, "")
		b.must(err)
		if !strings.Contains(string(got.Statement), `"encoding":"`+x.encoding) || !strings.Contains(got.Markdown, "## Credentials") {
			t.Errorf("%s: the receipt does not say so: %s", x.script, got.Statement)
		}
		if strings.Contains(string(got.Statement), leak) {
			t.Errorf("%s: the receipt has it: %s", x.script, got.Statement)
		}
	}
	b.verified()
}

// A cell that was lent nothing has nothing to be searched for.
func TestNoSearchWithoutCredentials(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: x")
	b.storeToken("mine", leak)
	if r := b.run("a", "echo "+leak+" > g"); r.Secrets != nil {
		t.Errorf("%+v", r.Secrets)
	}
}

func TestF9AcceptRefusesSecrets(t *testing.T) {
	t.Parallel()
	b, _ := lendingBed(t)
	b.run("a", "echo "+leak+" > conf")
	f, err := b.Fork(b.ctx, b.id("a"), api.ForkRequest{Count: 1, Name: "child"})
	b.must(err)
	if len(f.Cells) != 1 {
		t.Fatal(f)
	}
	for _, name := range []string{"a", "child"} { // what an earlier run, or the cell before, has written is no better
		b.run(name, "echo more > g")
		_, err := b.results.Accept(b.ctx, b.cellTarget(name), api.AcceptRequest{Apply: true})
		b.wantKind("accept --apply in "+name, err, cell.Denied, "conf", "mine")
		if _, err := os.Stat(filepath.Join(b.src, "g")); err == nil {
			t.Errorf("%s: it was applied", name)
		}
	}
	b.run("a", "rm conf; echo gone > g")
	_, err = b.results.Accept(b.ctx, b.cellTarget("a"), api.AcceptRequest{Apply: true})
	b.must(err)
	if b.source("g") != "gone\n" {
		t.Error("it was not applied")
	}
	b.run("a", "echo "+leak+" > conf")
	_, err = b.results.Accept(b.ctx, b.cellTarget("a"), api.AcceptRequest{Apply: true, Force: true, Reason: "a test"})
	b.must(err)
	if !strings.Contains(b.source("conf"), leak) {
		t.Error("it was not applied by force")
	}
}

// More than fit are counted, not cut in silence.
func TestF8SearchCountsTheRest(t *testing.T) {
	t.Parallel()
	b, _ := lendingBed(t)
	r := b.run("a", "i=0; while [ $i -lt 130 ]; do echo "+leak+" > n$i; i=$((i+1)); done")
	if n := len(r.Secrets.Found); n != 100 || r.Secrets.More < 30 {
		t.Errorf("%d are listed, %d more counted", n, r.Secrets.More)
	}
	if notes := strings.Join(r.Notes, "\n"); strings.Count(notes, "SECRET FOUND: ") != 5 || !strings.Contains(notes, "SECRET FOUND in 1") {
		t.Errorf("%s", notes)
	}
	// One that is taken away is still in the patch, which says what was there.
	if r = b.run("a", "rm n*; head -c 100000 /dev/urandom > bin"); len(r.Secrets.Found) != 1 || r.Secrets.Found[0].In != "patch" {
		t.Errorf("%+v", r.Secrets.Found)
	}
}

// X1: where a login file lies on the host is said to callers that may name the host's files.
func TestX01LoginFilesAreNotNamed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	at := filepath.Join(t.TempDir(), ".credentials.json")
	b.must(os.WriteFile(at, []byte(`{"claudeAiOauth":{"accessToken":"sk-ant-oat01-1111111111111111","expiresAt":32503680000000}}`), 0o600))
	_, err := b.All().AddCredential(b.ctx, api.CredentialRequest{Name: "anthropic", Login: "claude", Path: at})
	b.must(err)
	for range 2 { // with the file, and without it
		for name, v := range map[string]*View{"admin": b.All(), "run": b.caller("t-run", access.Bounds{}), "team": b.caller("t-a", team("a"))} {
			check, err := v.CheckCredential("anthropic")
			b.must(err)
			said, err := json.Marshal([]any{v.Credentials(), check})
			b.must(err)
			if named := strings.Contains(string(said), filepath.Dir(at)); named != (name == "admin") || !strings.Contains(string(said), "anthropic") {
				t.Errorf("%s: named %v: %s", name, named, said)
			}
		}
		b.must(os.RemoveAll(at))
	}
}
