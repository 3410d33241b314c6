package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/policy"
)

// sessionName is the command with the verbs of cells as subcommands.
const sessionName = "session"

// sessionCmd has the verbs of cells that are of use in one with an agent. Alone it lists those cells.
func (a *app) sessionCmd() *cobra.Command {
	start := &cobra.Command{Use: "start AGENT", Short: "Start an agent", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	start.AddCommand(a.agentCmds()...)
	ls := a.listCmd(true)
	verbs := []*cobra.Command{start, ls, a.continueCmd(), a.attachCmd(), a.sendCmd(), a.pauseCmd(), a.resumeCmd(), a.stopCmd(), a.showCmd(), a.logsCmd(), a.historyCmd(), a.diffCmd(),
		a.acceptCmd(), a.discardCmd(), a.undoCmd(), a.checkpointCmd(), a.forkCmd(), a.forwardCmd(), a.rmCmd()}
	var names []string
	for _, v := range verbs {
		names = append(names, v.Name())
	}
	c := &cobra.Command{
		Use: sessionName + " [VERB]", Short: "Work with cells that have a coding agent in them", Args: cobra.NoArgs, RunE: ls.RunE,
		Long: `A session is a cell with a coding agent in it, so every verb of cells works on it:
` + "`pando session stop app`" + ` is ` + "`pando stop app`" + `, and ` + "`pando session start claude`" + ` is ` + "`pando claude`" + `.
Without a verb, or with ls, it lists the sessions, as ` + "`pando ls --agents`" + ` does. The verbs:

  ` + strings.Join(names[:9], ", ") + `,
  ` + strings.Join(names[9:], ", "),
		Example: `  pando session start claude --detach
  pando session attach app`,
	}
	c.AddCommand(verbs...)
	return c
}

// continueCmd starts the agent of a cell again, with its newest conversation. It is a verb of sessions
// alone: pando resume continues what was paused.
func (a *app) continueCmd() *cobra.Command {
	var r runFlags
	var withHome []string
	var of api.AgentRequest
	c := &cobra.Command{
		Use:   "continue [flags] CELL [-- ARGS…]",
		Short: "Start the agent of a cell again, with its newest conversation",
		Long: `Start the agent of a cell again, with its newest conversation, as pando AGENT
--cell CELL --continue does. It has the mode, autonomy and model server of its latest
start there, or of a fork before its first one that in its source, unless flags give
others: not mode breakglass, which is acknowledged at each start, and not
--trust-repository. Defaults of pando config do not change these. With --prompt it
works without a terminal, and ends; autonomy prompting is not taken over then. ARGS go
to the program as they are.`,
		Example: `  pando session continue app
  pando session continue app --prompt 'now write the tests'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n > 1 || n < 0 && len(args) > 1 {
				return usage("arguments of the program come after --")
			} else if n == 0 || len(args) == 0 {
				return usage("name the cell")
			}
			return nil
		},
		ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			known, err := a.agentAgain(cmd, args[0], true)
			if err != nil {
				return err
			}
			of.Name = known.About().Name
			return a.startAgent(cmd, known, args[1:], &r, &of, &withHome)
		},
	}
	a.addRunFlags(c, &r)
	addAgentFlags(c, &of, &withHome)
	f := c.Flags()
	f.SetInterspersed(true)
	for _, name := range []string{"cell", "continue", "from", "image", "kernel", "with-secret"} { // the cell exists
		f.MarkHidden(name)
	}
	return c
}

// agentAgain gives the flags of an agent what the latest start of a cell's agent had, where they do not
// say it themselves, and returns the agent. With conversation it goes on with the newest one.
func (a *app) agentAgain(cmd *cobra.Command, cell string, conversation bool) (agent.Adapter, error) {
	c, err := a.client.Cell(cmd.Context(), cell)
	if err != nil {
		return nil, err
	}
	if c.Agent == "" {
		return nil, &api.Error{Kind: "not-found", Message: "no agent was started in cell " + c.Name, Hint: "pando ls --agents lists the cells that have one; pando claude --cell " + c.Name + " starts one there"}
	}
	known, err := agentNamed(c.Agent)
	if err != nil {
		return nil, err
	}
	latest, err := a.latestStart(cmd.Context(), c)
	if err != nil {
		return nil, err
	}
	flags := cmd.Flags()
	if latest.Cell == c.ID && latest.Phase == phaseExecuting && !flags.Changed("dry-run") {
		return nil, &api.Error{Kind: "conflict", Message: known.About().Title + " is at work in cell " + c.Name, Hint: "pando attach " + c.Name}
	}
	if latest.ID == "" {
		a.say("pando: of %s no start in cell %s is known: its mode, autonomy and model server are the defaults", known.About().Title, c.Name)
	} else if err := a.startedAs(flags, latest); err != nil {
		return nil, err
	}
	return known, errors.Join(flags.Set("cell", c.Name), flags.Set("continue", strconv.FormatBool(conversation)))
}

// latestStart is the latest run of the agent of a cell. In a fork without one it is that of the cell that it was
// forked from, of before then. Its id is empty if none is known.
func (a *app) latestStart(ctx context.Context, c api.Cell) (api.Run, error) {
	known := c.Agent
	var until time.Time // it was forked
	for {
		runs, err := a.client.Runs(ctx, &c.ID)
		if err != nil {
			return api.Run{}, err
		}
		for _, r := range runs { // newest first
			if r.Agent == known && (until.IsZero() || r.Created.Before(until)) {
				return r, nil
			}
		}
		if c.Parent == nil {
			return api.Run{}, nil
		}
		until = c.Created
		c, err = a.client.Cell(ctx, c.Parent.Cell)
		if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == "not-found" { // it was removed
			return api.Run{}, nil
		} else if err != nil {
			return api.Run{}, err
		}
	}
}

// startedAs gives the flags of an agent that the command line leaves out what a start of it had. What was the
// built-in default then is set, too: a default of the configuration is not to widen it.
func (a *app) startedAs(flags *pflag.FlagSet, latest api.Run) error {
	mode, autonomy := cmp.Or(latest.Mode, policy.AgentStrict), cmp.Or(latest.Autonomy, api.AutonomyFull)
	if mode == policy.AgentBreakglass && !flags.Changed("mode") {
		a.say("pando: mode breakglass is not taken over: it is acknowledged at each start")
		mode = policy.AgentStrict
	}
	if task, _ := flags.GetString("prompt"); task != "" && autonomy == api.AutonomyPrompting && !flags.Changed("autonomy") {
		a.say("pando: autonomy prompting is not taken over: with --prompt there is no terminal at which it could ask")
		autonomy = api.AutonomyFull
	}
	for _, f := range []struct{ name, value string }{{"mode", mode}, {"autonomy", autonomy}, {"model-url", latest.ModelURL}, {"trust-repository", "false"}} {
		if flags.Changed(f.name) {
			continue
		}
		if err := flags.Set(f.name, f.value); err != nil {
			return err
		}
	}
	return nil
}
