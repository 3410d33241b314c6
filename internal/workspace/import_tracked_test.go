package workspace_test

import (
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
)

// awsKey is an invented key.
const awsKey = "[default]\naws_access_key_id = AKIAZ7Q4MX2PLW9TREKD\naws_secret_access_key = wJa1rXUtnFEMI7K9MDENGbPxRfiCYzq4Lw8kT2vQ\n"

// TestX50TrackedSecrets: what is left out depends on what git tracks now, not
// on what it tracked when the file was looked at; a secret that comes in because
// git tracks it is named.
func TestX50TrackedSecrets(t *testing.T) {
	for _, sub := range []string{"", "sub"} { // a source may be a folder of a work tree
		t.Run("top "+sub, func(t *testing.T) {
			bothProviders(t, func(t *testing.T, i *importing) {
				top := i.source
				gitIn(t, top, "init", "-q")
				if sub != "" {
					i.source = i.at(sub)
				}
				files := map[string]string{
					"aws.ini":      awsKey,
					"id_rsa":       "not really a key\n",
					".npmrc":       "//registry.npmjs.org/:_authToken=abcdef0123456789\n",
					".ssh/id_dsa":  "x\n",
					"plain":        "plain\n",
					"nested/.env":  "A=b\n",
					"nested/plain": "plain\n",
				}
				for p, text := range files {
					i.put(p, text)
				}
				gitIn(t, top, "add", "-A")
				age()
				im := i.do(nil)
				check := func(tracked bool) {
					t.Helper()
					want := []string{"secret .ssh", "secret aws.ini", "secret id_rsa", "secret nested/.env", "fields .npmrc"}
					if tracked {
						want = []string{"tracked .ssh", "tracked .ssh/id_dsa", "tracked aws.ini", "tracked id_rsa", "tracked nested/.env", "tracked .npmrc"}
					}
					slices.Sort(want)
					got := left(im.LeftOut)
					slices.Sort(got)
					if !slices.Equal(got, want) {
						t.Errorf("left out %q, want %q", got, want)
					}
					for _, p := range []string{"aws.ini", "id_rsa", ".ssh/id_dsa", "nested/.env"} {
						if _, err := im.Tree.Lookup(p); (err == nil) != tracked {
							t.Errorf("%s: in the base %v, tracked %v", p, err == nil, tracked)
						}
					}
					for _, p := range []string{"plain", "nested/plain"} {
						if _, err := im.Tree.Lookup(p); err != nil {
							t.Error(err)
						}
					}
					e, err := im.Tree.Lookup(".npmrc")
					i.must(err)
					if whole := e.Size == int64(len(files[".npmrc"])); whole != tracked {
						t.Errorf("the .npmrc is whole: %v, tracked %v", whole, tracked)
					}
					s, err := workspace.Survey(ctx, i.source, nil, false, nil)
					i.must(err)
					if !slices.Equal(left(s.LeftOut), left(im.LeftOut)) {
						t.Errorf("a survey says %q, an import %q", left(s.LeftOut), left(im.LeftOut))
					}
				}
				check(true)
				for _, tracked := range []bool{false, true} { // no file changes, but the index
					before := im.Fingerprint
					if tracked {
						gitIn(t, top, "add", "-A")
					} else {
						gitIn(t, top, "rm", "-r", "-q", "--cached", ".")
					}
					ix, err := workspace.Fingerprint(ctx, im, nil)
					i.must(err)
					if ix == before {
						t.Error("the fingerprint does not show it")
					}
					im = i.do(im)
					check(tracked)
				}
				stored, err := workspace.DecodeIndex(im.Index.Encode())
				i.must(err)
				if stored.Fingerprint() != im.Fingerprint {
					t.Error("an index that was stored is another")
				}

				// What is named stays named when other files change.
				i.put("plain", "changed\n")
				im = i.do(im)
				check(true)
			})
		})
	}
}
