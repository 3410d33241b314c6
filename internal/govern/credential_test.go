package govern

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/state"
)

const testToken = "ghp_9aK2mXq7Lw3Zt8Rb5Yc1Vd4Ne6Pf0Hj2Su7Q"

// storeToken stores a credential on the bed.
func (b *bed) storeToken(name, value string) {
	b.Helper()
	_, err := b.AddCredential(b.ctx, api.CredentialRequest{Name: name, Secret: value, For: []string{"https://api.example.com/**"}, Env: []string{"TOKEN"}})
	b.must(err)
}

// lendTo lends to a cell and returns its placeholder.
func (b *bed) lendTo(c *state.Cell, handle string) string {
	b.Helper()
	c.Setup.Handles = []string{handle} // as its policy would
	lent, env, err := b.Lend(c, []string{handle})
	b.must(err)
	if len(lent) != 1 || lent[0].Handle != handle || lent[0].Secret == lent[0].Placeholder || len(env) != 1 || env[0] != "TOKEN="+lent[0].Placeholder {
		b.Fatalf("%+v, %q", lent, env)
	}
	return lent[0].Placeholder
}

func TestLendKeepsThePlaceholder(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell("a", nil)
	_, _, err := b.Lend(c, []string{"mine"})
	b.wantKind("lent before it is stored", err, cell.NotFound, "mine")
	if hint := cell.HintOf(err); !strings.Contains(hint, "pando credential add mine") {
		t.Errorf("hint: %s", hint)
	}
	b.storeToken("mine", testToken)
	p := b.lendTo(c, "mine")
	if !strings.HasPrefix(p, "ghp_") || p == testToken {
		t.Errorf("placeholder %s", p)
	}
	if again := b.lendTo(c, "mine"); again != p {
		t.Error("another placeholder for the same cell")
	}
	b.must(b.reg.Rewrite())
	b.reopen()
	if again := b.lendTo(c, "mine"); again != p {
		t.Error("another placeholder after a restart")
	}
	if l := b.lent(c); len(l) != 1 || l[0].Secret != testToken {
		t.Errorf("%+v", l)
	}
	child := b.cell("child", c)
	child.Setup.Handles = []string{"mine"}
	if len(b.lent(child)) != 0 || len(b.Env(child)) != 0 {
		t.Error("a fork has what its parent has")
	}
	if b.lendTo(child, "mine") == p {
		t.Error("a fork has its parent's placeholder")
	}
	// The value of one that is replaced is the new one at once.
	_, err = b.AddCredential(b.ctx, api.CredentialRequest{Name: "mine", Secret: testToken + "2", For: []string{"https://api.example.com/**"}, Replace: true})
	b.must(err)
	if l := b.lent(c); len(l) != 1 || l[0].Secret != testToken+"2" || l[0].Placeholder != p {
		t.Errorf("%+v", l)
	}
	if b.redactor.String("x "+testToken+"2 y") != "x [secret] y" {
		t.Error("the redactor does not know it")
	}
}

