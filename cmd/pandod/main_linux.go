//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/backend/gvisor"
	"github.com/pando-dev/pando/internal/backend/microvm"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/sibling"
	"github.com/pando-dev/pando/internal/terminal/screen"
)

func main() {
	role, _ := reexec.Role(os.Args[0])
	var err error
	switch role {
	case proto.Role:
		err = server.Main(map[string]func() (server.Driver, error){
			"gvisor":    gvisor.NewDriver,
			"microvm":   microvm.NewDriver,
			"namespace": namespaceDriver,
			"none":      noneDriver,
		}, newEvents, server.Gateways{})
	case parse.Role:
		err = parse.Main(map[string]parse.Func{gitdir.IndexJob: gitdir.ParseIndexJob})
	case daemonRole:
		err = daemonMain()
	default: // whatever the file's name is
		os.Exit(command(os.Args[1:]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pando:", err)
		os.Exit(1)
	}
}

// command does the part of pando that needs this program: start a daemon, serve, speak MCP, or follow
// the screen of a login.
func command(args []string) int {
	err := sibling.Check(version)
	switch {
	case len(args) == 1 && args[0] == sibling.StartWord:
		var h paths.Home
		if err == nil {
			h, err = sibling.ReadHome(os.Stdin)
		}
		if err == nil {
			err = startDaemon(context.Background(), h)
		}
		return sibling.Fail(os.Stdout, err)
	case err != nil:
		fmt.Fprintf(os.Stderr, "pando: %v\nhint: %s\n", err, cell.HintOf(err))
		return 1
	case len(args) > 0 && (args[0] == "serve" || args[0] == "mcp" || args[0] == "--version") || slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--setup-token") }):
		return cli.Main(args, version, cli.Parts{Start: startDaemon, Serve: serveDaemon, MCP: serveAgents,
			Screen: func(rows, cols uint16) (cli.Screen, error) { return screen.New(rows, cols), nil }})
	}
	fmt.Fprintln(os.Stderr, "pandod is the daemon of pando, which starts it: see pando --help")
	return 2
}
