package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// MCP serves agents on standard input and output until that ends.
type MCP func(ctx context.Context, c *client.Client, version, dir string, credentials []string) error

func (a *app) mcpCmd() *cobra.Command {
	var credentials []string
	c := &cobra.Command{
		Use: "mcp", Short: "Serve agents: the Model Context Protocol on standard input and output", Args: cobra.NoArgs,
		Long: `Serve an agent over the Model Context Protocol, on standard input and output: tools
that make cells, run and evaluate in them, copy them, go back, and show what
changed. A client of that protocol starts it, in the directory that new cells
begin with.

Agents get no tool that writes to your directory: results are for you to take, with
pando accept --apply. They can lend no credential either: those that you name are lent
to every cell that they make.`,
		Example: `  claude mcp add pando -- pando mcp
  claude mcp add pando -- pando mcp --credential github`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.lendable(cmd.Context(), credentials); err != nil {
				return err
			}
			return a.mcp(cmd.Context(), a.client, a.version, a.dir, credentials)
		},
	}
	c.Flags().StringArrayVar(&credentials, "credential", nil, "lend `NAME` to the cells that agents make; they get a placeholder of it (repeatable)")
	return c
}

// lendable checks that all names are credentials, so that a wrong name fails before an agent
// starts.
func (a *app) lendable(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	known, err := a.client.Credentials(ctx)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !slices.ContainsFunc(known, func(c api.Credential) bool { return c.Name == n }) {
			return &api.Error{Kind: "not-found", Message: "cannot lend credential " + n + ": there is none of that name", Hint: "pando credential ls shows those there are, pando credential add stores one"}
		}
	}
	return nil
}
