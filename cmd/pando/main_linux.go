//go:build linux

package main

import (
	"context"
	"os"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/sibling"
)

func main() {
	again := func() error { return sibling.Exec("pandod", version, os.Args[1:]) }
	os.Exit(cli.Main(os.Args[1:], version, cli.Parts{
		Start:  func(ctx context.Context, h paths.Home) error { return sibling.Start(ctx, "pandod", version, h) },
		Serve:  func(context.Context, paths.Home, cli.ServeRequest, func(cli.Served) error) error { return again() },
		MCP:    func(context.Context, *client.Client, string, string, []string) error { return again() },
		Bench:  func(args []string) error { return sibling.Exec("pando-bench", version, args) },
		Screen: func(uint16, uint16) (cli.Screen, error) { return nil, again() },
	}))
}
