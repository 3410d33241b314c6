// Command pando-guest is the first process inside a sandbox: it starts the
// commands of its cell, as the keeper at the other end of its standard input asks. In
// a virtual machine it is the first process of a Linux, which it makes into the inside
// of a cell before.
package main

import (
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/guest/machine"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "nothing" { // for who wants to know whether a program runs at all
		return
	}
	if machine.Here() {
		machine.Run(machine.Files{})
	}
	if err := guest.Serve(0); err != nil {
		fmt.Fprintln(os.Stderr, "pando-guest:", err)
		os.Exit(1)
	}
}
