package isolation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	tape "github.com/pando-dev/pando/internal/wire"
)

// vethOnly names a driver that makes no TUN.
const vethOnly = "veth"

func vethDriver() (*Driver, error) {
	d, err := NewDriver(nil)
	if err != nil {
		return nil, err
	}
	d.connect = func(c *Cell, _ []*os.File) (*link, error) { return c.veth() }
	return d, nil
}

// mirrors are gateways that send every packet back to where it came from, if
// the policy is "mirror"; all others are real.
type mirrors struct{ server.Gateways }

func (m mirrors) Open(id cell.ID, l cell.NetworkLink, f *os.File, g cell.Governance, emit func(string, any)) (server.Network, error) {
	if path, ok := lendPath(g.Policy); ok {
		return lendTo(path, theDriver, id, l, f)
	}
	if string(g.Policy) != `"mirror"` {
		m.Dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("nothing leaves this test")
		}
		claims := g.Resolvers
		g.Resolvers = []string{"127.0.0.1:9"}
		n, err := m.Gateways.Open(id, l, f, g, func(kind string, fields any) {
			if kind == "decision" {
				fmt.Fprintf(os.Stderr, "%s %+v\n", kind, fields)
			}
		})
		if err == nil && len(claims) > 0 {
			n = claiming{n, claims[0]}
		}
		return n, err
	}
	k := &mirror{f: f, done: make(chan struct{})}
	go k.serve(l.Kind)
	return k, nil
}

type mirror struct {
	f    *os.File
	done chan struct{}
}

func (m *mirror) serve(kind string) {
	defer close(m.done)
	head := 0
	if kind == "veth" {
		head = 14
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := m.f.Read(buf)
		if err != nil {
			return
		}
		p := buf[:n]
		if len(p) < head+40 {
			continue
		}
		if head > 0 {
			swap(p[:6], p[6:12])
		}
		switch ip := p[head:]; {
		case ip[0]>>4 == 4 && ip[9] == 17:
			swap(ip[12:16], ip[16:20])
			swap(ip[20:22], ip[22:24])
		case ip[0]>>4 == 6 && ip[6] == 17:
			swap(ip[8:24], ip[24:40])
			swap(ip[40:42], ip[42:44])
		default:
			fmt.Fprintf(os.Stderr, "unasked: %x\n", p[:min(n, 96)]) // into the keepers' log
			continue
		}
		m.f.Write(p)
	}
}

func swap(a, b []byte) {
	c := bytes.Clone(a)
	copy(a, b)
	copy(b, c)
}

func (m *mirror) Govern(cell.Governance) error { return nil }

func (m *mirror) Asked() ([]cell.Asked, <-chan struct{}) { return nil, nil }

func (m *mirror) Answer(cell.Answered) error { return nil }

func (m *mirror) Try(list []cell.Access) (server.Trial, error) { return trial(len(list)), nil }

func (m *mirror) Settle(time.Duration) {}

func (m *mirror) Tell(time.Duration) {}

func (m *mirror) Lend(l net.Listener, upstream *os.File) error {
	return errors.Join(l.Close(), upstream.Close())
}

func (m *mirror) Link(_ string, file *os.File) error { return file.Close() }

func (m *mirror) Wire(*tape.Recorder, *tape.Player) {}

func (m *mirror) ShowDenials(text, lines *os.File) { CloseFiles([]*os.File{text, lines}) }

func (m *mirror) Close() error {
	err := m.f.Close()
	<-m.done
	return err
}

// trial is one of a gateway that denies nothing.
type trial int

func (n trial) Denied() []bool { return make([]bool, n) }

func (n trial) Seen() []bool { return make([]bool, n) }

func (trial) End() {}

