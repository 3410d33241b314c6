package gateway

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// maxNames bounds the names that a cell can look up in its life.
const maxNames = 65000

// names gives each name that a cell may know addresses of its own: one of 198.18.0.0/15, one of
// the cell's unique local prefix. They are fixed for the life of the cell, so the name of a
// connection is certain.
type names struct {
	link   cell.NetworkLink
	range4 netip.Prefix
	range6 netip.Prefix // a /64 beside that of the link

	mu     sync.RWMutex
	byName map[string]uint32
	list   []string
}

// The first addresses belong to the link.
const firstName = 256

func newNames(link cell.NetworkLink) *names {
	six := link.Cell6.Addr().As16()
	six[7]++
	clear(six[8:])
	return &names{
		link: link, byName: map[string]uint32{},
		range4: netip.PrefixFrom(link.Gateway4, 15).Masked(),
		range6: netip.PrefixFrom(netip.AddrFrom16(six), 64),
	}
}

// give returns the addresses of a name; false when none are left.
func (n *names) give(host string) (four, six netip.Addr, ok bool) {
	n.mu.RLock()
	i, ok := n.byName[host]
	n.mu.RUnlock()
	if !ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		if i, ok = n.byName[host]; !ok {
			if len(n.list) >= maxNames {
				return four, six, false
			}
			i = uint32(len(n.list))
			n.list = append(n.list, host)
			n.byName[host] = i
		}
	}
	four, six = n.addrs(i)
	return four, six, true
}

func (n *names) addrs(i uint32) (four, six netip.Addr) {
	b := n.range4.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+firstName+i)
	c := n.range6.Addr().As16()
	binary.BigEndian.PutUint32(c[12:], firstName+i)
	return netip.AddrFrom4(b), netip.AddrFrom16(c)
}

// nameOf returns the name of an address. ours is true for every address of the ranges, also for
// an unused one.
func (n *names) nameOf(a netip.Addr) (host string, ours bool) {
	var i uint32
	switch {
	case a.Is4() && n.range4.Contains(a):
		b, base := a.As4(), n.range4.Addr().As4()
		i = binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(base[:])
	case a.Is6() && n.range6.Contains(a):
		b := a.As16()
		if binary.BigEndian.Uint32(b[8:]) != 0 {
			return "", true
		}
		i = binary.BigEndian.Uint32(b[12:])
	default:
		return "", n.link.Cell4.Contains(a) || n.link.Cell6.Contains(a)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if i < firstName || i-firstName >= uint32(len(n.list)) {
		return "", true
	}
	return n.list[i-firstName], true
}
