package catalog

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
)

// page is made from the adapters. PANDO_UPDATE=1 writes it.
const page = "../../../docs/reference/agents.md"

func TestPage(t *testing.T) {
	want := written(t)
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/reference/agents.md is not what the adapters say (%v): run PANDO_UPDATE=1 go test ./internal/agent/catalog", err)
	}
}

// What an adapter names as tested is what the tests install.
func TestTested(t *testing.T) {
	pins, err := os.ReadFile("../../../tools/agents")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range All() {
		about := a.About()
		line := regexp.MustCompile(`(?m)^install ` + about.Name + ` \S+@(\S+) `).FindSubmatch(pins)
		if line == nil || string(line[1]) != about.Tested {
			t.Errorf("%s is said to be tested with %s, and tools/agents installs %q", about.Title, about.Tested, line)
		}
	}
}

func written(t *testing.T) []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, `# Agents

What `+"`pando AGENT`"+` starts, from the adapters. A repository's directory is `+"`/src`"+` here. What follows `+"`--`"+` on the
command line comes where ARGS stands; of several logins the first counts that is asked for (`+"`--credential`"+`,
`+"`--env`"+`), then the first that is stored. Where the credential is an API key, what the cell has is a placeholder.
`)
	for _, a := range All() {
		about := a.About()
		fmt.Fprintf(&b, "\n## %s: `pando %s`\n\n| | |\n|---|---|\n| installed by | `npm install -g %s` |\n| tested with | %s |\n", about.Title, about.Name, about.Package, about.Tested)
		for _, l := range about.Logins {
			reads := ""
			if l.Reads != "" {
				reads = ", read as `" + l.Reads + "`"
			}
			fmt.Fprintf(&b, "| login | credential `%s` (%s%s), hosts `%s` |\n", l.Credential, code(l.Variables), reads, strings.Join(l.Allow, " "))
		}
		if s := about.Setup; s != nil {
			fmt.Fprintf(&b, "| `--setup-token` | `%s %s`, hosts `%s` |\n", about.Program, strings.Join(s.Args, " "), strings.Join(s.Allow, " "))
		}
		start := agent.Start{Args: []string{"ARGS"}, Dir: "/src", Root: "/src", Login: about.Logins[0], Env: []string{about.Logins[0].Variables[0] + "=PLACEHOLDER"}}
		row := func(what string, change func(*agent.Start)) {
			s := start
			change(&s)
			argv, err := a.Command(s)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "| %s | `%s` |\n", what, strings.Join(argv, " "))
		}
		row("at a terminal", func(*agent.Start) {})
		row("`--prompt TASK`", func(s *agent.Start) { s.Prompt = "TASK" })
		row("`--continue`", func(s *agent.Start) { s.Continue = true })
		row("`--autonomy prompting`", func(s *agent.Start) { s.Asks = true })
		served := start
		served.Model = "http://HOST"
		argv, err := a.Command(served)
		if err != nil {
			t.Fatal(err)
		}
		plain, _ := a.Command(start)
		added := slices.DeleteFunc(append(argv, a.Env(served)...), func(s string) bool { return slices.Contains(append(plain, a.Env(start)...), s) })
		fmt.Fprintf(&b, "| `--model-url http://HOST` adds | %s |\n", code(added))
		for _, l := range about.Logins {
			start.Login = l
			what := "variables"
			if len(about.Logins) > 1 {
				what += ", with `" + l.Credential + "`"
			}
			if env := a.Env(start); len(env) > 0 {
				fmt.Fprintf(&b, "| %s | %s |\n", what, code(env))
			}
		}
		start.Login = about.Logins[0]
		start.Prompt = ""
		off := a.Off(start)
		what := "off in the repository"
		if len(off) == 0 {
			start.Prompt, what = "TASK", what+", with `--prompt` alone"
			off = a.Off(start)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", what, code(off))
		start.Prompt = ""
		row("`--trust-repository`", func(s *agent.Start) { s.Trusts = true })
		fmt.Fprint(&b, "\nOf your home with `--with-home`:\n\n| | |\n|---|---|\n")
		for _, kind := range agent.Kinds() {
			var paths []string
			for _, br := range a.Brings() {
				if br.Kind != kind {
					continue
				}
				at := "`" + br.Path + "`"
				switch {
				case br.Argument:
					at += ", a part, as `--mcp-config`"
				case br.Take != nil:
					at += ", a part"
				}
				paths = append(paths, at)
			}
			if len(paths) > 0 {
				fmt.Fprintf(&b, "| %s | %s |\n", kind, strings.Join(paths, "; "))
			}
		}
		fmt.Fprint(&b, "\nFiles of its home, where there are none yet:\n")
		for _, f := range a.Files(start) {
			if f.Link != "" {
				fmt.Fprintf(&b, "\n`%s` is a link to `%s`, so that its instructions are read.\n", f.Path, f.Link)
				continue
			}
			fmt.Fprintf(&b, "\n`%s`\n\n```\n%s\n```\n", f.Path, bytes.TrimSpace(f.Make(nil)))
		}
	}
	return b.Bytes()
}

// code is a list of words in code.
func code(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }

// An adapter has a name, a program and a title of its own.
func TestNames(t *testing.T) {
	names := All().Names()
	if len(slices.Compact(names)) != len(All()) {
		t.Errorf("two have one name: %v", names)
	}
	for _, a := range All() {
		if found, ok := All().Find(a.About().Name); !ok || found != a {
			t.Errorf("%s is not found", a.About().Name)
		}
	}
}
