//go:build !linux

package main

import (
	"context"
	"os"
	"runtime"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/home"
)

// main is the command line alone: cells need Linux, and are reached from here by
// PANDO_HOST.
func main() {
	os.Exit(cli.Main(os.Args[1:], version, cli.Parts{Start: noDaemon, Serve: noServe, MCP: serveAgents}))
}

func noDaemon(context.Context, home.Home) error {
	return cell.Errorf(cell.Unsupported, "startDaemon", "run `pando serve` on a host with Linux, and set PANDO_HOST and PANDO_TOKEN to what it prints",
		"cannot start a daemon on %s: cells need Linux", runtime.GOOS)
}

func noServe(ctx context.Context, h home.Home, _ cli.ServeRequest, _ func(cli.Served) error) error {
	return noDaemon(ctx, h)
}
