package policy

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
)

// The strictest of all layers counts, whatever their order and whatever else they
// say; a policy of the host that is silent demands isolation.
func TestX53LeastIsTheStrictestOfAllLayers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var layers []Layer
		want := 0
		for _, name := range []string{LayerHost, LayerUser, LayerProject, LayerRun} {
			if !rapid.Bool().Draw(t, "has "+name) {
				continue
			}
			text, least := "version: 1\n", rapid.SampledFrom(append(Strengths(), "")).Draw(t, name)
			switch {
			case least != "":
				text += "isolation: {least: " + least + "}\n"
				want = max(want, slices.Index(Strengths(), least))
			case name == LayerHost:
				want = max(want, slices.Index(Strengths(), "namespace"))
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
		alone, _ := Defaults(host).Isolation.Bound(layers)
		if r.Isolation.Least != Strengths()[want] || alone != r.Isolation {
			t.Fatalf("least is %s, alone %s, not %s", r.Isolation.Least, alone.Least, Strengths()[want])
		}
		for i, b := range Strengths() {
			if err := r.Isolation.Refuse(r.Origins, "run", b); (err == nil) != (i >= want) {
				t.Fatalf("least %s, backend %s: %v", Strengths()[want], b, err)
			}
		}
	})
}

// A refusal names the policy, the rule and what to do.
func TestX53RefusalsNameTheRule(t *testing.T) {
	for _, c := range []struct {
		layer, text, backend string
		says, hint           []string
	}{
		{LayerHost, "version: 1\n", "none", []string{"backend none", "isolation.least", "namespace", "(p.yaml)"}, []string{"namespace, gvisor, microvm", "p.yaml say isolation: {least: none}"}},
		{LayerHost, "version: 1\n\nisolation: {least: microvm}\n", "gvisor", []string{"backend gvisor", "isolation.least: microvm", "(p.yaml:3)"}, []string{"on backend microvm,", "p.yaml:3 say isolation: {least: gvisor}"}},
		{LayerRun, "version: 1\nisolation:\n  least: namespace\n", "none", []string{"isolation.least: namespace", "(p.yaml:3)"}, []string{"p.yaml:3 say"}},
		{LayerRun, "version: 1\nisolation: {least: namespace}\n", "a backend that is not known", []string{"isolation.least: namespace"}, nil},
	} {
		f, err := ParseFile("p.yaml", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := MergeLayers(Defaults(host), []Layer{{Name: c.layer, File: f}}, Flags{})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Isolation.Refuse(r.Origins, "run", c.backend)
		if cell.KindOf(err) != cell.Denied {
			t.Fatalf("%q, backend %s: %v", c.text, c.backend, err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q does not say %q", err, s)
			}
		}
		for _, s := range c.hint {
			if !strings.Contains(cell.HintOf(err), s) {
				t.Errorf("%q does not say %q", cell.HintOf(err), s)
			}
		}
		if !slices.ContainsFunc(r.Show(r.Origins), func(l Shown) bool {
			return l.Name == RuleIsolation && strings.HasPrefix(l.Origin, "p.yaml")
		}) {
			t.Errorf("%q: policy show does not have the rule", c.text)
		}
	}
}

// Without a word of any layer every backend may be used, and the canonical form
// says so.
func TestX53DefaultIsInTheCanonicalForm(t *testing.T) {
	if text := string(Defaults(host).Canonical()); !strings.Contains(text, `"isolation":{"least":"none"}`) {
		t.Error(text)
	}
}
