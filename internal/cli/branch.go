package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) branchCmd() *cobra.Command {
	var req api.BranchRequest
	c := &cobra.Command{
		Use:   "branch [flags] CELL",
		Short: "Fork a running cell with its interpreter; the cell continues",
		Long: `Fork a running cell: its interpreter's variables and modules and its files, all of one
instant. The cell is paused for a moment and continues. Neither the cell nor a sibling
can reach a branch, and removing the cell keeps its branches.

State that can't be duplicated is refused or left behind, and named: threads and
subprocesses refuse the branch, connections are cut in the branches. Random number
generators that programs have seeded themselves may be equal in all branches: they are
named as inherited. A command of --at-fork can renew them in each branch, or restart a
program; a branch in which it fails is not made.`,
		Example: `  pando branch web-17 -n 5
  pando eval web-17-b3 'x + 1'`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("count") && req.Count < 1 {
				return usage("-n must be at least 1")
			}
			res, err := a.client.Branch(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				for _, c := range res.Cells {
					fmt.Fprintln(w, c.Name)
				}
				n := "branches"
				if len(res.Cells) == 1 {
					n = "branch"
				}
				a.say("%d %s with %s, in %s; %s was paused for %s", len(res.Cells), n, printable(res.Took), took(res.TookMS), args[0], took(res.PauseMS))
				if res.MemoryTaken != "" {
					a.say("memory capture: %s", printable(res.MemoryTaken))
				}
				a.sayGenerators(res.Inherited, res.Renewed)
				a.sayNotes(res.Notes)
				if len(res.Dropped) > 0 {
					a.say("left behind: %s", printable(strings.Join(res.Dropped, ", ")))
				}
			})
		},
	}
	c.Flags().StringVar(&req.Name, "name", "", "name of the new cell, or the prefix of several (default: CELL-b)")
	c.Flags().StringVar(&req.Certify, "certify", "", certifyHelp)
	c.Flags().StringVar(&req.AtFork, "at-fork", "", atForkHelp)
	c.Flags().IntVarP(&req.Count, "count", "n", 1, "number of branches")
	return c
}
