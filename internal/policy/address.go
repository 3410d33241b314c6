package policy

import (
	"encoding/binary"
	"net/netip"
	"sync"
)

// A Block is a range of addresses that are no host of the internet, or that give secrets to
// every client. A rule must name such an address: a name that resolves to it is not enough.
type Block struct {
	Prefix netip.Prefix
	What   string // "a metadata service"
	Never  bool   // no denial proposes to allow it
	host   bool   // what answers there is the gateway's host itself, or answers that host alone
}

const (
	metadata  = "a metadata service"
	linkLocal = "a link-local address"
	loopback  = "the host's loopback"
	nowhere   = "no address of a host" // Linux connects to the loopback
)

// blocks lists them, the narrower before the wider one around it.
// Documentation ranges (192.0.2.0/24, 203.0.113.0/24 …) are not among them:
// nothing is reached through them that is not reached otherwise.
var blocks = sync.OnceValue(func() []Block {
	var out []Block
	add := func(what string, prefixes ...string) {
		for _, p := range prefixes {
			out = append(out, Block{Prefix: netip.MustParsePrefix(p), What: what, Never: what == metadata || what == linkLocal,
				host: what == metadata || what == linkLocal || what == loopback || what == nowhere})
		}
	}
	add(metadata, "169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
		"fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128")
	add(loopback, "127.0.0.0/8", "::1/128")
	add(nowhere, "0.0.0.0/8", "255.255.255.255/32", "::/128")
	add("an address of a private network", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10", "64:ff9b:1::/48")
	add("an address of a carrier's network", "100.64.0.0/10")
	add(linkLocal, "169.254.0.0/16", "fe80::/10")
	add("a multicast group", "224.0.0.0/4", "ff00::/8")
	add("a reserved address", "192.0.0.0/24", "240.0.0.0/4", "::/96", "100::/64")
	add("a tunnel's address", "2001::/32") // Teredo (RFC 4380): what it leads to is masked in it
	return out
})

// Special returns the block an address lies in. The address is plain.
func Special(a netip.Addr) (Block, bool) {
	for _, b := range blocks() {
		if b.Prefix.Contains(a) {
			return b, true
		}
	}
	if v4, ok := tunnelled(a); ok {
		return Special(v4)
	}
	return Block{}, false
}

// tunnelled returns the address of version 4 that a 6to4 address leads to.
func tunnelled(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return a, false
	}
	b := a.As16()
	if b[0] != 0x20 || b[1] != 0x02 {
		return a, false
	}
	return netip.AddrFrom4([4]byte(b[2:6])), true
}

// PlainAddr is the address that is meant: one of version 4 that is written as
// one of version 6, mapped (::ffff:0:0/96) or translated (64:ff9b::/96), is
// itself.
func PlainAddr(a netip.Addr) netip.Addr {
	a = a.WithZone("")
	if a.Is4() {
		return a
	}
	if a.Is4In6() {
		return a.Unmap()
	}
	b := a.As16()
	if binary.BigEndian.Uint64(b[:8]) == 0x0064_ff9b_0000_0000 && binary.BigEndian.Uint32(b[8:12]) == 0 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// plainPrefix is the same for prefixes; false when p is partly one and partly
// the other.
func plainPrefix(p netip.Prefix) (netip.Prefix, bool) {
	a := PlainAddr(p.Addr())
	if a == p.Addr() {
		return p, true
	}
	if p.Bits() < 96 {
		return p, false
	}
	return netip.PrefixFrom(a, p.Bits()-96), true
}

// ParseRange reads an address or a prefix in canonical form; false for names.
func ParseRange(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}
