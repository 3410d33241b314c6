package finding

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

func TestHouseFindings(t *testing.T) {
	is := map[string]string{}
	for _, r := range Rules() {
		is[r.ID] = r.Severity
	}
	if !maps.Equal(is, policy.HouseFindings()) {
		t.Errorf("finding_house.go of internal/policy has other rules or severities than the table: %v", is)
	}
}

// Each rule of a policy is found in the first, and not in the others.
func TestOwnRules(t *testing.T) {
	long := api.Run{Usage: api.Usage{WallMS: 90_000}, Agent: "codex", Network: &api.Network{Models: []api.ModelUse{{Model: "m-1", MicroUSD: 2e6}}}}
	unpriced := long
	unpriced.Network = &api.Network{Models: []api.ModelUse{{Model: "m-1", MicroUSD: 2e6}, {Model: "m-2", Unpriced: true}}}
	for rule, list := range map[string][]seen{
		"{when: paths, match: ['db/migrations/**']}":                                          {{after: files("db/migrations/a/1.sql", "x")}, {after: files("db/x.sql", "x")}},
		"{when: paths, match: '*.sql', except: 'test/**'}":                                    {{after: files("db/1.sql", "x")}, {after: files("test/1.sql", "x")}},
		"{when: paths, if: [status = deleted, kind = executable]}":                            {{before: files("a", "+x y")}, {before: files("a", "y")}, {after: files("a", "+x y")}},
		"{when: text, match: '**/*.go', text: ['\\bos\\.Exit\\(', panic]}":                    {{after: files("a/b.go", "\tos.Exit(1)\n")}, {after: files("a/b.txt", "os.Exit(1)")}, {before: files("a/b.go", "panic\n"), after: files("a/b.go", "panic\nx\n")}},
		"{when: dependencies, match: '@evil/*', if: change = added}":                          {{before: files("package.json", `{}`), after: files("package.json", `{"dependencies": {"@evil/a": "1"}}`)}, {before: files("package.json", `{"dependencies": {"@evil/a": "1"}}`), after: files("package.json", `{}`)}},
		"{when: dependencies, if: change = removed}":                                          {{before: files("package.json", `{"dependencies": {"a": "1"}}`), after: files("package.json", `{}`)}, {before: files("package.json", `{}`), after: files("package.json", `{"dependencies": {"a": "1"}}`)}},
		"{when: network, match: '*.example', if: [outcome = denied, times >= 3]}":             {{run: api.Run{Network: denial("connect x.example:443", 3)}}, {run: api.Run{Network: denial("connect x.example:443", 2)}}, {run: api.Run{Network: denial("connect x.other:443", 3)}}},
		"{when: run, if: ['duration > 1m', 'agent = co*', 'usd > 1.5', 'model ~ ^m-[0-9]$']}": {{run: long}, {run: api.Run{}}, {run: unpriced}},
		"{when: run, if: \"ref = ''\"}":                                                       {{}, {run: api.Run{Ref: "T-1"}}},
		"{when: run, if: check != passed}":                                                    {{}, {run: api.Run{Check: &api.Check{}}}},
	} {
		text := "version: 1\nfindings: {rules: [{id: x, severity: medium, explain: E., " + rule[1:] + "]}\n"
		f, err := policy.ParseFile("p", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", rule, err)
			continue
		}
		for i, s := range list {
			s.policy = f.Findings.Findings
			n := 0
			for _, found := range Find(s.evidence()) {
				if found.Rule == "own/x" && found.Severity == "medium" && found.Title == "E." {
					n++
				}
			}
			if n > 0 != (i == 0) {
				t.Errorf("%s: case %d has %d findings", rule, i, n)
			}
		}
	}
}

// What rules on text look through is bounded, all rules together, and what they did not look at is said by each.
func TestTextRulesAreBounded(t *testing.T) {
	line := strings.Repeat("x", 1023) + "\n"
	large, n := strings.Repeat(line, maxRead/len(line)), maxLooked/(2*maxRead)
	after := map[string]string{}
	for i := range n + 1 {
		after[fmt.Sprintf("%03d", i)] = large
	}
	e := seen{after: after}.evidence()
	found := func(rules ...string) (list []string) {
		var own policy.Findings
		for _, id := range rules {
			own.Rules = append(own.Rules, policy.OwnRule{ID: id, Severity: "high", Explain: "E.", When: policy.WhenText, Text: []string{"y"}})
		}
		e.Policy, e.looked = own, 0
		for _, f := range Find(e) {
			if strings.HasPrefix(f.Rule, policy.Own) {
				list = append(list, f.Rule+" "+f.Path)
			}
		}
		return list
	}
	last := fmt.Sprintf("%03d", n)
	if got := found("a", "b"); !slices.Equal(got, []string{"own/a " + last, "own/b 000"}) {
		t.Errorf("%q", got)
	}
	delete(after, last)
	e = seen{after: after}.evidence()
	if got := found("a"); len(got) > 0 {
		t.Errorf("within the bound: %q", got)
	}
}

func TestRulesOffAndRaised(t *testing.T) {
	s := seen{after: files("LICENSE", "x", "a.bin", "\x00"), policy: policy.Findings{Off: []string{"binary-added"}, Severity: map[string]string{"licence-changed": "high"}}}
	list := Find(s.evidence())
	if len(list) != 1 || list[0].Rule != "licence-changed" || list[0].Severity != "high" {
		t.Errorf("%+v", list)
	}
	s.policy.Rules = []policy.OwnRule{{ID: "x", When: "run", If: []string{"nothing = 1"}}}
	if list := Find(s.evidence()); len(list) == 0 || list[0].Rule != "policy-unread" || !strings.Contains(list[0].What, "own/x") {
		t.Errorf("a rule that can't be read is left out: %+v", list)
	}
}
