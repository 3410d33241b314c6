package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// authority signs for every name of a test's world.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the test's world"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{t: t, cert: cert, key: key, pem: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// leaf is a certificate for names and addresses.
func (a *authority) leaf(names ...string) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must(a.t, err)
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	must(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// file writes the authority where pando reads what its gateways trust besides
// the host's.
func (a *authority) file(h *host) string {
	h.t.Helper()
	at := filepath.Join(h.work, "authority.pem")
	h.writeAt(at, a.pem)
	return at
}

// names is the DNS of a test's world. A name that ends in a dot-less suffix
// such as "*.example.com" stands for all below it.
type names struct {
	addr string
	mu   sync.Mutex
	zone map[string]func() []string // addresses, told anew at each question
	saw  []string                   // questions, "A example.com"
}

func newNames(t *testing.T, listen string) *names {
	t.Helper()
	n := &names{zone: map[string]func() []string{}}
	pc, err := net.ListenPacket("udp", listen)
	must(t, err)
	n.addr = pc.LocalAddr().String()
	ln, err := net.Listen("tcp", n.addr)
	must(t, err)
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: n}, {Listener: ln, Handler: n}} {
		go s.ActivateAndServe()
		t.Cleanup(func() { s.Shutdown() })
	}
	return n
}

// set gives a name its addresses; all of them change at the next call.
func (n *names) set(name string, addrs ...string) {
	n.let(name, func() []string { return addrs })
}

func (n *names) let(name string, addrs func() []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.zone[name] = addrs
}

func (n *names) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
	n.mu.Lock()
	n.saw = append(n.saw, dns.TypeToString[q.Question[0].Qtype]+" "+name)
	addrs := n.zone[name]
	for at := name; addrs == nil; {
		_, rest, ok := strings.Cut(at, ".")
		if !ok {
			break
		}
		addrs, at = n.zone["*."+rest], rest
	}
	n.mu.Unlock()
	if addrs == nil {
		m.Rcode = dns.RcodeNameError
		w.WriteMsg(m)
		return
	}
	head := dns.RR_Header{Name: q.Question[0].Name, Class: dns.ClassINET, Ttl: 1}
	for _, a := range addrs() {
		ip := netip.MustParseAddr(a)
		switch {
		case ip.Is4() && q.Question[0].Qtype == dns.TypeA:
			head.Rrtype = dns.TypeA
			m.Answer = append(m.Answer, &dns.A{Hdr: head, A: ip.AsSlice()})
		case ip.Is6() && q.Question[0].Qtype == dns.TypeAAAA:
			head.Rrtype = dns.TypeAAAA
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: head, AAAA: ip.AsSlice()})
		}
	}
	w.WriteMsg(m)
}

// serveTLS serves HTTP/1.1 and HTTP/2 over TLS for names.
func (a *authority) serveTLS(addr string, h http.Handler, hosts ...string) string {
	a.t.Helper()
	ln, err := net.Listen("tcp", addr)
	must(a.t, err)
	s := &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{a.leaf(hosts...)}}}
	go s.ServeTLS(ln, "", "")
	a.t.Cleanup(func() { s.Close() })
	return ln.Addr().String()
}
