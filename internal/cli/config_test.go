package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pando-dev/pando/internal/paths"
)

// The keys of defaults are those of the flags: each flag of a start has a default, or is about
// one start alone.
func TestKeysOfDefaults(t *testing.T) {
	keys := deaf(t).starting().keys()
	for _, key := range []string{"allow", "autonomy", "check", "env", "memory"} {
		if !slices.Contains(keys, key) {
			t.Errorf("%s has no default", key)
		}
	}
	for _, key := range []string{"cell", "from", "policy", "prompt", "tty"} {
		if slices.Contains(keys, key) {
			t.Errorf("%s, which is about one start, has a default", key)
		}
	}
	if got := completed(t, "config", "set", ""); !slices.Contains(got, "allow") || slices.Contains(got, "prompt") {
		t.Errorf("keys are completed as %q", got)
	}
	if got := completed(t, "config", "set", "autonomy", ""); !slices.Contains(got, "prompting") {
		t.Errorf("values are completed as %q", got)
	}
}

// A key that is there twice, if in another case, is refused: one of the two would be lost unseen.
func TestConfigKeysAreThereOnce(t *testing.T) {
	a := deaf(t)
	a.home = paths.Home{Policy: filepath.Join(t.TempDir(), "policy.yaml")}
	for text, want := range map[string]string{
		`{"version":1,"user":{"allow":["a"]},"User":{}}`:      `"user" and "User" are in one object`,
		`{"version":1,"user":{"allow":["a"],"allow":["b"]}}`:  `"allow" is in one object twice`,
		`{"version":1,"sources":{"/a":{},"/A":{}},"user":{}}`: "",
	} {
		if err := os.WriteFile(a.home.Config(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.readConfig(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Changes of the defaults at once all stay: each is made to what the one before wrote.
func TestConfigChangesAtOnce(t *testing.T) {
	a := &app{home: paths.Home{Policy: filepath.Join(t.TempDir(), "new", "policy.yaml")}}
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			err := a.changeConfig(&levelFlags{}, func(s settings) error { s[strconv.Itoa(i)] = []string{"x"}; return nil })
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	c, err := a.readConfig()
	if err != nil || len(c.User) != n {
		t.Errorf("of %d changes %d stay: %v", n, len(c.User), err)
	}
}
