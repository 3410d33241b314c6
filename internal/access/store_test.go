package access

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(durable.Disk(dir))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A token is recognised by either beginning, also after a restart; its secret is
// in no file.
func TestTokensAreKeptAsDigests(t *testing.T) {
	dir := t.TempDir()
	tok, secret, err := open(t, dir).Create("ci", Run, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	for _, given := range []string{secret, "e2b_" + strings.TrimPrefix(secret, "pando_")} {
		p, _, _, err := s.Recognise(given)
		if err != nil || p != (Principal{Name: "ci", Token: tok.ID, Level: Run}) {
			t.Errorf("%s is %+v, %v", given, p, err)
		}
	}
	for _, given := range []string{"", "pando_", secret[:len(secret)-1], secret + "0", strings.ToUpper(secret), tok.ID, string(s.all[tok.ID].Digest)} {
		if p, _, _, err := s.Recognise(given); cell.KindOf(err) != cell.Unauthenticated {
			t.Errorf("%q is %+v, %v", given, p, err)
		}
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) != 1 {
		t.Fatalf("files: %v", files)
	}
	b, err := os.ReadFile(files[0])
	if err != nil || strings.Contains(string(b), strings.TrimPrefix(secret, "pando_")) {
		t.Errorf("the file is %s, %v", b, err)
	}
	if st, _ := os.Stat(files[0]); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
}

// What was begun with a token ends when it is removed, and it is worthless for
// good.
func TestRemovedTokensAreWorthlessAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	_, secret, _ := s.Create("ci", Run, time.Time{})
	_, life, _, err := s.Recognise(secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove("ci"); err != nil {
		t.Fatal(err)
	}
	if life.Err() == nil || cell.KindOf(context.Cause(life)) != cell.Unauthenticated {
		t.Errorf("what was begun goes on: %v", context.Cause(life))
	}
	for _, s := range []*Store{s, open(t, dir)} {
		if _, _, _, err := s.Recognise(secret); cell.KindOf(err) != cell.Unauthenticated {
			t.Errorf("it is recognised: %v", err)
		}
	}
	if _, err := s.Remove("ci"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("removed twice: %v", err)
	}
}

func TestTokensExpire(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, dir)
		_, secret, err := s.Create("", Read, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		if _, _, _, err := s.Recognise(secret); err != nil {
			t.Errorf("too early: %v", err)
		}
		time.Sleep(time.Minute)
		if _, _, _, err := s.Recognise(secret); cell.KindOf(err) != cell.Unauthenticated {
			t.Errorf("too late: %v", err)
		}
	})
}

func TestWhatIsNoToken(t *testing.T) {
	s := open(t, t.TempDir())
	if _, _, err := s.Create("a", "root", time.Time{}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a scope that there is not: %v", err)
	}
	if _, _, err := s.Create("../a", Run, time.Time{}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a name that is none: %v", err)
	}
	if _, _, err := s.Create("a", Run, time.Now().Add(-time.Hour)); cell.KindOf(err) != cell.Invalid {
		t.Errorf("in the past: %v", err)
	}
	s.Create("a", Run, time.Time{})
	if _, _, err := s.Create("a", Run, time.Time{}); cell.KindOf(err) != cell.Exists {
		t.Errorf("twice: %v", err)
	}
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "t-1.json"), []byte(`{"id":"t-2","level":"admin"}`), 0o600)
	if _, err := Open(durable.Disk(dir)); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("a file that holds another token: %v", err)
	}
}

func TestLevels(t *testing.T) {
	for i, have := range Levels {
		for j, need := range Levels {
			if have.Allows(need) != (i >= j) {
				t.Errorf("%s allows %s: %v", have, need, i < j)
			}
		}
	}
	if Admin.Allows("") || Level("").Allows("") || Level("").Allows(Read) || Level("root").Allows(Read) {
		t.Error("what is no level allows something")
	}
}

func TestPresented(t *testing.T) {
	for _, x := range []struct {
		want string
		head http.Header
	}{
		{"", http.Header{}},
		{"", http.Header{"Authorization": {"Basic cm9vdDo="}}},
		{"pando_1", http.Header{"Authorization": {"bearer pando_1"}}},
		{"e2b_1", http.Header{"X-Api-Key": {"e2b_1"}}},
		{"e2b_1", http.Header{"X-Api-Key": {"e2b_1"}, "Authorization": {"Basic cm9vdDo="}}},
		{"pando_1", http.Header{"X-Api-Key": {"e2b_1"}, "Authorization": {"Bearer pando_1"}}},
		{"more than one", http.Header{"X-Api-Key": {"e2b_2"}, "Authorization": {"Bearer pando_1"}}},
		{"more than one", http.Header{"Authorization": {"Bearer pando_1", "Bearer pando_2"}}},
	} {
		if got := Presented(&http.Request{Header: x.head}); got != x.want {
			t.Errorf("%v presents %q, not %q", x.head, got, x.want)
		}
	}
}
