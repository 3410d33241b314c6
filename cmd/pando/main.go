// Command pando runs AI agents, and the code they write, in cells.
//
// One executable, several roles, chosen by argv[0] before anything else: the
// keeper of cells, the daemon, or (by default) the command line.
package main

import (
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/backend/gvisor"
	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/reexec"
)

// version is set by the linker.
var version = "0.1.0-dev"

func main() {
	role, _ := reexec.Role(os.Args[0])
	var err error
	switch role {
	case kept.Role:
		err = kept.Main(map[string]func() (keeper.Driver, error){
			"gvisor":    gvisor.NewDriver,
			"namespace": namespaceDriver,
			"none":      noneDriver,
		}, newEvents, kept.Networks{})
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
