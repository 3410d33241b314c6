package namespace

import (
	"fmt"
	"os"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// link is the way from a cell's interface to its gateway. It vanishes with the
// cell's network namespace, or when the gateway closes its end.
type link struct {
	cell.NetworkLink
	file    *os.File // until it is the gateway's
	machine *os.File // of a socket: the end of the virtual machine in the cell, for each that is booted
	witness keeper.Network
	six     bool // IPv6 works on it
}

// connect gives the cell its interface: what the backend above asks for, or else
// a TUN where one can be made, or a veth pair.
func (c *liveCell) connect(files []*os.File) (*link, error) {
	switch c.w.Link {
	case "socket":
		return newSocket()
	case "veth":
		l, err := c.veth()
		if err != nil {
			return nil, noVethPair(err)
		}
		return l, nil
	}
	path := linux.TunPath
	if c.w.Tun != nil {
		if n := *c.w.Tun; n < 0 || n >= len(files) {
			return nil, fmt.Errorf("cannot find the file of TUN devices")
		} else {
			path = "/proc/self/fd/" + strconv.Itoa(int(files[n].Fd()))
		}
	}
	l, noTun := c.tun(path)
	if noTun == nil {
		return l, nil
	}
	l, noVeth := c.veth()
	if noVeth == nil {
		return l, nil
	}
	return nil, noLink(noTun, noVeth)
}

func noVethPair(why error) error {
	return cell.Errorf(cell.Unsupported, "namespace.Create", "load a module: sudo modprobe veth", "cannot connect a cell to a gateway: no veth pair: %w", why)
}

func noLink(noTun, noVeth error) error {
	return cell.Errorf(cell.Unsupported, "namespace.Create", linkHint, "cannot connect a cell to a gateway: no TUN (%w), no veth pair (%w)", noTun, noVeth)
}

// linkHint is the remedy where a cell can't be connected.
const linkHint = "load a module: sudo modprobe tun (and let everybody open it: sudo chmod 0666 /dev/net/tun), or sudo modprobe veth"

func (c *liveCell) tun(path string) (*link, error) {
	l := &link{NetworkLink: cell.DefaultLink()}
	l.Kind = "tun"
	err := linux.InNetNS(int(c.init.PIDFD.Fd()), func() (err error) {
		if l.file, err = linux.OpenTun(path, cell.InterfaceName); err != nil {
			return err
		}
		return l.configure()
	})
	if err != nil {
		l.drop()
		return nil, err
	}
	return l, nil
}

func (c *liveCell) veth() (*link, error) {
	const far = cell.InterfaceName + "g"
	l := &link{NetworkLink: cell.DefaultLink()}
	l.Kind = "veth"
	err := linux.InNetNS(0, func() error {
		n, err := linux.OpenNetlink()
		if err != nil {
			return err
		}
		defer n.Close()
		n.AddVeth(linux.LinkEnd{Name: far, MAC: cell.GatewayMAC, MTU: l.MTU}, linux.LinkEnd{Name: cell.InterfaceName, MAC: cell.CellMAC, MTU: l.MTU}, c.init.PID)
		if err := n.Send(); err != nil {
			return err
		}
		index, err := linux.InterfaceIndex(far)
		if err != nil {
			return err
		}
		n.Up(index, 0)
		if err := n.Send(); err != nil {
			return err
		}
		l.file, err = linux.OpenPacket(far) // from here on it holds the namespace
		return err
	})
	if err == nil {
		err = linux.InNetNS(int(c.init.PIDFD.Fd()), func() error {
			if err := linux.NoOffload(cell.InterfaceName); err != nil {
				return err
			}
			return l.configure()
		})
	}
	if err != nil {
		l.drop()
		return nil, err
	}
	return l, nil
}

// configure makes the interface the link, from a thread in the cell's namespace.
func (l *link) configure() (err error) {
	l.six, err = linux.ConfigureLink(l.NetworkLink)
	return err
}

// newSocket is the link of a cell whose network is a virtual machine's: its own
// namespace has nothing but loopback, and the machine is told to make itself an
// interface of the other end.
func newSocket() (*link, error) {
	l := &link{NetworkLink: cell.DefaultLink(), six: true}
	l.Kind = "socket"
	var err error
	l.file, l.machine, err = linux.FramePair()
	return l, err
}

func (l *link) drop() {
	closeFiles([]*os.File{l.file, l.machine})
}

// Link implements keeper.Linker.
func (d *Driver) Link(id cell.ID) (cell.NetworkLink, *os.File, error) {
	c, err := d.cell(id)
	if err != nil {
		return cell.NetworkLink{}, nil, err
	}
	if c.link == nil || c.link.file == nil {
		return cell.NetworkLink{}, nil, cell.Errorf(cell.Internal, "namespace.Link", "", "cannot connect cell %s: it has no link that is free", id)
	}
	f := c.link.file
	c.link.file = nil
	return c.link.NetworkLink, f, nil
}

// Witness implements keeper.Linker.
func (d *Driver) Witness(id cell.ID, n keeper.Network) {
	if c, err := d.cell(id); err == nil {
		c.link.witness = n
	}
}

// tunNode returns a file from which keepers can make TUNs that could not open
// the host's device, nil where there is none or none is needed. Whoever gets it
// closes it.
func (b *Backend) tunNode() *os.File {
	if !b.root {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tun == nil {
		f, err := linux.TunNode()
		if err != nil {
			return nil // the keeper will say what it lacks
		}
		b.tun = f
	}
	f, err := dup(b.tun)
	if err != nil {
		return nil
	}
	return f
}
