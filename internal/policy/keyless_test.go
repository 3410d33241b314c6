package policy

import (
	"reflect"
	"testing"
)

// What is lent no credentials has none by rules either, and the policy that it comes of stays as it was.
func TestWithoutKeys(t *testing.T) {
	f, err := ParseFile("p", []byte("version: 1\ncredentials: [{name: one}]\nnetwork:\n  allow: [a.test, {host: b.test, credential: two}]\n  ask: [{host: c.test, credential: three}, d.test]\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Merge(Effective{}, f, Flags{})
	if err != nil {
		t.Fatal(err)
	}
	before := string(r.Canonical())
	keyless := r.WithoutKeys()
	if got := keyless.Handles(); len(got) > 0 || len(keyless.Network.Allow) != 1 || len(keyless.Network.Ask) != 1 {
		t.Errorf("it has %q, and %+v", got, keyless.Network)
	}
	if got := r.Handles(); !reflect.DeepEqual(got, []string{"one", "three", "two"}) || string(r.Canonical()) != before {
		t.Errorf("the policy that it comes of has %q", got)
	}
}
