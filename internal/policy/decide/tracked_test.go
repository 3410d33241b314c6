package decide

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// The strictest of all layers counts, whatever their order: a lower one cannot
// take a mask away.
func TestX50MaskIsTheStrictestOfAllLayers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var layers []policy.Layer
		want, at := policy.SecretsName, ""
		for _, name := range []string{policy.LayerHost, policy.LayerUser, policy.LayerProject, policy.LayerRun} {
			word := rapid.SampledFrom([]string{"", "name", "mask"}).Draw(t, name)
			text := "version: 1\nlimits: {pids: 9}\n"
			if word != "" {
				text += "secrets: " + word + "\n"
			}
			if place := name + ".yaml:3"; word == "mask" && want != policy.SecretsMask || word == "name" && at == "" {
				want, at = policy.Secrets(word), place
			}
			f, err := policy.ParseFile(name+".yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			layers = append(layers, policy.Layer{Name: name, File: f})
		}
		r, err := policy.MergeLayers(policy.Defaults(machine), layers, policy.Flags{})
		if err != nil {
			t.Fatal(err)
		}
		alone, origins := policy.Defaults(machine).Secrets.Bound(layers)
		if r.Secrets != want || alone != want || r.Origins.Lines[policy.RuleSecrets] != at || origins.Lines[policy.RuleSecrets] != at {
			t.Fatalf("%s of %q, alone %s of %q, not %s of %q", r.Secrets, r.Origins.Lines[policy.RuleSecrets], alone, origins.Lines[policy.RuleSecrets], want, at)
		}
		if err := r.Secrets.Refuse(r.Origins, "run", []string{"id_rsa"}); (err != nil) != (want == policy.SecretsMask) {
			t.Fatalf("%s: %v", want, err)
		}
		if err := r.Secrets.Refuse(r.Origins, "run", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(r.Canonical()); err != nil {
			t.Fatal(err)
		}
	})
}

// The word is part of the digest, is shown with its origin, and is refused with
// the words that there are.
func TestX50MaskIsPartOfThePolicy(t *testing.T) {
	merged := func(text string) policy.Result {
		f, err := policy.ParseFile("p.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := policy.Merge(policy.Defaults(machine), f, policy.Flags{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	mask, name := merged("version: 1\nsecrets: mask\n"), merged("version: 1\nsecrets: name\n")
	if mask.Digest() == name.Digest() || name.Digest() != policy.Defaults(machine).Digest() {
		t.Error("the digest does not depend on the word alone")
	}
	for _, bad := range []string{"", "hide"} {
		if _, err := Compile([]byte(strings.Replace(string(mask.Canonical()), `"secrets":"mask"`, `"secrets":"`+bad+`"`, 1))); err == nil {
			t.Errorf("secrets %q is a policy", bad)
		}
	}
	if !slices.ContainsFunc(mask.Show(mask.Origins), func(l policy.Shown) bool {
		return l.Name == policy.RuleSecrets && l.Origin == "p.yaml:2" && strings.Contains(l.Text, "stay outside")
	}) {
		t.Error("policy show does not have the rule")
	}
	remarks := func(r policy.Result) string { return strings.Join(r.Remarks(r.Origins), "\n") }
	if !strings.Contains(remarks(mask), "git's objects in the cell") || !strings.Contains(remarks(mask), "(p.yaml:2)") {
		t.Errorf("remarks %q", remarks(mask))
	}
	if got := remarks(merged("version: 1\nsecrets: mask\nfiles: {hidden: [.git]}\n")) + remarks(name); got != "" {
		t.Errorf("remarks %q", got)
	}
	err := mask.Secrets.Refuse(mask.Origins, "run", []string{"a", "b", "c", "d"})
	if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "secrets: mask (p.yaml:2)") || !strings.Contains(err.Error(), "a, b, c and 1 more") {
		t.Error(err)
	}
	_, err = policy.ParseFile("p.yaml", []byte("version: 1\nsecrets: hide\n"))
	if err == nil || !strings.Contains(err.Error(), "[2:10]") || !strings.Contains(err.Error(), "name, mask") {
		t.Error(err)
	}
}
