//go:build linux

// Command pando-bench measures pando beside comparable programs. pando bench executes it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/bench"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/sibling"
)

// version is set by the linker.
var version = "0.1.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := sibling.Check(version)
	if err == nil {
		err = command().ExecuteContext(ctx)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "pando: interrupted")
		os.Exit(api.ExitInterrupted)
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "pando: cannot do `pando bench`: %v\nhint: run `pando bench --help`\n", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "pando:", err)
		if hint := cell.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, "hint:", hint)
		}
		os.Exit(1)
	}
}

// A usageError is wrong usage of the command line.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func command() *cobra.Command {
	var o bench.Options
	var quiet, asJSON bool
	list := "Axes:\n"
	names := []string{"all"}
	for _, x := range bench.Axes() {
		list += fmt.Sprintf("  %-11s %s\n", x.Name, x.About)
		names = append(names, x.Name)
	}
	backends := bench.Backends()
	known := strings.Join(slices.Sorted(maps.Keys(backends)), ", ")
	c := &cobra.Command{
		Use:   "pando bench AXIS…",
		Short: "Measure pando beside comparable programs",
		Long: `Measure pando beside the programs one would use instead, in the same run, one
round after another. It works in an installation of its own, in a temporary
directory; yours is not touched. Programs that are not installed are named as
absent.

` + list + `  all         every one of them

What is published takes at least 10 rounds on a quiet machine, without --quick.`,
		Example:       "  pando bench run --json > run.json\n  pando bench --quick all\n  pando bench branch exec --backend gvisor",
		Version:       version,
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("the axis is missing: %s", strings.Join(names, ", "))
			}
			if args[0] == "load" { // the harness itself, in a cell
				return bench.Load(args[1:], os.Stdout)
			}
			for _, n := range args {
				if !slices.Contains(names, n) {
					return usage("%q is no axis: %s", n, strings.Join(names, ", "))
				}
			}
			if has, ok := backends[o.Backend]; o.Backend != "" && !ok {
				return usage("--backend %s: there is %s", o.Backend, known)
			} else if i := slices.IndexFunc(args, func(n string) bool { return n != "all" && !slices.Contains(has, n) }); ok && i >= 0 {
				return usage("%s is not measured on %s, where it is the same code: %s", args[i], o.Backend, strings.Join(has, ", "))
			}
			if o.Runs < 0 {
				return usage("--runs must be at least 1")
			}
			if o.Limit < 0 || slices.ContainsFunc(o.N, func(n int) bool { return n < 1 }) {
				return usage("--n and --limit must be at least 1")
			}
			o.Axes, o.Version = args, version
			if !quiet {
				o.Log = func(line string) { fmt.Fprintln(os.Stderr, line) }
			}
			res, err := bench.Run(cmd.Context(), o)
			if res == nil {
				return err
			}
			if asJSON {
				out := json.NewEncoder(os.Stdout)
				out.SetEscapeHTML(false)
				return errors.Join(err, out.Encode(res))
			}
			res.WriteTable(os.Stdout)
			return err
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	c.CompletionOptions.DisableDefaultCmd = true
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "one JSON document on stdout")
	f.StringVar(&o.Backend, "backend", "", "backend of the cells: "+known+" (default the one that pando chooses)")
	f.IntVar(&o.Runs, "runs", 0, "rounds that count (default 10, with --quick 3)")
	f.BoolVar(&o.Quick, "quick", false, "small trees and few rounds: to see that it works, not how fast it is")
	f.BoolVar(&o.Keep, "keep", false, "keep its installation and trees")
	f.StringVar(&o.Dir, "dir", "", "where to make them (default: the directory for temporary files)")
	f.IntSliceVar(&o.N, "n", nil, "spawn: number of cells at once (default 1,10,100,1000, with --quick 1,10)")
	f.IntVar(&o.Limit, "limit", 0, "density: maximum number of cells (default as many as fit into 4 GiB, with --quick 50)")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return c
}
