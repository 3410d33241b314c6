// Command pando-guest is the first process inside a sandbox: it starts the commands of its cell,
// on requests of the keeper at the other end of its standard input. In a virtual machine it is
// the first process of Linux, which it first sets up as the inside of a cell.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/fuseproxy"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/guest/machine"
)

// serveFiles serves a cell's files to its machine, at the other end of standard input, and obeys
// the keeper at descriptor 3. With further arguments it continues with the state in descriptor
// 4.
func serveFiles(root string, more []string) error {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s, err := serverOf(dir, more)
	if err != nil {
		return err
	}
	go s.Obey(os.NewFile(3, "control"))
	return s.Serve(os.Stdin)
}

func serverOf(dir *os.File, more []string) (*fuseproxy.Server, error) {
	if len(more) == 0 {
		return fuseproxy.New(dir, fuseproxy.Options{})
	}
	f := os.NewFile(4, "state")
	defer f.Close()
	state, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	return fuseproxy.Load(dir, state, fuseproxy.Options{})
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "nothing" { // a test whether a program runs at all
		return
	}
	if filepath.Base(os.Args[0]) == "pando-fuseproxy" && len(os.Args) > 1 {
		if err := serveFiles(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "pando-fuseproxy:", err)
			os.Exit(1)
		}
		return
	}
	if machine.Here() {
		machine.Run(machine.Files{
			Mount:   func(target string) (*os.File, error) { return fuseproxy.Mount(target, unix.MS_NODEV|unix.MS_NOSUID) },
			Courier: func(dev *os.File, conn io.ReadWriter) machine.Courier { return fuseproxy.NewCourier(dev, conn) },
			Settle:  fuseproxy.Settle,
		})
	}
	err := machine.RunDir("")
	if err == nil {
		err = guest.Serve(0)
	} else {
		err = errors.Join(err, guest.Refuse(0, err))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pando-guest:", err)
		os.Exit(1)
	}
}
