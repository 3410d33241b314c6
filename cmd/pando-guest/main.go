// Command pando-guest is the first process inside a sandbox: it starts the
// commands of its cell, as the keeper at the other end of its standard input asks. In
// a virtual machine it is the first process of a Linux, which it makes into the inside
// of a cell before.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/gofer"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/guest/machine"
)

// serveFiles serves a cell's files to its machine, at the other end of standard input.
func serveFiles(root string) error {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s, err := gofer.New(dir, gofer.Options{})
	if err != nil {
		return err
	}
	return s.Serve(os.Stdin)
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "nothing" { // for who wants to know whether a program runs at all
		return
	}
	if filepath.Base(os.Args[0]) == "pando-gofer" && len(os.Args) == 2 {
		if err := serveFiles(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "pando-gofer:", err)
			os.Exit(1)
		}
		return
	}
	if machine.Here() {
		machine.Run(machine.Files{Mount: func(target string) (*os.File, error) { return gofer.Mount(target, unix.MS_NODEV) }, Relay: gofer.Relay, Settle: gofer.Settle})
	}
	if err := guest.Serve(0); err != nil {
		fmt.Fprintln(os.Stderr, "pando-guest:", err)
		os.Exit(1)
	}
}
