package policy

import "testing"

// A preset with paths allows these alone, and denied it is all of its hosts. It does not take the paths of
// others beside it, nor do they take its own.
func TestPresetWithPaths(t *testing.T) {
	t.Parallel()
	allow := (&fileRule{hosts: []string{"@anthropic-login", "@npm"}}).must(t)
	if len(allow) != 2 || len(allow[0].Paths) != 2 || allow[0].Hosts[0] != "platform.claude.com" || len(allow[1].Paths) != 0 {
		t.Errorf("allowed are %+v", allow)
	}
	if deny := (&fileRule{hosts: []string{"@anthropic-login"}, deny: true}).must(t); len(deny) != 1 || len(deny[0].Paths) != 0 {
		t.Errorf("denied are %+v", deny)
	}
	own := (&fileRule{hosts: []string{"@anthropic-login"}, rule: Rule{Paths: []string{"/v1/oauth/hello"}}}).must(t)
	if len(own) != 1 || len(own[0].Paths) != 1 {
		t.Errorf("with a path of the user's, allowed are %+v", own)
	}
	t2, err := parseTarget("@anthropic-login")
	if r := t2.rule(webPorts()); err != nil || len(r.Paths) != 2 || !r.Inside() {
		t.Errorf("--allow allows %+v, %v", r, err)
	}
}

func (f *fileRule) must(t *testing.T) []Rule {
	t.Helper()
	rules, err := f.rules()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}
