package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Isolation says how strong the isolation of a cell must be.
type Isolation struct {
	Least string `json:"least"` // one of strengths
}

// RuleIsolation is the name of the rule that bounds backends, in origins,
// errors and receipts.
const RuleIsolation = "isolation.least"

// Strengths are the words of isolation.least, weakest first. Each is the name
// of a backend.
func Strengths() []string { return []string{"none", "namespace", "gvisor", "microvm"} }

// hostLeast is what a policy of the host demands that does not say
// isolation.least: backend none needs its word.
const hostLeast = "namespace"

// strength is the place of a backend in Strengths. An unknown one isolates
// nothing that this package knows of.
func strength(backend string) int { return max(0, slices.Index(Strengths(), backend)) }

// Isolates reports whether a backend isolates its cells from the host.
func Isolates(backend string) bool { return backend != Strengths()[0] }

// FileIsolation is the section isolation.
type FileIsolation struct {
	Least string
	Line  int
}

// isolation takes the strictest of all layers.
func (m *merger) isolation(l Layer) error {
	least, at := l.File.Isolation.Least, l.File.at(l.File.Isolation.Line)
	if least == "" {
		if l.Name != LayerHost {
			return nil
		}
		least, at = hostLeast, l.File.Name+", which does not say "+RuleIsolation
	}
	if m.r.Origins.Lines[RuleIsolation] == "" || strength(least) > strength(m.r.Isolation.Least) {
		m.r.Isolation.Least, m.r.Origins.Lines[RuleIsolation] = least, at
	}
	return nil
}

// Bound is the section isolation of some layers alone, with its origin.
func (i Isolation) Bound(layers []Layer) (Isolation, Origins) {
	m := &merger{r: Result{Effective: Effective{Isolation: i}, Origins: Origins{Lines: map[string]string{}}}}
	for _, l := range layers {
		m.isolation(l)
	}
	return m.r.Isolation, m.r.Origins
}

// Refuse is the error with which a backend is refused that isolates less than
// the policy demands; nil when it may be used. what is what can't be done:
// "run".
func (i Isolation) Refuse(o Origins, what, backend string) error {
	if i.Allows(backend) {
		return nil
	}
	at := o.Lines[RuleIsolation]
	rule, place, fix := RuleIsolation+": "+i.Least, "", "the policy"
	if at != "" {
		place, fix = " ("+at+")", "the policy at "+at
		if file, _, silent := strings.Cut(at, ", which does not say"); silent {
			rule, place, fix = RuleIsolation+", which is "+i.Least+" unless the host policy says another", " ("+file+")", file
		}
	}
	hint := "use a cell on backend " + strings.Join(Strengths()[strength(i.Least):], ", ")
	return cell.Errorf(cell.Denied, "policy.Refuse", fmt.Sprintf("%s, or have %s say isolation: {least: %s}", hint, fix, Strengths()[strength(backend)]),
		"cannot %s on backend %s: the policy forbids it by the rule %s%s", what, backend, rule, place)
}

// Allows reports whether a backend isolates enough.
func (i Isolation) Allows(backend string) bool { return strength(backend) >= strength(i.Least) }

// CheckStrength refuses what is no strength of isolation.
func CheckStrength(s string) error {
	if !slices.Contains(Strengths(), s) {
		return cell.Errorf(cell.Invalid, "policy.ParseFile", "write one of "+strings.Join(Strengths(), ", "), "%s is no strength of isolation", Quoted(s))
	}
	return nil
}