// talking runs a script in a cell with a gateway that mirrors, and returns what
// it printed.
func talking(t *testing.T, b *Host, i backend.Instance, script string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := i.Start(t.Context(), "p"+script, cell.Start{LogLimit: 1 << 20, Process: cell.Process{Args: []string{"bash", "-c", script},
		Env: []string{"PATH=/usr/bin:/bin:/usr/sbin"}, Path: []string{"/usr/bin/bash"}, Workdir: "/work"}}, [3]*os.File{out, out, nil})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if st.Exit.Code != 0 {
		t.Errorf("%s: exit code %d, said %s", script, st.Exit.Code, said)
	}
	return string(said)
}

// mirrored makes a cell that gets its own packets back.
func mirrored(t *testing.T, driver string) (*Host, backend.Instance) {
	t.Helper()
	cfg := config(t)
	b := NewHost(cfg)
	b.keepers.Backend = driver
	t.Cleanup(b.Close)
	spec := backendtest.Little(t)
	spec.Network = &cell.Governance{Policy: []byte(`"mirror"`)}
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Remove(context.Background(), "done"); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(filepath.Join(cfg.Keepers, "keeper.log")); err != nil || len(b) > 0 {
			t.Errorf("the cell talks by itself: %s %v", b, err)
		}
		if list := backendtest.Left(t, cfg.Keepers, cfg.Installation); len(list) > 0 {
			t.Errorf("left over: %v", list)
		}
	})
	return b, i
}

// Whatever a cell sends, over either link and in either version of IP, comes to
// its gateway, and what the gateway sends comes to the cell.
func TestLink(t *testing.T) {
	for _, driver := range []string{plain, vethOnly} {
		t.Run(driver, func(t *testing.T) {
			b, i := mirrored(t, driver)
			t.Logf("network: %s", i.Assurance().Network)
			if got := i.Assurance().Network; driver == vethOnly && got != "gateway over veth" {
				t.Errorf("network: %s", got)
			}
			for _, to := range []string{"192.0.2.1/53", "198.18.0.1/53", "2001:db8::1/4433", "fd70:616e:646f::1/53"} {
				said := talking(t, b, i, "exec 3<>/dev/udp/"+to+"; printf there-and-back >&3; timeout 5 head -c 14 <&3")
				if said != "there-and-back" {
					t.Errorf("%s: %q", to, said)
				}
			}
			big := talking(t, b, i, "exec 3<>/dev/udp/192.0.2.1/9; head -c 60000 /dev/zero | dd bs=60000 iflag=fullblock status=none >&3; timeout 5 dd bs=65535 count=1 status=none <&3 | wc -c")
			if strings.TrimSpace(big) != "60000" {
				t.Errorf("a large packet came back as %s bytes", big)
			}
			addrs := talking(t, b, i, "cat /proc/net/if_inet6 /proc/net/route /proc/net/dev")
			if strings.Contains(addrs, "fe80") || strings.Count(addrs, cell.InterfaceName) != 4 {
				t.Errorf("addresses, routes and interfaces:\n%s", addrs)
			}
		})
	}
}

// linkless names a driver that can connect no cell.
const linkless = "linkless"

func linklessDriver() (server.Driver, error) {
	d, err := NewDriver(nil)
	if err != nil {
		return nil, err
	}
	d.connect = func(*Cell, []*os.File) (*link, error) {
		return nil, noLink(errors.New("no device"), errors.New("no module"))
	}
	return d, nil
}

// A cell that may talk and can't be connected is not made, and nothing of it is
// left; one that may not is.
func TestF65NoLinkNoCell(t *testing.T) {
	cfg := config(t)
	b := NewHost(cfg)
	defer b.Close()
	b.keepers.Backend = linkless
	spec := backendtest.Little(t)
	spec.Network = &cell.Governance{Policy: []byte(`"mirror"`)}
	i, err := b.Create(t.Context(), spec)
	if err == nil {
		i.Remove(t.Context(), "done")
		t.Fatal("the cell was made")
	}
	refused(t, cfg, b, spec.ID, err, "no device", "no module")
	spec = backendtest.Little(t)
	if i, err = b.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := i.Remove(t.Context(), "done"); err != nil {
		t.Error(err)
	}
}
