// Package agenttest is what every adapter of a coding agent fulfils.
package agenttest

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/policy"
)

// Run tries an adapter.
func Run(t *testing.T, a agent.Adapter) {
	about := a.About()
	if about.Name == "" || about.Title == "" || about.Program == "" || about.Package == "" || len(about.Logins) == 0 {
		t.Fatalf("facts are missing: %+v", about)
	}
	for _, l := range about.Logins {
		t.Run(l.Credential, func(t *testing.T) { login(t, a, l) })
	}
}

// login tries an adapter with one of its logins.
func login(t *testing.T, a agent.Adapter, l agent.Login) {
	about := a.About()
	start := agent.Start{Dir: "/home/user/repo/sub", Root: "/home/user/repo", Env: []string{"HOME=/home/user"}, Login: l}
	for _, v := range l.Variables {
		start.Env = append(start.Env, v+"=sk-pando0123456789012345678901234567890123456789")
	}

	t.Run("about", func(t *testing.T) {
		if len(l.Allow) == 0 || len(l.Variables) == 0 {
			t.Errorf("facts are missing: %+v", l)
		}
		for _, p := range l.Allow {
			if strings.HasPrefix(p, "@") && !slices.Contains(policy.Presets(), p) {
				t.Errorf("there is no preset %s", p)
			}
		}
		c, ok := credential.WellKnown(l.Credential)
		if !ok {
			t.Errorf("credential %s is not well known: --for and --as would have to be given", l.Credential)
		}
		for _, v := range l.Variables {
			if !slices.Contains(c.Env, v) {
				t.Errorf("credential %s does not set %s", l.Credential, v)
			}
		}
	})

	t.Run("command", func(t *testing.T) {
		plain, err := a.Command(start)
		if err != nil || plain[0] != about.Program {
			t.Fatalf("%q, %v", plain, err)
		}
		task := start
		task.Prompt, task.Args = "tidy up", []string{"--model", "small"}
		with, err := a.Command(task)
		if err != nil || !slices.ContainsFunc(with, func(s string) bool { return strings.HasSuffix(s, "tidy up") }) || !slices.Contains(with, "small") {
			t.Errorf("with a task and an argument: %q, %v", with, err)
		}
		task.Prompt = "--tidy"
		if with, err := a.Command(task); err != nil || slices.Contains(with, "--tidy") && !slices.Contains(with, "--") {
			t.Errorf("a task is an option: %q, %v", with, err)
		}
		asks := start
		asks.Asks = true
		if prompting, err := a.Command(asks); err != nil || slices.Equal(prompting, plain) {
			t.Errorf("an agent that asks is started as one that does not: %q, %v", prompting, err)
		}
		again := start
		again.Continue = true
		if continued, err := a.Command(again); err != nil || slices.Equal(continued, plain) {
			t.Errorf("a conversation is continued as a new one begins: %q, %v", continued, err)
		}
		// What an adapter arranges is no argument of the user's.
		for _, arg := range plain[1:] {
			if !strings.HasPrefix(arg, "--dangerously") && !strings.HasPrefix(arg, "--yolo") {
				continue
			}
			undone := asks
			undone.Args = []string{arg}
			if argv, err := a.Command(undone); err == nil {
				t.Errorf("an agent that shall ask is started with %s: %q", arg, argv)
			}
		}
	})

	t.Run("environment", func(t *testing.T) {
		for _, kv := range a.Env(start) {
			if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || slices.Contains(l.Variables, name) {
				t.Errorf("%q is no variable of an adapter", kv)
			}
		}
	})

	t.Run("repository", func(t *testing.T) {
		task, trusts := start, start
		task.Prompt, trusts.Trusts = "tidy up", true
		off := a.Off(task)
		if len(off) == 0 || len(a.Off(trusts)) > 0 {
			t.Errorf("off are %q, and %q when the repository is trusted", off, a.Off(trusts))
		}
		for _, p := range off {
			if p != path.Clean(p) || path.IsAbs(p) || strings.HasPrefix(p, "..") {
				t.Errorf("%q is no path below a repository", p)
			}
		}
		// The same cell is started both ways, one after the other.
		for i, f := range a.Files(start) {
			if f.Link != "" {
				continue
			}
			once := f.Make(nil)
			for _, g := range a.Files(trusts) {
				if g.Path == f.Path {
					if back := f.Make(g.Make(bytes.Clone(once))); !bytes.Equal(back, once) {
						t.Errorf("file %d, %s, is not what it was after a start with trust:\n%s\n%s", i, f.Path, once, back)
					}
				}
			}
		}
	})

	t.Run("files", func(t *testing.T) {
		for _, f := range a.Files(start) {
			if f.Path != path.Clean(f.Path) || path.IsAbs(f.Path) || strings.HasPrefix(f.Path, "..") {
				t.Errorf("%q is no path below a home", f.Path)
			}
			if f.Link != "" {
				if f.Make != nil || !strings.HasPrefix(f.Link, start.Root+"/") {
					t.Errorf("%s leads to %s, which is not in the repository", f.Path, f.Link)
				}
				continue
			}
			first := f.Make(nil)
			if len(first) == 0 {
				t.Errorf("%s is empty", f.Path)
			}
			if second := f.Make(bytes.Clone(first)); !bytes.Equal(first, second) {
				t.Errorf("%s is not the same when it is made again:\n%s\n%s", f.Path, first, second)
			}
			for _, rubbish := range []string{"", "null", "[]", "1", `"x"`, "{", `{"projects":[]}`, `{"projects":{"/home/user/repo":7}}`, "\xff\x00"} {
				f.Make([]byte(rubbish)) // does not panic
			}
			deep := strings.Repeat(`{"a":[`, 4000) + strings.Repeat("0,", 1000) + "0" + strings.Repeat("]}", 4000)
			if made := f.Make([]byte(deep)); len(made) > 2*len(deep) {
				t.Errorf("%s: %d bytes of a cell become %d", f.Path, len(deep), len(made))
			}
			if !json.Valid(first) {
				continue
			}
			var kept map[string]any
			made := f.Make([]byte(`{"of the user": [1, 2], "projects": {"/elsewhere": {"x": 12345678901234567}}}`))
			if err := json.Unmarshal(made, &kept); err != nil || kept["of the user"] == nil || !bytes.Contains(made, []byte("12345678901234567")) {
				t.Errorf("%s loses what was in it: %s", f.Path, made)
			}
		}
	})
}
