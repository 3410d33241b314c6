//go:build linux

package main

import (
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/backend/gvisor"
	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/backend/microvm"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/reexec"
)

func main() {
	role, _ := reexec.Role(os.Args[0])
	var err error
	switch role {
	case kept.Role:
		err = kept.Main(map[string]func() (keeper.Driver, error){
			"gvisor":    gvisor.NewDriver,
			"microvm":   microvm.NewDriver,
			"namespace": namespaceDriver,
			"none":      noneDriver,
		}, newEvents, kept.Networks{})
	case parse.Role:
		err = parse.Main(map[string]parse.Func{gitdir.IndexJob: gitdir.ParseIndexJob})
	case daemonRole:
		err = daemonMain()
	default: // whatever somebody called the file
		os.Exit(cli.Main(os.Args[1:], version, cli.Parts{Start: startDaemon, Serve: serveDaemon, Bench: harness{}, MCP: serveAgents}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pando:", err)
		os.Exit(1)
	}
}
