package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
)

// StatusItem is one thing that waits for the user, or goes on.
type StatusItem struct {
	What   string `json:"what"`   // "answer": a request waits for an answer; "decide": a result waits; "moved": the source of one changed meanwhile; "failed": a run did; "runs": it goes on
	Source string `json:"source"` // the directory that the cell works on; empty when it has none
	// Repositories are the directories that it has beside that one.
	Repositories []string  `json:"repositories,omitempty"`
	Cell         string    `json:"cell"` // id
	Name         string    `json:"cell_name"`
	Run          string    `json:"run,omitempty"`
	Since        time.Time `json:"since"` // of "moved": since when the result waits
	Text         string    `json:"text"`  // what it is about
	Next         string    `json:"next"`  // the command that goes on from there
}

// failedFor is how long a failed run is listed, if nothing was run in its cell since.
const failedFor = 24 * time.Hour

func (a *app) statusCmd() *cobra.Command {
	var here bool
	c := &cobra.Command{
		Use: "status", Short: "Show what waits for a decision or an answer, what runs, and what failed",
		Long: `Show, for all directories or with --here for this one, the requests that wait for an
answer, the results that wait for a decision, the runs that go on, and those that failed
within a day, if nothing was run in their cell since. Where the source of a result that
waits changed meanwhile, it says which files did. Each line ends with the command that
goes on from there.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			runs, err := a.client.Runs(ctx, nil)
			if err != nil {
				return err
			}
			cells, err := a.client.Cells(ctx)
			if err != nil {
				return err
			}
			asked, err := a.client.Approvals(ctx, false)
			if err != nil {
				return err
			}
			items := statusOf(cells, runs, asked, time.Now())
			if here {
				of, err := worksHere()
				if err != nil {
					return err
				}
				items = slices.DeleteFunc(items, func(i StatusItem) bool {
					return !slices.ContainsFunc(append([]string{i.Source}, i.Repositories...), of)
				})
			}
			items = a.withMoved(ctx, items)
			return a.print(items, func(w io.Writer) {
				if len(items) == 0 {
					a.say("nothing waits, and nothing runs")
					return
				}
				for n, i := range items {
					if n > 0 && items[n-1].Source == i.Source {
						continue
					}
					if n > 0 {
						fmt.Fprintln(w)
					}
					fmt.Fprintln(w, cmp.Or(printable(i.Source), "without a directory"))
					t := a.newTable(w)
					for _, i := range items[n:] {
						if i.Source != items[n].Source {
							break
						}
						t.row("  "+i.What, i.Name, cut(printable(i.Text), 60), ago(i.Since), i.Next)
					}
					t.flush()
				}
			})
		},
	}
	c.Flags().BoolVar(&here, "here", false, "only cells that work on this directory")
	return c
}

// worksHere returns a function that reports whether a cell that works on a directory works on
// the one in which the command runs.
func worksHere() (func(source string) bool, error) {
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return func(source string) bool {
		below, err := filepath.Rel(source, dir)
		return source != "" && err == nil && below != ".." && !strings.HasPrefix(below, "../")
	}, err
}

// statusOf lists what waits or goes on.
func statusOf(cells []api.Cell, runs []api.Run, asked []api.Approval, now time.Time) []StatusItem {
	items := []StatusItem{}
	byID := map[string]*api.Cell{}
	for i := range cells {
		byID[cells[i].ID] = &cells[i]
	}
	add := func(what, id, run string, since time.Time, text, next string) {
		i := StatusItem{What: what, Cell: id, Name: id, Run: run, Since: since, Text: text, Next: next}
		if c := byID[id]; c != nil {
			i.Name, i.Source, i.Repositories = cmp.Or(c.Name, id), c.Source, c.Repositories
		}
		items = append(items, i)
	}
	for _, q := range asked {
		if q.State == "waiting" {
			add("answer", q.Cell, q.Run, q.Asked, q.Want+": "+q.Reason, "pando approvals approve "+q.ID)
		}
	}
	seen := map[string]bool{}
	for _, r := range runs { // newest first
		latest := !seen[r.Cell]
		seen[r.Cell] = true
		c := byID[r.Cell]
		command := strings.Join(r.Command, " ")
		switch {
		case r.Phase != "ended":
			add("runs", r.Cell, r.ID, r.Created, command, "pando attach "+r.ID)
		case r.Verdict == "pending" && c != nil && slices.Contains(c.Pending, r.ID) && r.Changes.Files+r.Changes.Ignored > 0:
			text, next := plural(r.Changes.Files, "file")+" changed by "+command, "pando diff "+r.ID
			if missing := missingSignOffs(r); missing > 0 {
				text, next = text+"; needs approval", "pando approve "+r.ID
			}
			add("decide", r.Cell, r.ID, r.Ended, text, next)
		case r.Verdict == "restored" && latest && now.Sub(r.Ended) < failedFor:
			why := "it failed"
			if r.ExitCode != nil {
				why = fmt.Sprintf("exit %d", *r.ExitCode)
			}
			add("failed", r.Cell, r.ID, r.Ended, why+": "+command, "pando logs "+r.ID)
		}
	}
	sortStatus(items)
	return items
}

// missingSignOffs is how many approvers have not approved the result of a run yet, as far as its record says.
func missingSignOffs(r api.Run) int {
	if r.NeedsSignOff == nil {
		return 0
	}
	newest := map[string]string{}
	for _, s := range r.SignOffs {
		newest[s.Approver] = s.Decision
	}
	missing := int(r.NeedsSignOff.Needs)
	for _, d := range newest {
		if d == "approve" {
			missing--
		}
	}
	return max(missing, 0)
}

// sortStatus sorts by directory, and there what waits for the user before the rest, the oldest first.
func sortStatus(items []StatusItem) {
	rank := []string{"answer", "decide", "moved", "failed", "runs"}
	slices.SortStableFunc(items, func(x, y StatusItem) int {
		return cmp.Or(strings.Compare(x.Source, y.Source), slices.Index(rank, x.What)-slices.Index(rank, y.What), x.Since.Compare(y.Since))
	})
}

// movedAtOnce bounds the sources that are compared at the same time, and movedLimit how long one is waited for.
const (
	movedAtOnce = 4
	movedLimit  = 10 * time.Second
)

// withMoved adds that the sources of results that wait changed meanwhile.
func (a *app) withMoved(ctx context.Context, items []StatusItem) []StatusItem {
	var group errgroup.Group
	group.SetLimit(movedAtOnce)
	found, failed := make([]*StatusItem, len(items)), make([]string, len(items))
	asked, decide := map[string]bool{}, map[string]int{}
	for _, i := range items {
		if i.What == "decide" {
			decide[i.Cell]++
		}
	}
	for n, i := range items {
		if i.What != "decide" || i.Source == "" || asked[i.Cell] {
			continue
		}
		asked[i.Cell] = true
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, movedLimit)
			defer cancel()
			moved, err := a.client.SourceChanges(ctx, i.Cell)
			if err != nil {
				if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != "denied" { // a caller that may not see the source
					failed[n] = fmt.Sprintf("cannot compare cell %s with its source: %v", printable(i.Name), err)
				}
				return nil
			}
			all := 0 // which the text begins with
			fmt.Sscan(i.Text, &all)
			if moved.Waiting != nil && *moved.Waiting < all && decide[i.Cell] == 1 { // else it is not known of which run they are
				items[n].Text = fmt.Sprintf("%d of %s", *moved.Waiting, i.Text)
			}
			if moved.Files > 0 {
				i.What, i.Run, i.Next = "moved", "", "pando sync "+shellWord(i.Name)
				i.Text = plural(moved.Files, "file") + " of the source changed meanwhile: " + strings.Join(moved.Paths, ", ")
				found[n] = &i
			}
			return nil
		})
	}
	group.Wait()
	for _, text := range failed {
		if text != "" {
			a.say("%s", text)
		}
	}
	for _, i := range found {
		if i != nil {
			items = append(items, *i)
		}
	}
	sortStatus(items)
	return items
}
