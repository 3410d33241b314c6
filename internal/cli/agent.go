package cli

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/policy"
)

// agentCmds are the commands that start an agent: pando claude.
func (a *app) agentCmds() (list []*cobra.Command) {
	for _, known := range catalog.All() {
		list = append(list, a.agentCmd(known))
	}
	return list
}

func (a *app) agentCmd(known agent.Adapter) *cobra.Command {
	name, title := known.About().Name, known.About().Title
	var r runFlags
	var withHome []string
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
conversation, in the cell in which it was started last from here, or in --cell. Each turn
is a checkpoint: pando history shows them, pando undo --turn N goes back to before one.

What the repository configures for it (hooks, servers, helpers, variables) is off, and
named; instructions are text, and are read. --trust-repository switches it on.

It starts as if new: nothing of your home is there. --with-home memory,skills brings along
your instructions and skills, --with-home all also settings, commands and MCP servers:
without what runs by itself, variables, and what looks like a secret. Each is named by
--dry-run. What the agent changes of it stays changed in its cell.`,
		Example: `  pando ` + name + `
  pando ` + name + ` --prompt 'fix the failing test' --check 'go test ./...'
  pando ` + name + ` --cell web --continue
  pando ` + name + ` --cell web --detach; pando attach web`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.startAgent(cmd, known, args, &r, &of, &withHome)
		},
	}
	a.addRunFlags(c, &r)
	addAgentFlags(c, &of, &withHome)
	return c
}

// startAgent starts an agent as flags say, with these arguments for its program.
func (a *app) startAgent(cmd *cobra.Command, known agent.Adapter, args []string, r *runFlags, of *api.AgentRequest, withHome *[]string) error {
	r.req.Command, r.req.Agent = append([]string{}, args...), of
	if tty, _, _ := a.terminal(); !tty && of.Prompt == "" && !r.req.DryRun && !r.detach {
		return usage("%s needs a terminal, or a task: --prompt TEXT; with --detach it has one for pando attach", known.About().Title)
	}
	r.ready = func() error {
		left, err := a.takeHome(of, known, *withHome)
		if len(left) > 0 {
			a.say("pando: of your home stays outside: %s", staysWords(left))
		}
		return err
	}
	return a.startAs(cmd, r)
}

// addAgentFlags adds the flags of an agent to a command; withHome gets what comes along of the home.
func addAgentFlags(c *cobra.Command, of *api.AgentRequest, withHome *[]string) {
	f := c.Flags()
	f.StringVarP(&of.Prompt, "prompt", "p", "", "work on this without a terminal, and end")
	f.StringVar(&of.Autonomy, "autonomy", api.AutonomyFull, "full: it asks nothing; prompting: it asks before it uses a tool")
	f.BoolVar(&of.Continue, "continue", false, "continue its newest conversation in the cell")
	f.StringVar(&of.IdlePause, "idle-pause", "", "pause its cell after this time in which nothing happens and no terminal is attached; attach, send and exec continue it")
	f.StringVar(&of.ModelURL, "model-url", "", "a model server in place of its own service: http://localhost:11434; its key is a --credential for that host, or none")
	f.Var(&trustFlag{of: of}, "trust-repository", "let it run what the repository configures for it: hooks, servers, helpers, variables; a digest of pando inspect: as long as that is what is there")
	f.Lookup("trust-repository").NoOptDefVal = "true"
	f.StringSliceVar(withHome, "with-home", nil, "bring along of your home: settings, skills, commands, memory, servers (a list), or all")
	complete(c, "with-home", append(agent.Kinds(), "all")...)
	f.StringVar(&of.Mode, "mode", policy.AgentStrict, "what it reaches besides its model: strict: nothing; development: package registries; build: these, mirrors of distributions and GitHub; breakglass: any public host")
	f.StringVar(&of.Acknowledge, "acknowledge", "", "today's date (UTC), for mode breakglass")
	f.StringVar(&of.Reason, "reason", "", "why, for mode breakglass")
	annotate(f, perStart, "prompt", "continue", "acknowledge", "reason")
	complete(c, "mode", policy.AgentStrict, policy.AgentDevelopment, policy.AgentBuild, policy.AgentBreakglass)
	complete(c, "autonomy", api.AutonomyFull, api.AutonomyPrompting)
}

// agentFindings checks what an agent needs: its program, where this command line runs, and a
// credential.
func (a *app) agentFindings(ctx context.Context, name string) ([]api.Finding, error) {
	known, err := agentNamed(name)
	if err != nil {
		return nil, err
	}
	about := known.About()
	program := api.Finding{Name: "program", Status: "ok"}
	if at, err := exec.LookPath(about.Program); err == nil {
		program.Found = at
	} else {
		program.Status, program.Found, program.Fix = "missing", about.Program+" is not on PATH", "npm install -g "+about.Package
	}
	stored, err := a.client.Credentials(ctx)
	if err != nil {
		return nil, err
	}
	login := api.Finding{Name: "credential", Status: "missing", Found: "none is stored", Fix: "pando login " + name}
	for _, l := range about.Logins {
		c := credentialIn(stored, l.Credential)
		if c == nil {
			continue
		}
		// A start takes the first credential that is stored, whatever the agent reads of it.
		if login = (api.Finding{Name: "credential", Status: "ok", Found: l.Credential + " is lent to its cells, which reach " + strings.Join(l.Allow, " ")}); !reads(*c, l) {
			login.Status, login.Fix = "missing", "store an API key in its place: pando login "+name
			login.Found = fmt.Sprintf("%s is stored, but cells get it as %s, which %s does not read: it would start and have no login", l.Credential, strings.Join(c.Env, " "), about.Title)
		}
		break
	}
	list := []api.Finding{program, login}
	for i := range list {
		list[i].For = about.Title
	}
	return list, nil
}

// reads reports whether an agent's login reads one of the variables of a credential. One without
// variables is a login file that could not be read yet.
func reads(c api.Credential, l agent.Login) bool {
	return len(c.Env) == 0 || slices.ContainsFunc(c.Env, func(v string) bool { return slices.Contains(l.Variables, v) })
}

// likelyAgent is the first agent that has a login and a program here, else a login, else a program.
func likelyAgent(stored []api.Credential) agent.Adapter {
	all := slices.Clone([]agent.Adapter(catalog.All()))
	points := func(known agent.Adapter) (n int) {
		about := known.About()
		if slices.ContainsFunc(about.Logins, func(l agent.Login) bool { return credentialIn(stored, l.Credential) != nil }) {
			n += 2
		}
		if _, err := exec.LookPath(about.Program); err == nil {
			n++
		}
		return n
	}
	slices.SortStableFunc(all, func(x, y agent.Adapter) int { return points(y) - points(x) })
	return all[0]
}
