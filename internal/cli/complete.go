package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/internal/policy"
)

// completeFlags completes the flags that mean the same in every command. It keeps completions
// that a command registered itself.
func (a *app) completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "cell":
			cmd.RegisterFlagCompletionFunc(f.Name, a.completeCells)
		case "credential":
			cmd.RegisterFlagCompletionFunc(f.Name, a.completeCredentials)
		case "allow":
			complete(cmd, f.Name, policy.Presets()...)
		case "certify":
			complete(cmd, f.Name, "strict")
		}
	})
	for _, sub := range cmd.Commands() {
		a.completeFlags(sub)
	}
}

// complete gives a flag fixed completions.
func complete(c *cobra.Command, flag string, words ...string) {
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeCells completes names of cells.
func (a *app) completeCells(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if a.prepare() != nil || !a.client.Alive(cmd.Context()) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cells, err := a.client.Cells(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, c := range cells {
		out = append(out, c.Name+"\t"+c.State+", "+c.Source)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeRuns completes ids of runs and names of cells.
func (a *app) completeRuns(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	out, d := a.completeCells(cmd, args, prefix)
	if a.client == nil || !a.client.Alive(cmd.Context()) {
		return out, d
	}
	if runs, err := a.client.Runs(cmd.Context(), nil); err == nil {
		for _, r := range runs[:min(20, len(runs))] {
			out = append(out, r.ID+"\t"+r.Verdict+", "+strings.Join(r.Command, " "))
		}
	}
	return out, d
}
