package namespace

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// interfaceName is that of a talking cell's one interface beside lo.
const interfaceName = "pando0"

// link is the way from a cell's interface to its gateway. It vanishes with the
// cell's network namespace, or when the gateway closes its end.
type link struct {
	cell.NetworkLink
	file    *os.File // until it is the gateway's
	witness keeper.Network
	six     bool // IPv6 works on it
}

// The ends of a veth pair. Neither asks for the other: they are told.
var (
	gatewayMAC = net.HardwareAddr{0x02, 'p', 'a', 'n', 'd', 1}
	cellMAC    = net.HardwareAddr{0x02, 'p', 'a', 'n', 'd', 2}
)

// connect gives the cell its interface: a TUN where one can be made, else a
// veth pair.
func (c *liveCell) connect(files []*os.File) (*link, error) {
	if c.w.Veth {
		l, err := c.veth()
		if err != nil {
			return nil, cell.Errorf(cell.Unsupported, "namespace.Create", "load a module: sudo modprobe veth", "cannot connect a cell to a gateway: no veth pair: %w", err)
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

func noLink(noTun, noVeth error) error {
	return cell.Errorf(cell.Unsupported, "namespace.Create", linkHint, "cannot connect a cell to a gateway: no TUN (%w), no veth pair (%w)", noTun, noVeth)
}

// linkHint is the remedy where a cell can't be connected.
const linkHint = "load a module: sudo modprobe tun (and let everybody open it: sudo chmod 0666 /dev/net/tun), or sudo modprobe veth"

func (c *liveCell) tun(path string) (*link, error) {
	l := &link{NetworkLink: cell.DefaultLink()}
	l.Kind = "tun"
	err := linux.InNetNS(int(c.init.PIDFD.Fd()), func() (err error) {
		if l.file, err = linux.OpenTun(path, interfaceName); err != nil {
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
	const far = interfaceName + "g"
	l := &link{NetworkLink: cell.DefaultLink()}
	l.Kind = "veth"
	err := linux.InNetNS(0, func() error {
		n, err := linux.OpenNetlink()
		if err != nil {
			return err
		}
		defer n.Close()
		n.AddVeth(linux.LinkEnd{Name: far, MAC: gatewayMAC, MTU: l.MTU}, linux.LinkEnd{Name: interfaceName, MAC: cellMAC, MTU: l.MTU}, c.init.PID)
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
			if err := linux.NoOffload(interfaceName); err != nil {
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

// configure gives the interface its addresses and the way to everywhere, from a
// thread in the cell's namespace. A kernel without IPv6 has a link without.
func (l *link) configure() error {
	index, err := linux.InterfaceIndex(interfaceName)
	if err != nil {
		return err
	}
	n, err := linux.OpenNetlink()
	if err != nil {
		return err
	}
	defer n.Close()
	mtu := l.MTU
	if l.Kind == "veth" {
		mtu = 0 // it was made so
	}
	n.Up(index, mtu)
	n.AddAddr(index, l.Cell4)
	if l.Kind == "veth" {
		n.AddNeighbour(index, l.Gateway4, gatewayMAC)
	}
	n.AddDefault(index, l.Gateway4)
	if err := n.Send(); err != nil {
		return err
	}
	n.AddAddr(index, l.Cell6)
	if l.Kind == "veth" {
		n.AddNeighbour(index, l.Gateway6, gatewayMAC)
	}
	n.AddDefault(index, l.Gateway6)
	err = n.Send()
	for began := time.Now(); err == nil; time.Sleep(100 * time.Microsecond) {
		if arrives, aerr := n.Arrives(l.Cell6.Addr()); arrives || aerr != nil {
			err = aerr
			break
		}
		if time.Since(began) > 5*time.Second {
			return fmt.Errorf("cannot use the address %s: the kernel doesn't take it", l.Cell6)
		}
	}
	if l.six = err == nil; errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES) {
		err = nil
	}
	return err
}

func (l *link) drop() {
	if l.file != nil {
		l.file.Close()
	}
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
