package policy

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
)

// The strictest of all layers counts, whatever their order: a lower one cannot
// take a mask away.
func TestX50MaskIsTheStrictestOfAllLayers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var layers []Layer
		want, at := SecretsName, ""
		for _, name := range []string{LayerHost, LayerUser, LayerProject, LayerRun} {
			word := rapid.SampledFrom([]string{"", "name", "mask"}).Draw(t, name)
			text := "version: 1\nlimits: {pids: 9}\n"
			if word != "" {
				text += "secrets: " + word + "\n"
			}
			if place := name + ".yaml:3"; word == "mask" && want != SecretsMask || word == "name" && at == "" {
				want, at = Secrets(word), place
			}
			f, err := ParseFile(name+".yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			layers = append(layers, Layer{Name: name, File: f})
		}
		r, err := MergeLayers(Defaults(host), layers, Flags{})
		if err != nil {
			t.Fatal(err)
		}
		alone, origins := Defaults(host).Secrets.Bound(layers)
		if r.Secrets != want || alone != want || r.Origins.Lines[RuleSecrets] != at || origins.Lines[RuleSecrets] != at {
			t.Fatalf("%s of %q, alone %s of %q, not %s of %q", r.Secrets, r.Origins.Lines[RuleSecrets], alone, origins.Lines[RuleSecrets], want, at)
		}
		if err := r.Secrets.Refuse(r.Origins, "run", []string{"id_rsa"}); (err != nil) != (want == SecretsMask) {
			t.Fatalf("%s: %v", want, err)
		}
		if err := r.Secrets.Refuse(r.Origins, "run", nil); err != nil {
			t.Fatal(err)
		}
	})
}

// A read-only root of any layer counts, and its origin is the uppermost that says it.
func TestReadOnlyRootOfAnyLayer(t *testing.T) {
	layer := func(name, word string) Layer {
		f, err := ParseFile(name+".yaml", []byte("version: 1\nfiles: {root: "+word+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return Layer{Name: name, File: f}
	}
	for _, x := range []struct {
		layers []Layer
		flag   bool
		want   string // origin; "": writable
	}{
		{nil, false, ""},
		{nil, true, "--read-only"},
		{[]Layer{layer(LayerUser, "writable")}, false, ""},
		{[]Layer{layer(LayerUser, "writable")}, true, "--read-only"},
		{[]Layer{layer(LayerHost, "read-only"), layer(LayerRun, "writable")}, false, "host.yaml:2"},
		{[]Layer{layer(LayerUser, "writable"), layer(LayerRun, "read-only")}, false, "run.yaml:2"},
		{[]Layer{layer(LayerUser, "read-only"), layer(LayerRun, "read-only")}, true, "user.yaml:2"},
	} {
		r, err := MergeLayers(Defaults(host), x.layers, Flags{ReadOnly: x.flag})
		if err != nil || r.Files.ReadOnlyRoot != (x.want != "") || r.Origins.Lines[ruleRoot] != x.want {
			t.Errorf("%+v: %v %q, %v", x, r.Files.ReadOnlyRoot, r.Origins.Lines[ruleRoot], err)
		}
	}
	if r, _ := MergeLayers(Defaults(host), nil, Flags{ReadOnly: true}); r.Digest() == Defaults(host).Digest() {
		t.Error("the digest does not have it")
	}
}

// The word is part of the digest, is shown with its origin, and is refused with
// the words that there are.
func TestX50MaskIsPartOfThePolicy(t *testing.T) {
	merged := func(text string) Result {
		f, err := ParseFile("p.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Merge(Defaults(host), f, Flags{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	mask, name := merged("version: 1\nsecrets: mask\n"), merged("version: 1\nsecrets: name\n")
	if mask.Digest() == name.Digest() || name.Digest() != Defaults(host).Digest() {
		t.Error("the digest does not depend on the word alone")
	}
	if !slices.ContainsFunc(mask.Show(mask.Origins), func(l Shown) bool {
		return l.Name == RuleSecrets && l.Origin == "p.yaml:2" && strings.Contains(l.Text, "stay outside")
	}) {
		t.Error("policy show does not have the rule")
	}
	remarks := func(r Result) string { return strings.Join(r.Remarks(r.Origins), "\n") }
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
	_, err = ParseFile("p.yaml", []byte("version: 1\nsecrets: hide\n"))
	if err == nil || !strings.Contains(err.Error(), "[2:10]") || !strings.Contains(err.Error(), "name, mask") {
		t.Error(err)
	}
}
