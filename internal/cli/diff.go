package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/client"
)

// checkpointNumber returns N of N, @N or CELL@N. cell is the cell of the command.
func checkpointNumber(s, cell string) (int, error) {
	name, number, ok := strings.Cut(s, "@")
	if !ok {
		name, number = "", s
	}
	n, err := strconv.Atoi(number)
	if name != "" && name != cell || err != nil || n < 1 {
		return 0, usage("%q is no number of a checkpoint of %s; pando history %s shows the numbers", s, cell, cell)
	}
	return n, nil
}

// ofAnother reports whether the last word of pando diff names a cell, or a checkpoint of one, other than cell.
func ofAnother(last []string, of string) (name string, number int, ok bool, err error) {
	if len(last) == 0 || last[0] == of {
		return "", 0, false, nil
	}
	word := last[0]
	name, at, has := strings.Cut(word, "@")
	if _, nan := strconv.Atoi(word); nan == nil || name == "" || name == of {
		return "", 0, false, nil
	}
	if has {
		number, err = checkpointNumber(at, name)
	}
	return name, number, true, err
}

func (a *app) diffCmd() *cobra.Command {
	var stat, patch, ignored, watch bool
	var include []string
	c := &cobra.Command{
		Use:   "diff [RUN|CELL] [A [B]|CELL[@N]] [-- PATH…]",
		Short: "Show what changed",
		Long: `Show what changed: in a cell, from its source to its present state, which is what
pando accept takes; in a run, from before to after it; or between two checkpoints, by
number, or of two cells: pando diff v-1@2 v-2@1, pando diff v-1 v-2. Without a name it
shows the cell with the newest pending result from this directory.

Paths limit what is shown to the changes there and below; in one with *, that is any text.

The last line, on stderr, has the digest of the changes: pando accept --expect
DIGEST takes these and no others.

Files that git ignores are one line. --patch writes a patch in git's format for
git apply, binary files included. The patch has no file that accept would hold back;
stderr names them, and --include PATH includes one.

--watch follows a cell: the numbers for each file first, then each time what changed
since, until Ctrl-C. Without a name it is the cell of the newest run from this directory
that goes on. With --json each change is a line.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args = args[:n]
			}
			return cobra.MaximumNArgs(3)(cmd, args)
		},
		ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			var paths []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, paths = args[:n], args[n:]
			}
			o := client.DiffOptions{Form: "text", Colour: a.colour, Width: a.width, Ignored: ignored, Include: include}
			switch {
			case len(include) > 0 && !patch:
				return usage("--include needs --patch")
			case stat && patch:
				return usage("--stat and --patch exclude each other")
			case watch && patch:
				return usage("--watch and --patch exclude each other")
			case watch && len(paths) > 0:
				return usage("--watch shows all changes: no paths")
			case a.json:
				o.Form = "json"
			case stat:
				o.Form = "stat"
			case patch:
				o.Form = "patch"
			}
			sel := arg(args)
			if watch {
				return a.watchDiff(cmd.Context(), args, o)
			}
			if name, n, ok := strings.Cut(sel, "@"); ok { // CELL@N: the changes since that checkpoint
				args = append([]string{name, n}, args[1:]...)
				sel = name
			}
			if other, number, ok, err := ofAnother(args[max(len(args)-1, 0):], sel); err != nil {
				return err
			} else if ok { // CELL[@N] CELL[@N]: from one cell to another
				if isRun(sel) || isRun(other) {
					return usage("runs are set side by side by pando compare %s %s", sel, other)
				}
				o.FromCell, sel, o.To = sel, other, number
				args = args[:len(args)-1]
			}
			for i, to := range []*int{&o.From, &o.To} {
				if len(args) > i+1 {
					n, err := checkpointNumber(args[i+1], args[0])
					if err != nil {
						return err
					}
					*to = n
				}
			}
			show := a.client.DiffCell
			if isRun(sel) {
				show = a.client.DiffRun
			}
			if len(paths) > 0 { // where they are relative to is known from all
				all := o
				all.Form = "json"
				d, err := show(cmd.Context(), sel, all)
				if err != nil {
					return err
				}
				if o.Only = paths; d.Source != "" {
					if o.Only, err = a.inSource(d.Source, paths); err != nil {
						return err
					}
				}
			}
			d, err := show(cmd.Context(), sel, o)
			if err != nil {
				return err
			}
			if !a.json {
				a.bareRun(fmt.Sprintf("the work from %s to %s", d.From, d.To), d.Isolation, "was")
			}
			return a.print(d, func(w io.Writer) {
				if d.Text == "" && !patch {
					a.say("no differences from %s to %s", d.From, d.To)
				}
				a.page(d.Text, patch)
				if patch {
					for _, h := range d.Held {
						a.say("not in the patch  %s: %s (--include %s)", printable(h.Path), printable(h.Why), shellWord(h.Path))
					}
				}
				if d.Digest != "" && len(d.Files)+d.Ignored > 0 {
					if len(d.Runs) > 1 {
						a.say("the work of %s, from %s to %s", strings.Join(d.Runs, ", "), d.From, d.To)
					}
					a.say("digest %s: pando accept --expect %s", changesDigest(d.Digest), changesDigest(d.Digest))
				}
				a.sayMoved(d.Head, " (to apply them all the same: pando accept --apply --other-branch)")
				of := d.Cell
				if sel != "" && !isRun(sel) {
					of = sel
				}
				a.sayCommits("", of, d.Commits)
			})
		},
	}
	c.Flags().BoolVar(&stat, "stat", false, "numbers for each file")
	c.Flags().BoolVar(&patch, "patch", false, "a patch in git's format")
	c.Flags().BoolVar(&watch, "watch", false, "follow what changes in the cell")
	c.Flags().BoolVar(&ignored, "ignored", false, "show files that git ignores")
	c.Flags().StringArrayVar(&include, "include", nil, "with --patch: include this path, which accept would hold back")
	return c
}
