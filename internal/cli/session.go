package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// sessionName is the command with the verbs of cells as subcommands.
const sessionName = "session"

// sessionCmd has the verbs of cells that are of use in one with an agent. Alone it lists those cells.
func (a *app) sessionCmd() *cobra.Command {
	start := &cobra.Command{Use: "start AGENT", Short: "Start an agent", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	start.AddCommand(a.agentCmds()...)
	ls := a.listCmd(true)
	verbs := []*cobra.Command{start, ls, a.attachCmd(), a.sendCmd(), a.pauseCmd(), a.resumeCmd(), a.stopCmd(), a.showCmd(), a.logsCmd(), a.historyCmd(), a.diffCmd(),
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
