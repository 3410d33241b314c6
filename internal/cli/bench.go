package cli

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// Bench is the harness behind `pando bench`. It drives the command line from
// outside, so it lies beside it, and cmd hands it in.
type Bench interface {
	// Axes lists what can be measured: name and one sentence.
	Axes() [][2]string
	// Backends lists those that can be asked for, each with the axes that it has.
	Backends() map[string][]string
	// Measure measures. There may be a result although there is an error: it
	// says how far it came.
	Measure(ctx context.Context, req BenchRequest) (BenchResult, error)
	// Load makes load for a measurement, from inside a cell or outside.
	Load(args []string, out io.Writer) error
}

// BenchRequest says what is measured and how.
type BenchRequest struct {
	Axes        []string
	Backend     string // of the cells; "": the one that pando chooses
	Runs        int    // 0: as many as it takes
	Quick, Keep bool
	Dir         string
	N           []int // of spawn; nil: as it is published
	Limit       int   // of density; 0: none
	Log         func(line string)
}

// BenchResult is what came out; as JSON it is one document.
type BenchResult interface{ WriteTable(w io.Writer) }

func (a *app) benchCmd() *cobra.Command {
	var req BenchRequest
	var quiet bool
	list := "Axes:\n"
	names := []string{"all"}
	for _, x := range a.bench.Axes() {
		list += "  " + x[0] + strings.Repeat(" ", max(1, 12-len(x[0]))) + x[1] + "\n"
		names = append(names, x[0])
	}
	c := &cobra.Command{
		Use:   "bench AXIS…",
		Short: "Measure pando beside the programs one would use instead",
		Long: `Measure pando beside the programs one would use instead, in the same run, one
round after another. It works in an installation of its own, in a temporary
directory; yours is not touched. Programs that are not installed are named as
absent.

` + list + `  all         every one of them

What is published takes at least 10 rounds on a quiet machine, without --quick.`,
		Example:   "  pando bench run --json > run.json\n  pando bench --quick all\n  pando bench branch exec --backend gvisor",
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("say what to measure: %s", strings.Join(names, ", "))
			}
			if args[0] == "load" { // the harness itself, in a cell
				return a.bench.Load(args[1:], a.stdout)
			}
			for _, n := range args {
				if !slices.Contains(names, n) {
					return usage("%q is no axis: %s", n, strings.Join(names, ", "))
				}
			}
			if has, ok := a.bench.Backends()[req.Backend]; req.Backend != "" && !ok {
				return usage("--backend %s: there is %s", req.Backend, strings.Join(slices.Sorted(maps.Keys(a.bench.Backends())), ", "))
			} else if i := slices.IndexFunc(args, func(n string) bool { return n != "all" && !slices.Contains(has, n) }); ok && i >= 0 {
				return usage("%s is not measured on %s, where it is the same code: %s", args[i], req.Backend, strings.Join(has, ", "))
			}
			if req.Runs < 0 {
				return usage("--runs must be at least 1")
			}
			if req.Limit < 0 || slices.ContainsFunc(req.N, func(n int) bool { return n < 1 }) {
				return usage("--n and --limit must be at least 1")
			}
			req.Axes = args
			if !quiet {
				req.Log = func(line string) { a.say("%s", line) }
			}
			res, err := a.bench.Measure(cmd.Context(), req)
			if res == nil {
				if cmd.Context().Err() != nil {
					return &api.Error{Kind: "interrupted", Message: "interrupted"}
				}
				return err
			}
			if err != nil {
				a.say("pando: %v", err)
				a.exit = 1
				if cmd.Context().Err() != nil {
					a.exit = api.ExitInterrupted
				}
			}
			return a.print(res, res.WriteTable)
		},
	}
	f := c.Flags()
	f.StringVar(&req.Backend, "backend", "", "backend of the cells: "+strings.Join(slices.Sorted(maps.Keys(a.bench.Backends())), ", ")+" (default the one that pando chooses)")
	f.IntVar(&req.Runs, "runs", 0, "rounds that count (default 10, with --quick 3)")
	f.BoolVar(&req.Quick, "quick", false, "small trees and few rounds: to see that it works, not how fast it is")
	f.BoolVar(&req.Keep, "keep", false, "leave its installation and trees where they are")
	f.StringVar(&req.Dir, "dir", "", "where to make them (default: the directory for temporary files)")
	f.IntSliceVar(&req.N, "n", nil, "spawn: how many cells at once (default 1,10,100,1000, with --quick 1,10)")
	f.IntVar(&req.Limit, "limit", 0, "density: how many cells at most (default as many as fit into 4 GiB, with --quick 50)")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return c
}
