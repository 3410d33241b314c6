package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The published page of the command line is what the commands say; a change of a verb or
// a flag is a change of the page. PANDO_UPDATE=1 writes it.
func TestX57PageOfTheCommandLine(t *testing.T) {
	a := deaf(t)
	var out bytes.Buffer
	a.stdout = &out
	root := a.root()
	root.SetArgs([]string{"help", "--json"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	var all []command
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	const name = "../../docs/reference/cli.md"
	want := page(all, root.Groups())
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		t.Errorf("docs/reference/cli.md is not what the commands say (%v): run PANDO_UPDATE=1 go test ./internal/cli -run PageOfTheCommandLine", err)
	}
}

// page is the page of the command line.
func page(all []command, groups []*cobra.Group) string {
	var b strings.Builder
	b.WriteString(`# The command line

All commands and flags, as ` + "`pando help --json`" + ` says them. Each has ` + "`--json`" + ` (one JSON
document on stdout, JSON Lines where it streams; [its types](json.md)) and ` + "`--help`" + `.
Words of Docker and git that mean the same are taken, too (` + "`list`, `top`, `unpause`, `run -it`" + `);
others are answered with the word that pando has.
`)
	section := func(c command) {
		fmt.Fprintf(&b, "\n### pando %s\n\n```\npando %s\n```\n\n%s.", c.Command, c.Use, c.Short)
		if len(c.Aliases) > 0 {
			fmt.Fprintf(&b, " Also `pando %s`.", strings.Join(c.Aliases, "`, `pando "))
		}
		b.WriteString("\n")
		if c.Long != "" {
			fmt.Fprintf(&b, "\n```text\n%s\n```\n", strings.TrimSpace(c.Long))
		}
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", strings.Trim(c.Example, "\n"))
		}
		if len(c.Flags) > 0 {
			b.WriteString("\n| Flag | What it does |\n|---|---|\n")
		}
		cell := strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")
		for _, f := range c.Flags {
			flag := "--" + f.Name
			if f.Letter != "" {
				flag = "-" + f.Letter + ", " + flag
			}
			if f.Value != "" {
				flag += " " + f.Value
			}
			says := f.Says
			if f.Default != "" && !strings.Contains(says, "default") {
				says += " (default: " + f.Default + ")"
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", flag, cell.Replace(says))
		}
	}
	byGroup := map[string][]command{}
	group := ""
	for _, c := range all {
		if c.Group != "" {
			group = c.Group // those below a command are of its group
		}
		byGroup[group] = append(byGroup[group], c)
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range byGroup[g.ID] {
			section(c)
		}
	}
	return b.String()
}
