package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/catalog"
)

func (a *app) doctorCmd() *cobra.Command {
	var agents []string
	c := &cobra.Command{
		Use: "doctor", Short: "Check what works on this host, and what each missing part would add", Args: cobra.NoArgs,
		Example: `  pando doctor
  pando doctor --agent claude`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.client.Doctor(cmd.Context())
			if err != nil {
				return err
			}
			var waits []string // agents that can't be started yet
			for _, name := range agents {
				list, err := a.agentFindings(cmd.Context(), name)
				if err != nil {
					return err
				}
				d.Checks = append(d.Checks, list...)
				if slices.ContainsFunc(list, func(f api.Finding) bool { return f.Status == "missing" }) {
					waits = append(waits, list[0].For)
				}
			}
			if !d.OK || len(waits) > 0 {
				a.exit = 1
			}
			return a.print(d, func(w io.Writer) {
				a.showDiagnosis(w, d)
				for _, title := range waits {
					fmt.Fprintf(w, "%s can't be started yet: see ·\n", title)
				}
			})
		},
	}
	c.Flags().StringArrayVar(&agents, "agent", nil, "check what an agent needs, too: its program and its credential")
	complete(c, "agent", catalog.All().Names()...)
	return c
}

func (a *app) showDiagnosis(w io.Writer, d api.Diagnosis) {
	fmt.Fprintf(w, "%s, kernel %s, as %s\n\n", d.Host, d.Kernel, d.User)
	marks := map[string]string{"ok": "✓", "missing": "·", "broken": "✗", "note": "·"}
	colours := map[string]string{"ok": "32", "broken": "31", "missing": "33", "note": "36"}
	group := ""
	for _, f := range d.Checks {
		if f.For != group {
			group = f.For
			fmt.Fprintf(w, "\nfor %s:\n", group)
		}
		mark := marks[f.Status]
		if a.colour {
			mark = "\x1b[" + colours[f.Status] + "m" + mark + "\x1b[0m"
		}
		fmt.Fprintf(w, "%s %-16s %s\n", mark, f.Name, printable(f.Found))
		if f.Adds != "" {
			fmt.Fprintf(w, "  %-16s would add: %s\n", "", f.Adds)
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "  %-16s %s\n", "", f.Fix)
		}
	}
	if d.OK {
		fmt.Fprintf(w, "\npando works here; cells run on backend %s\n", d.Backend)
	} else {
		fmt.Fprintf(w, "\npando can't isolate cells here: see ✗\n")
	}
}

func (a *app) gcCmd() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "gc", Short: "Collect garbage: free unneeded disk space (a dry run unless --yes)", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			res, err := a.client.GC(cmd.Context(), api.GCRequest{DryRun: !yes})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				t := a.newTable(w)
				for _, i := range res.Items {
					t.row(i.What, i.Name, size(i.Bytes), i.Why)
				}
				t.flush()
				switch {
				case len(res.Items) == 0:
					a.say("nothing to free")
				case res.DryRun:
					a.say("would free %s; do it with: pando gc --yes", size(res.Bytes))
				default:
					a.say("freed %s", size(res.Bytes))
				}
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "free the space")
	c.Flags().Bool("dry-run", true, "only print what would be freed (the default)")
	return c
}

func (a *app) daemonCmd() *cobra.Command {
	c := &cobra.Command{Use: "daemon", Short: "Inspect or stop the daemon", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(&cobra.Command{
		Use: "status", Short: "Show whether the daemon runs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.client.Alive(cmd.Context()) {
				return a.print(map[string]any{"running": false, "socket": a.home.Socket()}, func(w io.Writer) {
					fmt.Fprintln(w, "no daemon runs; the next command starts one")
				})
			}
			d, err := a.client.Daemon(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(d, func(w io.Writer) {
				fmt.Fprintf(w, "running     version %s, pid %d, since %s\n", d.Version, d.PID, ago(d.Started))
				fmt.Fprintf(w, "cells       %d, %d of them with processes\n", d.Cells, d.Alive)
				for _, u := range d.Listen {
					fmt.Fprintf(w, "answers     %s\n", u)
				}
				fmt.Fprintf(w, "state       %s\nsocket      %s\nlog         %s\n", d.Home, d.Socket, a.home.Log())
			})
		},
	}, &cobra.Command{
		Use: "stop", Short: "End the daemon; cells live on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.client.Alive(cmd.Context()) {
				return a.print(map[string]any{"running": false}, func(io.Writer) { a.say("no daemon runs") })
			}
			d, err := a.client.StopDaemon(cmd.Context())
			if err != nil {
				return err
			}
			a.awaitGone(cmd.Context())
			return a.print(d, func(io.Writer) { a.say("daemon %d has ended; cells live on", d.PID) })
		},
	})
	metrics := &cobra.Command{
		Use: "metrics", Short: "Print metrics in Prometheus' text format", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.client.Metrics(cmd.Context())
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(b)
			return err
		},
	}
	c.AddCommand(a.drainCmd(), metrics)
	return c
}

// awaitGone waits until the daemon has released its lock, which it does last.
func (a *app) awaitGone(ctx context.Context) {
	if a.remote {
		return
	}
	for range 1500 {
		if !a.home.Locked() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print versions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := map[string]string{"pando": a.version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "pando %s (%s, %s)\n", v["pando"], v["go"], v["platform"]) })
		},
	}
}
