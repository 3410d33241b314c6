package gatewaytest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
)

var quiet = log.New(io.Discard, "", 0)

// Leaf makes a certificate of an authority for some names.
func Leaf(a cell.Authority, names ...string) (tls.Certificate, error) {
	ca, err := tls.X509KeyPair([]byte(a.Cert), []byte(a.Key))
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Query asks the gateway's DNS from inside.
func Query(ctx context.Context, c Cell, server netip.Addr, network string, q *dns.Msg) (*dns.Msg, error) {
	nc, err := c.Dial(ctx, network, netip.AddrPortFrom(server, 53).String())
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	co := &dns.Conn{Conn: nc, UDPSize: 4096}
	if network == "tcp" {
		// dns.Conn takes every net.Conn that is no packet connection for a
		// stream, and a UDP connection of a test's stack for one, too.
		return overStream(nc, q)
	}
	b, err := q.Pack()
	if err != nil {
		return nil, err
	}
	if _, err := co.Conn.Write(b); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := nc.Read(buf)
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	return m, m.Unpack(buf[:n])
}

func overStream(nc net.Conn, q *dns.Msg) (*dns.Msg, error) {
	b, err := q.Pack()
	if err != nil {
		return nil, err
	}
	if _, err := nc.Write(append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(nc, size[:]); err != nil {
		return nil, err
	}
	b = make([]byte, int(size[0])<<8|int(size[1]))
	if _, err := io.ReadFull(nc, b); err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	return m, m.Unpack(b)
}

// Lookup returns the address that the cell has for a name.
func Lookup(ctx context.Context, c Cell, link cell.NetworkLink, host string) (netip.Addr, error) {
	m, err := Query(ctx, c, link.Gateway4, "udp", new(dns.Msg).SetQuestion(dns.Fqdn(host), dns.TypeA))
	if err != nil {
		return netip.Addr{}, err
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			addr, _ := netip.AddrFromSlice(a.A)
			return addr.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("cannot resolve %s: %s", host, dns.RcodeToString[m.Rcode])
}

// DialHost connects from inside to a host by its name.
func DialHost(ctx context.Context, c Cell, link cell.NetworkLink, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		if addr, err = Lookup(ctx, c, link, host); err != nil {
			return nil, err
		}
	}
	return c.Dial(ctx, "tcp", net.JoinHostPort(addr.String(), port))
}

// Client is an HTTP client inside.
func Client(c Cell, link cell.NetworkLink, roots *x509.CertPool) *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return DialHost(ctx, c, link, address)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
	}}
}

// refused reports whether a connection was refused at once.
func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "refused")
}
