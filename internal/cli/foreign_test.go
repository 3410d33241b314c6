package cli

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// Words of Docker, git and kubectl that pando takes, because they mean the same.
func TestX57WordsThatAreTaken(t *testing.T) {
	root := deaf(t).root()
	for _, words := range []string{"list", "ls -q", "ls --quiet", "top CELL", "unpause CELL", "rm --all", "logs --tail 3", "logs -n 3", "logs -f --tail 3",
		"run -it sh", "run -i -t sh", "run --interactive --tty sh", "run -e A=B sh", "run -w /x sh", "run -m 1G sh", "run -d sh", "run --cpus 1 sh", "exec -it CELL sh", "exec -e A=B CELL sh",
		"exec -w /x CELL sh", "exec -d CELL sh", "wait RUN RUN", "diff --stat", "cp CELL:/a b", "checkpoint -m text CELL", "history CELL", "pause CELL", "stop CELL"} {
		cmd, rest, err := root.Find(strings.Fields(words))
		if err != nil || cmd == root {
			t.Errorf("pando %s: no such command: %v", words, err)
			continue
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("pando %s: %v", words, err)
		}
	}
}

// All others that are known lead to ours, which there are.
func TestX57WordsThatLeadToOurs(t *testing.T) {
	for _, words := range []string{"apply", "merge", "rebase", "commit", "snapshot", "stash", "reset", "rollback", "checkout", "log", "clone", "kill",
		"start", "restart", "create", "down", "delete", "build", "images", "pull", "rmi", "describe", "get", "port", "prune", "clean", "info", "tag", "rename", "ssh", "sandbox", "upgrade",
		"ps", "run -v /a:/b sh", "run --volume /a:/b sh", "run -p 80:80 sh", "run --rm sh", "run --name x sh", "run -u root sh", "run --privileged sh", "run --network host sh", "run --env-file f sh", "run --entrypoint sh",
		"run --pids-limit 9 sh", "run --gpus all sh", "run -C /x sh", "exec -u root CELL sh", "exec --privileged CELL sh", "ls -a", "ls --all", "logs --since 1h", "logs --timestamps",
		"undo --hard", "diff --name-only", "diff --cached", "rm -f CELL", "rm --force CELL", "cp -r a CELL:b"} {
		a := deaf(t)
		root := a.root()
		root.SetArgs(strings.Fields(words))
		root.SetOut(io.Discard)
		err := root.Execute()
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Kind != "invalid" || e.Hint == "" {
			t.Errorf("pando %s: %v, with no word of ours", words, err)
			continue
		}
		command := root
		if name, _, flag := strings.Cut(words, " "); flag {
			command, _, _ = root.Find([]string{name})
		}
		checkHint(t, words, command, e.Hint)
	}
}

// checkHint finds what a hint names: `pando VERB SUBVERB FLAGS`, and flags of the command.
func checkHint(t *testing.T, words string, command *cobra.Command, hint string) {
	t.Helper()
	named := false
	rest := regexp.MustCompile("`pando ([^`]+)`").ReplaceAllStringFunc(hint, func(s string) string {
		named = true
		args := strings.Fields(strings.Trim(s, "`"))[1:]
		cmd, left, err := command.Root().Find(args)
		if err != nil || cmd == command.Root() {
			t.Errorf("pando %s: the hint names %s, which there is not", words, s)
			return ""
		}
		if len(left) > 0 && cmd.HasSubCommands() && cmd.Run == nil && cmd.RunE == nil {
			t.Errorf("pando %s: the hint names %s, of which %s is none", words, s, left[0])
		}
		for _, f := range regexp.MustCompile(`--[a-z-]+`).FindAllString(s, -1) {
			if cmd.Flag(f[2:]) == nil && cmd.InheritedFlags().Lookup(f[2:]) == nil {
				t.Errorf("pando %s: the hint names %s, and `pando %s` has none", words, f, cmd.Name())
			}
		}
		return ""
	})
	for _, f := range regexp.MustCompile(`--[a-z][a-z-]*|(?:^| )-[a-z]\b`).FindAllString(rest, -1) {
		name := strings.TrimLeft(f, " -")
		runs, _, _ := command.Root().Find([]string{"run"})
		if named = true; command.Flag(name) == nil && command.Flags().ShorthandLookup(name[:1]) == nil && runs.Flag(name) == nil && command.InheritedFlags().Lookup(name) == nil {
			t.Errorf("pando %s: the hint names %s, and there is none", words, f)
		}
	}
	if !named && !strings.Contains(hint, "anyway") && !strings.Contains(hint, "behind --") {
		t.Errorf("pando %s: the hint names nothing of ours: %s", words, hint)
	}
}

func TestLastLines(t *testing.T) {
	for _, x := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 5, "a\nb\n"}, {"a\nb\n", 0, ""}, {"", 3, ""}, {"\n\n\n", 1, "\n"}, {"x", 1, "x"},
		{strings.Repeat("line\n", 100000) + "last\n", 3, "line\nline\nlast\n"}, {strings.Repeat("y", 200000) + "\nz\n", 1, "z\n"},
	} {
		at, err := lastLines(strings.NewReader(x.text), x.n)
		if err != nil || x.text[at:] != x.want {
			t.Errorf("the last %d lines of %.20q are %.20q, not %q (%v)", x.n, x.text, x.text[at:], x.want, err)
		}
	}
}
