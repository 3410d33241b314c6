package policy

import (
	"crypto/ed25519"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// keyOf is the key of an approver of tests.
func keyOf(n byte) string {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = n
	return ApproverKeyText(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
}

func acceptLayer(t *testing.T, name, words string) Layer {
	t.Helper()
	f, err := ParseFile(name+".yaml", []byte("version: 1\naccept: "+words+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return Layer{Name: name, File: f}
}

// What several layers demand is the most of each, and approvers come from the uppermost that names some.
func TestAcceptOfLayers(t *testing.T) {
	alice, bob, eve := `{name: alice, key: "`+keyOf(1)+`"}`, `{name: bob, key: "`+keyOf(2)+`"}`, `{name: eve, key: "`+keyOf(3)+`"}`
	other := `{name: alice, key: "` + keyOf(3) + `"}`
	host := "{needs: 2, for: [control-paths], approvers: [" + alice + ", " + bob + "]}"
	for _, test := range []struct {
		what   string
		layers []string // name, words, …
		needs  int64
		why    string
		who    string
		fails  string
	}{
		{"one layer", []string{"user", "{needs: 1, approvers: [" + alice + "]}"}, 1, "all", "alice", ""},
		{"a lower layer needs less", []string{"host", host, "project", "{needs: 1, for: high-findings}"}, 2, "control-paths high-findings", "alice bob", ""},
		{"a lower layer needs more", []string{"host", host, "run", "{needs: 3, for: all}"}, 3, "all", "alice bob", ""},
		{"a lower layer names reasons", []string{"host", host, "project", "{for: high-findings}"}, 2, "control-paths high-findings", "alice bob", ""},
		{"fewer approvers below", []string{"host", host, "user", "{approvers: [" + bob + "]}"}, 2, "control-paths", "bob", ""},
		{"another approver below", []string{"host", host, "user", "{approvers: [" + eve + "]}"}, 0, "", "", "approver eve"},
		{"another key below", []string{"host", host, "user", "{approvers: [" + other + "]}"}, 0, "", "", "approver alice"},
		{"approvers of a project", []string{"host", host, "project", "{approvers: [" + alice + "]}"}, 0, "", "", "cannot name approvers at project.yaml:2"},
		{"approvers of a run", []string{"run", "{needs: 1, approvers: [" + eve + "]}"}, 0, "", "", "cannot name approvers at run.yaml:2"},
		{"reasons alone", []string{"user", "{for: all}"}, 0, "", "", "says nothing without accept.needs"},
	} {
		var layers []Layer
		for i := 0; i < len(test.layers); i += 2 {
			layers = append(layers, acceptLayer(t, test.layers[i], test.layers[i+1]))
		}
		got, err := MergeAccept(layers)
		all, allErr := MergeLayers(Defaults(Host{}), layers, Flags{})
		if test.fails != "" {
			if err == nil || !strings.Contains(err.Error(), test.fails) || allErr == nil {
				t.Errorf("%s: %v, %v; want %q", test.what, err, allErr, test.fails)
			}
			continue
		}
		var who []string
		for _, a := range got.Approvers {
			who = append(who, a.Name)
		}
		if err != nil || got.Needs != test.needs || strings.Join(got.For, " ") != test.why || strings.Join(who, " ") != test.who {
			t.Errorf("%s: needs %d for %v of %v, %v", test.what, got.Needs, got.For, who, err)
		}
		if allErr != nil || all.Accept.Needs != got.Needs || !slices.Equal(all.Accept.For, got.For) {
			t.Errorf("%s: a run has %+v, %v; an accept goes by %+v", test.what, all.Accept, allErr, got)
		}
	}
}

// One key is one approver, and what can't be read is refused with its place.
func TestAcceptWords(t *testing.T) {
	key := keyOf(1)
	for words, want := range map[string]string{
		"{needs: 0}":          "above zero",
		"{needs: 21}":         "20 at most",
		"{needs: 1, for: ci}": "no reason for a sign-off",
		`{approvers: [{name: a, key: "` + key + `"}, {name: b, key: "` + key + `"}]}`:      "there twice",
		`{approvers: [{name: a, key: "` + key + `"}, {name: A, key: "` + keyOf(2) + `"}]}`: "there twice",
		`{approvers: [{name: a, key: "ed25519:AAAA"}]}`:                                    "no public key",
		`{approvers: [{name: a, key: "` + strings.TrimSuffix(key, "=") + `"}]}`:            "no public key",
		`{approvers: [{name: "a b", key: "` + key + `"}]}`:                                 "no name",
		"{approvers: [{name: a}]}":                                                         "key",
	} {
		_, err := ParseFile("p.yaml", []byte("version: 1\naccept: "+words+"\n"))
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", words, err, want)
		}
	}
	without := Defaults(Host{})
	if strings.Contains(string(without.Canonical()), "accept") {
		t.Error("a policy that demands nothing says so in its canonical form")
	}
}
