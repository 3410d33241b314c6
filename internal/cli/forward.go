package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// portForward is a forwarded port.
type portForward struct {
	Cell   string `json:"cell"`
	Port   int    `json:"port"`   // in the cell
	Listen string `json:"listen"` // address on this host
}

func (a *app) forwardCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "forward CELL [LOCAL:]PORT",
		Short: "Forward a local port to a port of a cell",
		Long: `Listen on a port of this host's loopback and pass each connection on to a port
of the cell, until interrupted. LOCAL is the port here: PORT itself when it is
not given, any free one for 0. The cell is not connected to anything by it.`,
		Example: `  pando forward web 8000
  pando forward web 0:8000 --json`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			local, port, err := ports(args[1])
			if err != nil {
				return err
			}
			return a.forwardPort(cmd.Context(), args[0], local, port)
		},
	}
}

// listening lists the TCP ports on which programs listen in a cell that runs, each with the line that
// forwards it. What can't be asked has none.
func (a *app) listening(ctx context.Context, c api.Cell) (lines []string) {
	if c.State != "running" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // it may be paused just now
	defer cancel()
	list, err := a.client.Ports(ctx, c.ID)
	if err != nil {
		return nil
	}
	told := map[int]bool{} // a port of both families is listed twice
	for _, p := range list {
		if !told[p.Port] {
			told[p.Port] = true
			lines = append(lines, fmt.Sprintf("%d: pando forward %s %d", p.Port, printable(c.Name), p.Port))
		}
	}
	return lines
}

// sayListening says on which ports programs listen in a cell.
func (a *app) sayListening(ctx context.Context, c api.Cell) {
	for _, l := range a.listening(ctx, c) {
		a.say("a program in cell %s listens on %s", printable(c.Name), l)
	}
}

// ports parses [LOCAL:]PORT.
func ports(s string) (local, port int, err error) {
	before, after, both := strings.Cut(s, ":")
	if !both {
		after = before
	}
	port, err = strconv.Atoi(after)
	if err == nil {
		if local, err = port, nil; both {
			local, err = strconv.Atoi(before)
		}
	}
	if err != nil || port < 1 || port > 65535 || local < 0 || local > 65535 {
		return 0, 0, usage("%q is no port: give PORT or LOCAL:PORT, numbers up to 65535", s)
	}
	return local, port, nil
}

func (a *app) forwardPort(ctx context.Context, sel string, local, port int) error {
	c, err := a.client.Cell(ctx, sel)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(local)))
	if err != nil {
		return &api.Error{Kind: "unavailable", Message: "cannot listen at port " + strconv.Itoa(local) + ": " + err.Error(), Hint: "choose another: pando forward " + sel + " LOCAL:" + strconv.Itoa(port)}
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if err := a.print(portForward{c.ID, port, l.Addr().String()}, func(w io.Writer) {
		a.say("port %d of %s is at %s, until you interrupt", port, cmp.Or(c.Name, c.ID), l.Addr())
	}); err != nil {
		return err
	}
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		open.Go(func() {
			defer conn.Close()
			if err := a.forwardOne(ctx, conn, c.ID, port); err != nil && ctx.Err() == nil {
				a.say("a connection to port %d: %v", port, err)
			}
		})
	}
}

// forwardOne connects a local connection to a port of a cell.
func (a *app) forwardOne(ctx context.Context, conn net.Conn, id string, port int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := a.client.Connect(ctx, id, port)
	if err != nil {
		return err
	}
	defer in.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.Copy(struct{ io.Writer }{in}, conn); err != nil {
			cancel()
			return
		}
		if w, ok := in.(interface{ CloseWrite() error }); ok {
			w.CloseWrite()
		}
	}()
	_, err = io.Copy(struct{ io.Writer }{conn}, in)
	cancel()
	<-sent
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}
