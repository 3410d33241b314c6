package decide

import (
	"path"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// program is a pattern of programs that may not be executed.
type program struct{ text string }

func compilePrograms(list []string) (out []program, err error) {
	for _, s := range list {
		if c, err := policy.ParseProgram(s); err != nil || c != s {
			return nil, cell.Errorf(cell.Corrupt, "decide.Compile", "", "cannot use the policy: %q is no program", s)
		}
		out = append(out, program{s})
	}
	return out, nil
}

// MatchProgram reports whether the name of a program fits the last part of a
// pattern.
func MatchProgram(pattern, name string) bool { return policy.MatchSegment(pattern, name) }

func (p program) match(name string) bool {
	name = path.Clean(name)
	if !strings.Contains(p.text, "/") {
		return policy.MatchSegment(p.text, path.Base(name))
	}
	want, have := strings.Split(p.text, "/"), strings.Split(name, "/")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if !policy.MatchSegment(want[i], have[i]) {
			return false
		}
	}
	return true
}

func (p *Rules) decideExecute(a cell.Access) cell.Decision {
	var hit []types.Value
	var first string
	for _, q := range p.programs {
		if q.match(a.Program) {
			if first == "" {
				first = q.text
			}
			hit = append(hit, types.String(q.text))
		}
	}
	f := p.builtin[cell.Execute]
	matched, failed := authorize(&candidates{ids: f.ids, policies: f.policies}, cell.Execute, types.RecordMap{"program": types.NewSet(hit...)})
	switch {
	case a.Program == "" || failed != "" || len(matched) == 0:
		return cell.Decision{Effect: cell.Deny, Rule: policy.RuleError, Origin: "default", Reason: "the policy could not be evaluated: " + failed}
	case matched[0] == cedar.PolicyID(policy.RuleProgram):
		name := policy.RuleProgram + " " + first
		return cell.Decision{Effect: cell.Deny, Rule: name, Origin: p.origin(name), Reason: name + " denies executing " + policy.Quoted(a.Program)}
	}
	return cell.Decision{Effect: cell.Allow, Rule: policy.RuleDefault, Origin: "default", Reason: "no rule denies executing " + policy.Quoted(a.Program)}
}
