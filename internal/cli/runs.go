package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/glob"
)

// runFilter says which runs are listed.
type runFilter struct {
	here     bool
	verdicts []string  // or phases; nil: all
	agent    string    // "": any
	since    time.Time // zero: of all times
	paths    []string  // patterns of changed paths; nil: whatever they changed
	last     int       // at most as many; -1: all
}

func (a *app) runsCmd() *cobra.Command {
	var f runFilter
	var since string
	c := &cobra.Command{
		Use: "runs [CELL]", Short: "List runs, newest first", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		Long: `List runs, newest first: all of them, those of a cell, or those that the flags leave.
With --path it is those that ended and changed a path; * in it is any text, and a
directory stands for what is in it.`,
		Example: `  pando runs --here --verdict pending
  pando runs --agent claude --since 7d --path 'internal/*.go'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var sel *string
			if len(args) == 1 {
				sel = &args[0]
			}
			if f.last < 0 {
				return usage("--last takes a number of runs, not %d", f.last)
			}
			if !cmd.Flags().Changed("last") {
				f.last = -1
			}
			if since != "" {
				d, err := span("--since", since)
				if err != nil {
					return err
				}
				f.since = time.Now().Add(-d)
			}
			for _, v := range f.verdicts {
				if !slices.Contains(runWords, v) {
					return usage("--verdict takes %s, not %q", strings.Join(runWords, ", "), v)
				}
			}
			all, err := a.client.Runs(cmd.Context(), sel)
			if err != nil {
				return err
			}
			runs, gone, err := f.of(cmd.Context(), all, func(ctx context.Context, run string) (api.Diff, error) {
				return a.client.DiffRun(ctx, run, client.DiffOptions{Form: "json", Ignored: true})
			})
			if err != nil {
				return err
			}
			if gone > 0 {
				a.say("the changes of %s are not kept any more: --path leaves them out", plural(gone, "run"))
			}
			return a.print(runs, func(w io.Writer) {
				switch {
				case len(all) == 0:
					a.say("no runs yet: pando run -- COMMAND starts one")
				case len(runs) == 0:
					a.say("none of %s matches: pando runs lists all", plural(len(all), "run"))
				default:
					a.tableOfRuns(w, runs)
				}
			})
		},
	}
	c.Flags().IntVarP(&f.last, "last", "n", 0, "only the newest N runs")
	c.Flags().BoolVar(&f.here, "here", false, "only of cells that work on this directory")
	c.Flags().StringSliceVar(&f.verdicts, "verdict", nil, "only with this verdict, or in this phase; several with commas between")
	c.Flags().StringVar(&f.agent, "agent", "", "only of this coding agent")
	c.Flags().StringVar(&since, "since", "", "only those that began within this time: 90m, 12h, 7d")
	c.Flags().StringArrayVar(&f.paths, "path", nil, "only those that changed this path; repeatable: any of them")
	complete(c, "verdict", runWords...)
	complete(c, "agent", catalog.All().Names()...)
	c.AddCommand(a.runsExportCmd())
	return c
}

// runWords are the verdicts of runs, and the phases before them.
var runWords = []string{"pending", "accepted", "restored", "forked", "discarded", "preparing", "executing", "finishing", "running"}

// verdictOf is what a list says of a run: its verdict, or how far it is.
func verdictOf(r *api.Run) string { return cmp.Or(r.Verdict, r.Phase) }

// of returns the runs of a list that match, in their order. gone is the number of those that would match
// but for their changes, which are not kept any more.
func (f *runFilter) of(ctx context.Context, list []api.Run, diff func(_ context.Context, run string) (api.Diff, error)) (out []api.Run, gone int, err error) {
	here := func(string) bool { return true }
	if f.here {
		if here, err = worksHere(); err != nil {
			return nil, 0, err
		}
	}
	out = []api.Run{}
	for i := range list {
		r := &list[i]
		if len(out) == f.last {
			break
		}
		v := verdictOf(r)
		if !slices.ContainsFunc(append([]string{r.Source}, r.Repositories...), here) || f.agent != "" && r.Agent != f.agent || r.Created.Before(f.since) ||
			f.verdicts != nil && !slices.Contains(f.verdicts, v) && (r.Phase == "ended" || !slices.Contains(f.verdicts, "running")) {
			continue
		}
		if f.paths != nil {
			switch changed, err := f.changed(ctx, r, diff); {
			case isGone(err):
				gone++
				continue
			case err != nil:
				return nil, 0, err
			case !changed:
				continue
			}
		}
		out = append(out, *r)
	}
	return out, gone, nil
}

// changed reports whether a run changed what one of the patterns names, under its old or its new name.
func (f *runFilter) changed(ctx context.Context, r *api.Run, diff func(_ context.Context, run string) (api.Diff, error)) (bool, error) {
	if r.Phase != "ended" || r.Changes.Files+r.Changes.Ignored == 0 { // to look at one that goes on would make a checkpoint
		return false, nil
	}
	d, err := diff(ctx, r.ID)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(f.paths, func(p string) bool {
		return slices.ContainsFunc(d.Files, func(c api.FileChange) bool {
			return glob.Below(p, c.Path) || c.OldPath != "" && glob.Below(p, c.OldPath)
		})
	}), nil
}

// isGone reports whether an error says that something is not there any more.
func isGone(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Kind == "not-found"
}

func (a *app) tableOfRuns(w io.Writer, runs []api.Run) {
	t := a.newTable(w)
	bare := slices.ContainsFunc(runs, func(r api.Run) bool { return r.Isolation == api.NotIsolated })
	t.row(isolationRow(bare, 2, "ISOLATION", "RUN", "CELL", "EXIT", "VERDICT", "CHANGED", "STARTED", "COMMAND")...)
	for i := range runs {
		r := &runs[i]
		exit := "–"
		if r.ExitCode != nil {
			exit = fmt.Sprint(*r.ExitCode)
		}
		name := r.CellName
		if name == "" {
			name = r.Cell[:10]
		}
		verdict := verdictOf(r)
		if r.Error != nil && r.ExitCode != nil {
			verdict = "unfinished"
		}
		t.row(isolationRow(bare, 2, r.Isolation, r.ID, name, exit, verdict, fmt.Sprint(r.Changes.Files), ago(r.Created), cut(strings.Join(r.Command, " "), 50))...)
	}
	t.flush()
	for _, r := range runs {
		if r.Detached {
			a.say("%s goes on, and no terminal is attached: pando attach %s", r.ID, r.ID)
		}
	}
}
