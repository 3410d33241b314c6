package cli

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// completed returns what a shell is offered for the last of words.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	a := deaf(t)
	root := a.root()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"__complete"}, words...))
	if err := root.Execute(); err != nil {
		t.Fatalf("completing %q: %v", words, err)
	}
	return strings.Fields(out.String())
}

// A word that has no letter yet is completed.
func TestCompletionOfNothing(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{""}, "run"},
		{[]string{"help", ""}, "branch"},
		{[]string{"run", "--on-failure", ""}, "pending"},
		{[]string{"run", "--allow", ""}, "@npm"},
		{[]string{"policy", "show", "--allow", "@p"}, "@pypi"},
		{[]string{"branch", "--certify", ""}, "strict"},
		{[]string{"eval", "--kind", ""}, "node"},
		{[]string{"session", ""}, "attach"},
		{[]string{"session", "start", ""}, "claude"},
	} {
		if got := completed(t, c.words...); !slices.Contains(got, c.want) {
			t.Errorf("%q: %q, without %s", c.words, got, c.want)
		}
	}
	completed(t, "show", "")
	completed(t, "approvals", "approve", "") // starts no daemon: deaf has none to start
}

// Help about a word that is no command is wrong usage, however it is asked for.
func TestHelpAboutNothing(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"frok", "--help"}, "cannot run `pando frok`: there is no such command; did you mean fork?"},
		{[]string{"help", "frok"}, "cannot run `pando frok`: there is no such command; did you mean fork?"},
		{[]string{"help", "policy", "shwo"}, "cannot run `pando policy shwo`: there is no such command; did you mean show?"},
		{[]string{"policy", "shwo", "-h"}, "cannot run `pando policy shwo`: there is no such command; did you mean show?"},
		{[]string{"completion", "tcsh"}, "cannot run `pando completion tcsh`: there is no such command; did you mean bash or zsh or fish?"},
		{[]string{"run", "--chek", "x"}, "unknown flag: --chek; did you mean --check?"},
		{[]string{"run", "--form=."}, "unknown flag: --form; did you mean --from?"},
		{[]string{"run", "--qqqqqqq"}, "unknown flag: --qqqqqqq"},
	} {
		a := deaf(t)
		root := a.root()
		root.SetArgs(c.args)
		_, err := root.ExecuteC()
		if err == nil {
			err = a.unhelped
		}
		if !errors.Is(err, errUsage) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
}
