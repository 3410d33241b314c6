package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// The bound of connections, and of those of one peer, is one for all addresses, whichever API is
// asked for there.
func TestConnectionsAreBoundedOverAllAddresses(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	a, b := listen(), listen()
	d, _ := house(t, Config{Listen: []Open{{Listener: a}, {Listener: b}}, Limits: &Limits{Conns: 4}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx, listen()) }()
	defer func() {
		stop()
		if err, _ := testenv.Receive(t, ended, "the daemon's end"); err != nil {
			t.Error(err)
		}
	}()

	// asked opens a connection, and asks for something that needs no token.
	asked := func(l net.Listener) (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			err = resp.Body.Close()
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
	var open []net.Conn
	for _, l := range []net.Listener{a, b} {
		c, err := asked(l)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	for name, l := range map[string]net.Listener{"first": a, "second": b} {
		if c, err := asked(l); err == nil {
			c.Close()
			t.Errorf("a third connection of one peer is answered at the %s address, where two of four are the peer's", name)
		}
	}
	open[0].Close()
	testenv.Eventually(t, func() bool {
		c, err := asked(b)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, "room at the second address for a connection that the first has lost")
}
