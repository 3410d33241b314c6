package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) dfCmd() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use: "df", Short: "Show disk usage, and what frees space", Args: cobra.NoArgs,
		Long: `Tell what takes how much disk space, of which budget, and what frees it. Sizes
are of allocated blocks. What several things have in common is counted once, as
"shared"; with -v each thing says how much it shares.

FREEABLE is removed when the state outgrows its budget. pando gc removes what nothing
needs any more; pando df -v has the command that frees the rest.

The state has a budget: pando serve --max-state, by default a tenth of the disk. From
nine tenths of it on, run, ls, df and doctor name what is removed next. Above the
budget new work first removes what was unused for longest: results and cells that are
kept for a limited time, imported sources, images that no cell needs. Pending results,
and what is in use or kept without a limit, stay.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.client.Disk(cmd.Context(), verbose)
			if err != nil {
				return err
			}
			return a.print(d, func(w io.Writer) { a.showDisk(w, d, verbose) })
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "list each thing, with the command that frees it")
	return c
}

func (a *app) showDisk(w io.Writer, d api.Disk, verbose bool) {
	t := a.newTable(w)
	t.row("KIND", "COUNT", "SIZE", "FREEABLE")
	for _, k := range d.Kinds {
		t.row(k.Kind, fmt.Sprint(k.Count), size(k.Bytes), size(k.Freeable))
	}
	t.flush()
	if verbose {
		fmt.Fprintln(w)
		t := a.newTable(w)
		t.row("KIND", "NAME", "SIZE", "SHARED", "USED", "STATE", "FREED BY")
		for _, o := range d.Objects {
			t.row(o.Kind, o.Name, size(o.Bytes), size(o.Shared), usedAgo(o.Used), objectState(o), cmp.Or(o.Command, "–"))
		}
		t.flush()
	}
	fmt.Fprintf(w, "\n%s holds %s of %s; the disk has %s free\n", d.State, size(d.Held), size(d.Budget), size(d.Free))
	fmt.Fprintf(w, "FREEABLE is removed when the state outgrows its budget; pando gc frees %s now\n", size(d.Freeable))
	if len(d.Removed) > 0 {
		fmt.Fprintln(w, "removed to stay within the budget, latest first:")
		for _, o := range d.Removed {
			fmt.Fprintf(w, "  %s %s, %s\n", o.Kind, printable(o.Name), size(o.Bytes))
		}
	}
	if len(d.Next) > 0 {
		fmt.Fprintln(w, "removed next if it grows:")
		for _, o := range d.Next {
			fmt.Fprintf(w, "  %s %s, %s\n", o.Kind, printable(o.Name), size(o.Bytes))
		}
	} else if d.Warning != "" {
		a.say("pando: %s", printable(d.Warning))
	}
}

func usedAgo(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return ago(t)
}

func objectState(o api.DiskObject) string {
	if !o.Expires.IsZero() {
		return "kept until " + o.Expires.Local().Format("Jan 2")
	}
	return cmp.Or(o.State, "–")
}

// saySpace warns on stderr when the state is near its budget.
func (a *app) saySpace(ctx context.Context) {
	if d, err := a.client.Daemon(ctx); err == nil && d.Space != "" {
		a.say("pando: %s", printable(d.Space))
	}
}
