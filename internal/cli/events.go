package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

func (a *app) eventsCmd() *cobra.Command {
	var o client.EventOptions
	var format, since string
	c := &cobra.Command{
		Use:   "events [RUN|CELL]",
		Short: "Show the events of a run: processes, limits, decisions, connections",
		Long: `Show the events of a run, or of the latest run of a cell, in order. They come
from the kernel, the gateway and the keeper, never from what a command prints.

The hash chain of the events is checked while they are read, and its end against the
receipt. Where the chain is broken, an error follows the intact events, and the exit
code is 7.

  pando events --denied               what the policy denied, or what met a limit
  pando events --kind decision,flow   what it wanted from the network, and what went over it
  pando events -f --since 5m r-1a2b   the last five minutes of it, and on until the run ends
  pando events --format ocsf          for a SIEM: Open Cybersecurity Schema Framework, JSON lines`,
		Example: "  pando events web --kind decision --denied",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json && !cmd.Flags().Changed("format") {
				format = api.EventsJSON
			}
			if since != "" {
				d, err := span("--since", since)
				if err != nil {
					return err
				}
				o.Since = time.Now().Add(-d)
			}
			switch format {
			case "text":
				if a.json {
					return usage("--json and --format text exclude each other")
				}
				if run, err := a.client.Run(cmd.Context(), arg(args), false); err == nil {
					a.bareRun("run "+run.ID, run.Isolation, "is")
				}
				for ev, err := range a.client.Events(cmd.Context(), arg(args), o) {
					if err != nil {
						return err
					}
					a.tell(ev)
				}
				return nil
			case api.EventsJSON, api.EventsOCSF:
				for line, err := range a.client.EventLines(cmd.Context(), arg(args), format, o) {
					if err != nil {
						return err
					}
					if _, err := a.stdout.Write(append(line, '\n')); err != nil {
						return err
					}
				}
				return nil
			}
			return usage("--format is text, json or ocsf")
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Kinds, "kind", nil, "only these kinds: decision,flow; process for all of process.*")
	f.StringVar(&since, "since", "", "only those within this time: 90s, 12h, 7d")
	f.BoolVar(&o.Denied, "denied", false, "only denials of the policy and reached limits")
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on until the run ends")
	f.StringVar(&format, "format", "text", "text, json (a line each) or ocsf (a line each)")
	complete(c, "format", "text", api.EventsJSON, api.EventsOCSF)
	complete(c, "kind", eventKinds...)
	return c
}

// eventKinds are the words that --kind completes; docs/reference/events.md has the fields of
// each.
var eventKinds = []string{"process", "limit", "decision", "flow", "budget", "network.earlier", "network.none", "network.unresolved", "kernel", "kernel.missing",
	"process.start", "process.running", "process.failed", "process.signal", "process.exit", "process.exec", "process.ended", "process.lost", "process.unseen", "sample", "output", "limit.time", "limit.disk"}

// tell prints an event as one line.
func (a *app) tell(ev api.Event) {
	line := fmt.Sprintf("%s  %-15s %s", ev.Time.Local().Format("15:04:05.000"), printable(ev.Kind), printable(ev.Text))
	if a.terminalOut {
		line = cut(line, a.width)
		if a.colour && ev.Denied {
			line = "\x1b[31m" + line + "\x1b[0m"
		}
	}
	io.WriteString(a.stdout, strings.TrimRight(line, " ")+"\n")
}
