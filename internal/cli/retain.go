package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) holdCmd() *cobra.Command {
	var req api.HoldRequest
	c := &cobra.Command{
		Use: "hold [RUN|CELL]", Short: "Put a legal hold on a run or a cell, or release it", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		Long: `Put a legal hold on a run, or on a cell with all its runs. Until it is released, nothing of it
is removed or erased: not by pando rm, gc, discard or erase, nor by the policy's section keep.
A hold on a run keeps its cell, too. Hold and release are signed receipts, so that a release
is on the record.

Without RUN or CELL, list what is on hold.`,
		Example: `  pando hold r-1a2b --reason 'case 4711'
  pando hold
  pando hold r-1a2b --release --reason 'case 4711 is closed'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if req.Release || req.Reason != "" {
					return usage("name a run or a cell")
				}
				list, err := a.client.Holds(cmd.Context())
				if err != nil {
					return err
				}
				return a.print(list, func(w io.Writer) {
					t := a.newTable(w)
					t.row("RUN", "CELL", "SINCE", "BY", "REASON")
					for _, h := range list {
						t.row(h.Run, h.Title, ago(h.Hold.At), h.Hold.By, h.Hold.Reason)
					}
					t.flush()
				})
			}
			h, err := a.client.Hold(cmd.Context(), args[0], isRun(args[0]), req)
			if err != nil {
				return err
			}
			return a.print(h, func(io.Writer) {
				what := "cell " + h.Title
				if h.Run != "" {
					what = "run " + h.Run
				}
				if h.Hold == nil {
					a.say("%s is released; receipt %s", printable(what), short(h.Receipt))
					return
				}
				a.say("%s is on hold: nothing of it is removed or erased; receipt %s", printable(what), short(h.Receipt))
			})
		},
	}
	c.Flags().StringVar(&req.Reason, "reason", "", "why, which the receipt says; a release needs it")
	c.Flags().BoolVar(&req.Release, "release", false, "take the hold away")
	return c
}

func (a *app) eraseCmd() *cobra.Command {
	var req api.EraseRequest
	var events, output, recording, calls, yes bool
	c := &cobra.Command{
		Use: "erase RUN", Short: "Erase contents of a run's evidence for good (a dry run unless --yes)", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRuns,
		Long: `Erase contents of a run's evidence for good: its events, its output, the recording of its
network, or what its agent reported of tool calls. Receipts can't be erased. A new receipt has
the digests of what goes, with the caller and the reason, and from then on
pando receipt verify says "erased on DATE by CALLER, for: REASON".

Files are removed, and not written over; copies that were made elsewhere (pando receipt push,
exports) stay. A run that is on hold keeps all (pando hold). The policy's section keep erases
by itself after a time.`,
		Example: `  pando erase r-1a2b --output --recording --reason 'personal data' --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, w := range []struct {
				is   bool
				word string
			}{{events, "events"}, {output, "output"}, {recording, "recordings"}, {calls, "tool_calls"}} {
				if w.is {
					req.What = append(req.What, w.word)
				}
			}
			if len(req.What) == 0 {
				return usage("name what to erase: --events, --output, --recording, --tool-calls")
			}
			req.DryRun = !yes
			e, err := a.client.Erase(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(e, func(w io.Writer) {
				t := a.newTable(w)
				for _, f := range e.Erased {
					t.row(f.File, size(f.Bytes), short(f.Digest))
				}
				t.flush()
				if e.DryRun {
					a.say("would erase %s of run %s for good; do it with --yes", plural(len(e.Erased), "file"), printable(e.Run))
					return
				}
				a.say("erased %s of run %s; receipt %s", plural(len(e.Erased), "file"), printable(e.Run), short(e.Receipt))
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&events, "events", false, "the events")
	f.BoolVar(&output, "output", false, "standard output and standard error, and what the check wrote")
	f.BoolVar(&recording, "recording", false, "the recording of its network")
	f.BoolVar(&calls, "tool-calls", false, "what its agent reported of tool calls")
	f.StringVar(&req.Reason, "reason", "", "why, which the receipt says")
	f.BoolVarP(&yes, "yes", "y", false, "erase it")
	return c
}

// erasedWords tells of a file that was erased.
func erasedWords(e api.Erased) string {
	return printable(fmt.Sprintf("%s, on %s by %s, for: %s", e.File, e.At.UTC().Format("2006-01-02"), e.By, e.Reason))
}

// holdWords tells of a hold.
func holdWords(h *api.Hold) string {
	text := "since " + h.At.UTC().Format("2006-01-02") + ", by " + h.By
	if h.Reason != "" {
		text += ": " + h.Reason
	}
	return printable(text)
}
