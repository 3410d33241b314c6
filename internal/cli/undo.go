package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (a *app) undoCmd() *cobra.Command {
	var req api.UndoRequest
	var noStart bool
	c := &cobra.Command{
		Use: "undo [CELL]", Short: "Undo a cell's latest change",
		Long: `Restore a cell to before its latest change, or to checkpoint N. Changes that were
applied to the source are undone, too; when a file there has changed since, nothing is
changed, and the file is named. The cell's processes end, as with pando restore.
With --turn the cell's agent is ended, and workspace and home are what they were before
that turn of its conversation. At a terminal the agent is then started again there, as
pando session continue does; without one, and with --no-start, the line that starts it
is printed, and with --json the result alone.
Without a name it is the cell that pando diff shows.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("to") && req.To < 1 { // 0 is the step before for the daemon
				return usage("--to must be at least 1; pando history shows the numbers")
			}
			if cmd.Flags().Changed("turn") && req.Turn < 1 {
				return usage("--turn must be at least 1; pando history shows the turns")
			}
			if noStart && req.Turn == 0 {
				return usage("--no-start goes with --turn: nothing is started else")
			}
			res, err := a.client.Undo(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			err = a.print(res, func(io.Writer) { a.restored(res, req.DryRun) })
			if err != nil || req.Turn == 0 || req.DryRun || res.Cell.Agent == "" || a.json {
				return err
			}
			conversation, err := a.hasConversation(cmd.Context(), res)
			if err != nil {
				return err
			}
			if tty, _, _ := a.terminal(); !tty || noStart {
				if conversation {
					a.say("its home is, too; take the conversation up there: pando %s --cell %s --continue", res.Cell.Agent, res.Cell.Name)
				} else {
					a.say("its home is, too; the conversation begins there: pando %s --cell %s", res.Cell.Agent, res.Cell.Name)
				}
				return nil
			}
			return a.startAgain(cmd.Context(), res.Cell.Name, conversation)
		},
	}
	c.Flags().IntVar(&req.To, "to", 0, "go back to this checkpoint")
	c.Flags().IntVar(&req.Turn, "turn", 0, "go back to before this turn of the cell's agent, and start it again there")
	c.Flags().BoolVar(&noStart, "no-start", false, "with --turn: do not start the agent again")
	c.Flags().BoolVar(&req.KeepSource, "keep-source", false, "keep the applied changes in the source")
	c.Flags().BoolVarP(&req.Lose, "yes", "y", false, "go back past later runs without asking")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print what would be done")
	return c
}

// startAgain starts the agent of a cell at this terminal, as pando session continue does: with the
// newest conversation, or with a new one.
func (a *app) startAgain(ctx context.Context, cell string, conversation bool) error {
	var r runFlags
	var of api.AgentRequest
	var withHome []string
	c := &cobra.Command{}
	c.SetContext(ctx)
	a.addRunFlags(c, &r)
	addAgentFlags(c, &of, &withHome)
	known, err := a.agentAgain(c, cell, conversation)
	if err != nil {
		return err
	}
	of.Name = known.About().Name
	return a.startAgent(c, known, nil, &r, &of, &withHome)
}

// hasConversation reports whether a conversation of the agent was under way where a cell is now: before its
// first turn there is none, and an agent that is to go on with it refuses to start.
func (a *app) hasConversation(ctx context.Context, at api.RestoreResult) (bool, error) {
	list, err := a.client.History(ctx, at.Cell.ID)
	if err != nil {
		return false, err
	}
	runs, err := a.client.Runs(ctx, &at.Cell.ID)
	if err != nil {
		return false, err
	}
	return conversed(list, runs, at.Number), nil
}

// conversed reports whether a turn above a checkpoint was not undone: its run went on, or ended by itself and its
// result was not taken back, or was ended and nothing went back to where the turn began. What goes back keeps the
// state before, which is a child of that checkpoint, too, and the first.
func conversed(list []api.Checkpoint, runs []api.Run, number int) bool {
	by, first, verdict, stays, later := map[int]api.Checkpoint{}, map[int]int{}, map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, k := range list {
		by[k.Number] = k
		if child := first[k.Parent]; child == 0 || k.Number < child {
			first[k.Parent] = k.Number
		}
	}
	for _, r := range runs {
		verdict[r.ID], stays[r.ID] = r.Verdict, r.Cause == "" && r.Verdict != string(cell.Restored)
	}
	later[by[number].Run] = true
	for child, n := number, by[number].Parent; n > 0; child, n = n, by[n].Parent {
		k := by[n]
		went := later[k.Run] || stays[k.Run] || verdict[k.Run] != "" && verdict[k.Run] != string(cell.Restored) && first[n] == child
		if k.Turn > 0 && went || k.Kind == "fork" && k.Home && k.Parent == 0 { // a fork has a checkpoint of its kind in its source, too
			return true
		}
		later[k.Run] = true
	}
	return false
}
