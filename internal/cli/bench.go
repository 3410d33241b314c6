package cli

import "github.com/spf13/cobra"

func (a *app) benchCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "bench AXIS…",
		Short: "Measure pando beside comparable programs",
		Long: `Measure pando beside the programs one would use instead, in the same run, one
round after another. It works in an installation of its own, in a temporary
directory; yours is not touched. Programs that are not installed are named as
absent.

This executes pando-bench, which lists its axes and flags: pando bench --help.`,
		Example:            "  pando bench run --json > run.json\n  pando bench --quick all\n  pando bench branch exec --backend gvisor",
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return a.bench(args) },
	}
}
