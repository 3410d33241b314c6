package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) syncCmd() *cobra.Command {
	var req api.SyncRequest
	c := &cobra.Command{
		Use: "sync [CELL] [-- PATH…]", Short: "Bring into a cell what its source has become",
		Long: `Bring into a cell the changes of its source since the import, the last apply or the last
sync. Files that changed in the cell, too, are merged by three ways, as git merges; where
both changed the same lines, the file in the cell gets git's marks (<<<<<<<), and the exit
code is 1; --no-conflicts changes nothing then. Binary files, and files that one side
removed or renamed otherwise, are refused by name: then nothing is changed. Paths limit it
to the changes there and below.

What the cell was stays as a checkpoint: pando undo takes the sync back. pando diff then
shows the changes of the cell against its source as it is now. Files that git ignores, and
git's own, are left out: commits are not brought. While a run is under way it is refused.
Merging takes git on the daemon's host.
Without a name it is the cell that pando diff shows.`,
		Example: `  pando sync web
  pando sync web --dry-run -- src`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args = args[:n]
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			var paths []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, paths = args[:n], args[n:]
			}
			if len(paths) > 0 {
				cell, err := a.client.Cell(cmd.Context(), arg(args))
				if err != nil {
					return err
				}
				if req.Paths, err = a.inSource(cell.Source, paths); err != nil {
					return err
				}
			}
			res, err := a.client.SyncCell(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			marked := a.conflicts(res.Merged)
			return a.print(res, func(w io.Writer) {
				verb := "synced"
				if res.DryRun {
					verb = "would sync"
				}
				for _, p := range res.Synced {
					if !slices.ContainsFunc(res.Merged, func(f api.Merged) bool { return f.Path == p || slices.Contains(f.Also, p) }) {
						fmt.Fprintf(w, "%s  %s\n", verb, printable(p))
					}
				}
				for _, f := range res.Merged {
					fmt.Fprintf(w, "%s\n", mergedWords(f))
				}
				for _, p := range res.Missed {
					fmt.Fprintf(w, "not synced  %s: it was changed in the cell meanwhile\n", printable(p))
				}
				switch {
				case len(res.Synced)+len(res.Missed) == 0:
					a.say("cell %s has all that became of %s", printable(res.CellName), printable(res.Source))
				case res.DryRun:
					a.say("%s of cell %s would change", plural(len(res.Synced), "file"), printable(res.CellName))
				default:
					a.say("%s of cell %s changed; take it back with: pando undo %s", plural(len(res.Synced), "file"), printable(res.CellName), shellWord(res.CellName))
				}
				a.sayConflicts(marked, res.DryRun)
			})
		},
	}
	c.Flags().BoolVar(&req.NoConflicts, "no-conflicts", false, "change nothing where that leaves conflicts")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print what would be done")
	return c
}

// conflicts counts the merged files in which places are marked; if there are any, the exit code is 1, as git
// merge's is.
func (a *app) conflicts(merged []api.Merged) (files int) {
	for _, f := range merged {
		if f.Conflicts > 0 {
			files++
			a.exit = 1
		}
	}
	return files
}

func (a *app) sayConflicts(files int, dry bool) {
	switch {
	case files > 0 && dry:
		a.say("%s would have conflicts to resolve", plural(files, "file"))
	case files == 1:
		a.say("1 file has conflicts: resolve what is between the marks <<<<<<< and >>>>>>> there")
	case files > 1:
		a.say("%d files have conflicts: resolve what is between the marks <<<<<<< and >>>>>>> there", files)
	}
}

// mergedWords is the line about a merged file.
func mergedWords(f api.Merged) string {
	line := "merged  " + printable(f.Path)
	if f.Conflicts > 0 {
		line = "conflict  " + printable(f.Path) + ": " + plural(f.Conflicts, "place")
	}
	for _, p := range f.Also {
		line += ", formerly " + printable(p)
	}
	return line
}
