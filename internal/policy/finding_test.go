package policy

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func findingsOf(t *testing.T, body string) *File {
	t.Helper()
	f, err := ParseFile("p", []byte("version: 1\nfindings:\n"+body))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// An error names the line, and what to do.
func TestFindingsRefused(t *testing.T) {
	rule := func(rest string) string {
		return "  rules:\n    - id: a\n      severity: low\n      explain: E.\n" + rest
	}
	for body, want := range map[string]string{
		rule("      when: run\n      if: [durration > 1m]\n"):                          `[8:7] findings.rules.if: "durration" is no field of run; did you mean "duration"?`,
		rule("      when: run\n      if: [duration > fast]\n"):                         "write it as 90s, 10m or 1h30m",
		rule("      when: run\n      if: [agent > x]\n"):                               "use one of = != ~ !~",
		rule("      when: paths\n      if: [status = gone]\n"):                         "use one of added,",
		rule("      when: text\n      text: ['(?=x)']\n"):                              "[8:14] findings.rules.text: ",
		rule("      when: text\n"):                                                     "needs text",
		rule("      when: run\n      text: x\n"):                                       "is for when: text",
		rule("      when: paths\n"):                                                    "would find all of paths",
		rule("      when: paths\n      match: ['[a']\n"):                               "is no pattern",
		rule("      when: path\n      match: a\n"):                                     "write one of paths,",
		rule("      when: paths\n      match: ['" + strings.Repeat("a", 201) + "']\n"): "more than 200 bytes",
		rule("      when: run\n      if: exit = 1\n") + rule("      when: run\n")[9:]:  "is there twice",
		"  off: [binary-aded]\n":                                                       `did you mean "binary-added"?`,
		"  severity: {unchecked: low}\n  off: [unchecked]\n":                           "has a severity in the same file",
		"  off: [own/a]\n":                   "is no rule of pando's",
		"  severity: {binary-added: huge}\n": "write one of info,",
		strings.Replace(rule("      when: run\n      if: exit = 1\n"), "id: a", "id: o/a", 1): "is no id",
		strings.Replace(rule("      when: run\n      if: exit = 1\n"), "E.", `"\e[2J"`, 1):    "is not printed",
		strings.Replace(rule("      when: run\n      if: exit = 1\n"), "E.", `"a\u202eb"`, 1): "is not printed",
	} {
		if _, err := ParseFile("p", []byte("version: 1\nfindings:\n"+body)); cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, not %q", body, err, want)
		}
	}
}

// What is below the files of host and user adds and raises, and takes nothing away.
func TestFindingsAreMerged(t *testing.T) {
	const own = "  rules: [{id: a, severity: low, explain: E., when: run, if: exit = 1}]\n"
	for _, c := range []struct {
		above, body, layer, below, refused string
	}{
		{LayerUser, own, LayerProject, "  rules: [{id: b, severity: high, explain: E., when: run, if: exit = 1}]\n", ""},
		{LayerUser, own, LayerProject, own, "there is one at p:3"},
		{LayerUser, own, LayerProject, "  off: [binary-added]\n", "cannot switch off the rule binary-added"},
		{LayerUser, own, LayerRun, "  off: [binary-added]\n", "cannot switch off the rule binary-added"},
		{LayerHost, own, LayerUser, "  off: [binary-added]\n", ""},
		{LayerHost, "  severity: {binary-added: high}\n", LayerUser, "  off: [binary-added]\n", "has a severity for it"},
		{LayerHost, "  severity: {binary-added: high}\n", LayerUser, "  severity: {binary-added: low}\n", "says high"},
		{LayerHost, own, LayerUser, "  severity: {binary-added: low}\n", ""},
		{LayerUser, own, LayerProject, "  severity: {binary-added: low}\n", "it is medium"},
		{LayerUser, own, LayerProject, "  severity: {binary-added: high}\n", ""},
		{LayerUser, "  severity: {binary-added: low}\n", LayerProject, "  severity: {binary-added: medium}\n", ""},
		{LayerUser, "  off: [binary-added]\n", LayerProject, "  severity: {binary-added: high}\n", ""},
	} {
		layers := []Layer{{c.above, findingsOf(t, c.body)}, {c.layer, findingsOf(t, c.below)}}
		r, err := MergeLayers(Defaults(Host{}), layers, Flags{})
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%+v: %v", c, err)
		case c.refused != "" && (cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), "(p:3)")):
			t.Errorf("%+v: %v", c, err)
		case err == nil && strings.Contains(c.below, ": high}") && (len(r.Findings.Off) > 0 || r.Findings.Severity["binary-added"] != "high"):
			t.Errorf("%+v: %+v", c, r.Findings)
		}
	}
	if strings.Contains(string(Defaults(Host{}).Canonical()), "findings") {
		t.Error("a policy that says nothing of findings has another digest")
	}
}
