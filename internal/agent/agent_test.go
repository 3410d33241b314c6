package agent

import "testing"

// A login that is asked for comes before one that is stored, and that before the first.
func TestChoose(t *testing.T) {
	a := About{Logins: []Login{{Credential: "one"}, {Credential: "two"}, {Credential: "three"}}}
	is := func(names ...string) func(Login) bool {
		return func(l Login) bool {
			for _, n := range names {
				if n == l.Credential {
					return true
				}
			}
			return false
		}
	}
	for _, c := range []struct {
		asked, stored func(Login) bool
		want          string
	}{
		{is(), is(), "one"},
		{is(), is("two", "three"), "two"},
		{is("three"), is("one", "two"), "three"},
	} {
		if got := a.Choose(c.asked, c.stored); got.Credential != c.want {
			t.Errorf("%s was chosen, want %s", got.Credential, c.want)
		}
	}
}