func TestRevokeCredential(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.storeToken("mine", "not-of-any-known-shape-1")
	top := b.cell("top", nil)
	child := b.cell("child", top)
	grandchild := b.cell("grandchild", child)
	other := b.cell("other", top)
	all := []*state.Cell{top, child, grandchild, other}
	for _, c := range all {
		b.lendTo(c, "mine")
	}
	has := func() (names []string) {
		for _, c := range all {
			if len(b.lent(c)) > 0 {
				names = append(names, c.Name)
			}
		}
		return names
	}
	steps := []struct {
		req  api.RevokeRequest
		want []string // that have it afterwards
	}{
		{api.RevokeRequest{Cell: "other"}, []string{"top", "child", "grandchild"}},
		{api.RevokeRequest{Cell: "other", Undo: true}, []string{"top", "child", "grandchild", "other"}},
		{api.RevokeRequest{Subtree: "child"}, []string{"top", "other"}},
		{api.RevokeRequest{Subtree: "top", Undo: true}, []string{"top", "child", "grandchild", "other"}},
		{api.RevokeRequest{All: true}, nil},
	}
	for _, s := range steps {
		_, err := b.Revoke(b.ctx, "mine", s.req, b, seesAll)
		b.must(err)
		if got := has(); !slices.Equal(got, s.want) {
			t.Errorf("%+v: %v have it, want %v", s.req, got, s.want)
		}
		b.reopen()
		if got := has(); !slices.Equal(got, s.want) {
			t.Errorf("%+v, after a restart: %v have it, want %v", s.req, got, s.want)
		}
	}
	_, _, err := b.Lend(child, []string{"mine"})
	b.wantKind("lent again", err, cell.Denied, "taken back")
	for _, req := range []api.RevokeRequest{{}, {Cell: "child", All: true}, {Cell: "child", Subtree: "top"}} {
		_, err := b.Revoke(b.ctx, "mine", req, b, seesAll)
		b.wantKind("revoke", err, cell.Invalid)
	}
	_, err = b.Revoke(b.ctx, "mine", api.RevokeRequest{Cell: "nobody"}, b, seesAll)
	b.wantKind("revoke from nobody", err, cell.NotFound)
	_, err = b.Revoke(b.ctx, "nothing", api.RevokeRequest{Cell: "top"}, b, seesAll)
	b.wantKind("revoke nothing", err, cell.NotFound)

	_, err = b.Revoke(b.ctx, "mine", api.RevokeRequest{All: true, Undo: true}, b, seesAll)
	b.must(err)
	for _, req := range []api.RevokeRequest{{All: true}, {Subtree: "top"}} {
		res, err := b.Revoke(b.ctx, "mine", req, b, func(id cell.ID) bool { return id == other.ID })
		b.must(err)
		if got := has(); len(res.Cells) != 1 || slices.Contains(got, "other") || len(got) != 3 {
			t.Errorf("%+v: a caller that sees one cell took it from %v; %v have it", req, res.Cells, got)
		}
		_, err = b.Revoke(b.ctx, "mine", api.RevokeRequest{All: true, Undo: true}, b, seesAll)
		b.must(err)
	}
	res, err := b.RemoveCredential(b.ctx, "mine")
	b.must(err)
	if len(res.Cells) != 4 || has() != nil {
		t.Errorf("removed: %+v, %v have it", res, has())
	}
}

func seesAll(cell.ID) bool { return true }

// The start of the daemon waits a moment only for a login file that does not answer, and its end not at all.
func TestLoginFileHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		ctx, end := context.WithCancel(t.Context())
		b.cfg.Life = ctx
		var gate chan struct{}
		open := func(path string) (*os.File, error) {
			if gate != nil {
				<-gate
			}
			return os.Open(path)
		}
		config := credential.Config{Dir: durable.Disk(b.home.Credentials()), Keys: durable.Disk(b.home.Keys()), Open: open}
		at := filepath.Join(t.TempDir(), "auth.json")
		b.must(os.WriteFile(at, []byte(`{"OPENAI_API_KEY":"sk-proj-0123456789"}`), 0o600))
		var err error
		b.cfg.Credentials, err = credential.Open(config)
		b.must(err)
		_, err = b.AddCredential(ctx, api.CredentialRequest{Name: "openai", Login: "codex", Path: at})
		b.must(err)

		gate = make(chan struct{})
		b.cfg.Credentials, err = credential.Open(config)
		b.must(err)
		began := time.Now()
		if err := b.KnowStored(); err != nil || time.Since(began) != startWait {
			t.Errorf("the start takes %s, %v", time.Since(began), err)
		}
		began = time.Now()
		time.AfterFunc(2*time.Second, end) // while it waits for the file
		if b.KeepLogins(ctx); time.Since(began) != 2*time.Second {
			t.Errorf("the end takes %s", time.Since(began)-2*time.Second)
		}
		close(gate)
	})
}
