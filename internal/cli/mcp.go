package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/client"
)

// MCP serves agents on standard input and output until that ends.
type MCP func(ctx context.Context, c *client.Client, version, dir string) error

func (a *app) mcpCmd() *cobra.Command {
	return &cobra.Command{
		Use: "mcp", Short: "Serve agents: the Model Context Protocol on standard input and output", Args: cobra.NoArgs,
		Long: `Serve an agent over the Model Context Protocol, on standard input and output: tools
that make cells, run and evaluate in them, copy them, go back, and show what
changed. A client of that protocol starts it, in the directory that new cells
begin with.

Agents get no tool that writes to your directory: results are for you to take, with
pando accept --apply.`,
		Example: `  claude mcp add pando -- pando mcp`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.mcp(cmd.Context(), a.client, a.version, a.dir)
		},
	}
}
