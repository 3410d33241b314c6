package isolation

import (
	"fmt"
	"os"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// link connects a cell's interface to its gateway. It vanishes with the cell's network
// namespace, or when the gateway closes its end.
type link struct {
	cell.NetworkLink
	file    *os.File // nil once the gateway has it
	machine *os.File // kind socket: the virtual machine's end, used by each machine booted in the cell
	witness server.Network
	six     bool // IPv6 works
}

// connect creates the cell's interface: the kind that the backend above demands, or else a TUN
// device, or else a veth pair.
func (c *Cell) connect(files []*os.File) (*link, error) {
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
	return cell.Errorf(cell.Unsupported, "isolation.Create", "load a module: sudo modprobe veth", "cannot connect a cell to a gateway: no veth pair: %w", why)
}

func noLink(noTun, noVeth error) error {
	return cell.Errorf(cell.Unsupported, "isolation.Create", linkHint, "cannot connect a cell to a gateway: no TUN (%w), no veth pair (%w)", noTun, noVeth)
}

// linkHint is the remedy if no link can be created.
const linkHint = "load a module: sudo modprobe tun (and make it accessible: sudo chmod 0666 /dev/net/tun), or sudo modprobe veth"

func (c *Cell) tun(path string) (*link, error) {
	l := &link{NetworkLink: cell.DefaultLink()}
	l.Kind = "tun"
	err := linux.InNetNS(int(c.Init.PIDFD.Fd()), func() (err error) {
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

func (c *Cell) veth() (*link, error) {
	const far = cell.InterfaceName + "g"
	l := &link{NetworkLink: cell.DefaultLink()}
	l.Kind = "veth"
	err := linux.InNetNS(0, func() error {
		n, err := linux.OpenNetlink()
		if err != nil {
			return err
		}
		defer n.Close()
		n.AddVeth(linux.LinkEnd{Name: far, MAC: cell.GatewayMAC, MTU: l.MTU}, linux.LinkEnd{Name: cell.InterfaceName, MAC: cell.CellMAC, MTU: l.MTU}, c.Init.PID)
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
		l.file, err = linux.OpenPacket(far) // it keeps the namespace alive
		return err
	})
	if err == nil {
		err = linux.InNetNS(int(c.Init.PIDFD.Fd()), func() error {
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

// configure configures the interface, from a thread in the cell's namespace.
func (l *link) configure() (err error) {
	l.six, err = linux.ConfigureLink(l.NetworkLink)
	return err
}

// newSocket returns the link of a cell that runs a virtual machine. The cell's own namespace
// has only loopback; the machine makes an interface of the other end.
func newSocket() (*link, error) {
	l := &link{NetworkLink: cell.DefaultLink(), six: true}
	l.Kind = "socket"
	var err error
	l.file, l.machine, err = linux.FramePair()
	return l, err
}

func (l *link) drop() {
	CloseFiles([]*os.File{l.file, l.machine})
}

// Link implements server.Linker.
func (d *Driver) Link(id cell.ID) (cell.NetworkLink, *os.File, error) {
	c, err := d.Cell(id)
	if err != nil {
		return cell.NetworkLink{}, nil, err
	}
	if c.link == nil || c.link.file == nil {
		return cell.NetworkLink{}, nil, cell.Errorf(cell.Internal, "isolation.Link", "", "cannot connect cell %s: it has no link that is free", id)
	}
	f := c.link.file
	c.link.file = nil
	return c.link.NetworkLink, f, nil
}

// Witness implements server.Linker.
func (d *Driver) Witness(id cell.ID, n server.Network) {
	if c, err := d.Cell(id); err == nil {
		c.link.witness = n
	}
}

// tunNode returns a file from which keepers that cannot open the host's device can make TUN
// devices. It is nil if there is none or none is needed. The caller closes it.
func (h *Host) tunNode() *os.File {
	if !h.root {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tun == nil {
		f, err := linux.TunNode()
		if err != nil {
			return nil // the keeper reports what is missing
		}
		h.tun = f
	}
	f, err := dup(h.tun)
	if err != nil {
		return nil
	}
	return f
}
