package cli

import (
	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/catalog"
)

// agentCmds are the commands that start an agent: pando claude.
func (a *app) agentCmds() (list []*cobra.Command) {
	for _, known := range catalog.All() {
		about := known.About()
		list = append(list, a.agentCmd(about.Name, about.Title))
	}
	return list
}

func (a *app) agentCmd(name, title string) *cobra.Command {
	var r runFlags
	of := api.AgentRequest{Name: name}
	c := &cobra.Command{
		Use:   name + " [flags] [--] [ARGS…]",
		Short: "Start " + title + " on a copy of this repository",
		Long: `Start ` + title + ` in a cell on a copy of this repository. It reaches its model and nothing
else (--allow adds to that), has a stored credential lent to it, and asks no first
questions. It may do what it likes in its cell: the source is never written. The
cell has the directory's name unless --cell gives another, and is kept: leave it with
the detach keys, come back with pando attach.

With --prompt it works without a terminal, and ends. ARGS go to the program as they are.
In a cell that exists it works on what is there; --continue goes on with its newest
conversation there.

What the repository configures for it (hooks, servers, helpers, variables) is off, and
named; instructions are text, and are read. --trust-repository switches it on.`,
		Example: `  pando ` + name + `
  pando ` + name + ` --prompt 'fix the failing test' --check 'go test ./...'
  pando ` + name + ` --cell web --continue`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.req.Command, r.req.Agent = args, &of
			if r.req.Command == nil {
				r.req.Command = []string{}
			}
			if tty, _, _ := a.terminal(); !tty && of.Prompt == "" && !r.req.DryRun {
				return usage("%s needs a terminal, or a task: --prompt TEXT", title)
			}
			return a.startAs(cmd, &r)
		},
	}
	a.addRunFlags(c, &r)
	f := c.Flags()
	f.StringVarP(&of.Prompt, "prompt", "p", "", "work on this without a terminal, and end")
	f.StringVar(&of.Autonomy, "autonomy", api.AutonomyFull, "full: it asks nothing; prompting: it asks before it uses a tool")
	f.BoolVar(&of.Continue, "continue", false, "continue its newest conversation in the cell")
	f.BoolVar(&of.TrustRepository, "trust-repository", false, "let it run what the repository configures for it: hooks, servers, helpers, variables")
	complete(c, "autonomy", api.AutonomyFull, api.AutonomyPrompting)
	return c
}
