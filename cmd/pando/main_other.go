//go:build !linux

package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/mcp"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/terminal/screen"
)

// main is the command line alone: cells need Linux, and are reached from here by PANDO_HOST.
func main() {
	os.Exit(cli.Main(os.Args[1:], version, cli.Parts{Start: noDaemon, Serve: noServe, MCP: serveAgents, Bench: noBench,
		Screen: func(rows, cols uint16) (cli.Screen, error) { return screen.New(rows, cols), nil }}))
}

func noDaemon(context.Context, paths.Home) error {
	return cell.Errorf(cell.Unsupported, "startDaemon", "run `pando serve` on a host with Linux, and set PANDO_HOST and PANDO_TOKEN to what it prints",
		"cannot start a daemon on %s: cells need Linux", runtime.GOOS)
}

func noServe(ctx context.Context, h paths.Home, _ cli.ServeRequest, _ func(cli.Served) error) error {
	return noDaemon(ctx, h)
}

func noBench([]string) error {
	return cell.Errorf(cell.Unsupported, "bench", "", "cannot measure on %s: cells need Linux", runtime.GOOS)
}

// serveAgents serves MCP from this program: pandod is for Linux alone.
func serveAgents(ctx context.Context, c *client.Client, version, dir string, credentials []string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return mcp.New(mcp.Config{Client: c.For("mcp"), Version: version, Dir: dir, Credentials: credentials, Log: log}).Run(ctx)
}
