// Command pando-runsc is gVisor's runtime for the cells of backend gvisor. It is a
// module of its own, since gVisor pins versions of libraries that the rest of pando
// need not follow, and an executable of its own, since gVisor re-executes itself
// under other names. It has the commands that cells need. The stock runtime also
// contains a prebuilt program of 47 MB for checkpoints in a cloud's storage, which
// can't be reviewed.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/alias"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// leanAfter is how long a sandbox or a gofer lives before it frees the memory that it needed
// only to start, or to load its memory: many of them wait for a long time.
const leanAfter = 3 * time.Second

func main() {
	alias.HandleAlias()
	theFreezer.begin()
	refuseOffsets()
	if err := tellMissing(); err != nil {
		fmt.Fprintln(os.Stderr, "pando-runsc:", err)
		os.Exit(1)
	}
	time.AfterFunc(leanAfter, debug.FreeOSMemory)
	commands := map[util.SubCommand]string{}
	for _, c := range []util.SubCommand{
		new(cmd.Run), new(cmd.Create), new(cmd.Start), new(cmd.Checkpoint), new(cmd.Restore), new(cmd.Delete), new(cmd.State), // requested by the keeper
		new(sentrycmd.Boot), new(cmd.Gofer), new(sentrycmd.Umount), // executed by the runtime itself
	} {
		commands[c] = ""
	}
	cli.Run(nil, commands, nil)
}
