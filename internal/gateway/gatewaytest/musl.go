package gatewaytest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// The error words of musl's getaddrinfo.
const (
	eaiNoName = "EAI_NONAME" // final
	eaiAgain  = "EAI_AGAIN"  // after five seconds
	eaiFail   = "EAI_FAIL"
)

// musl asks as musl's resolver does (res_msend.c and lookup_name.c of 1.2): for all types at once
// from one socket without EDNS, at all name servers. An answer counts when it says NOERROR or
// NXDOMAIN; SERVFAIL is asked for again, and any other code is taken for no answer.
func musl(b *Bench, name string, kinds ...uint16) (addrs []string, err string) {
	b.Helper()
	answers := make([]*dns.Msg, len(kinds))
	for i, kind := range kinds {
		q := question(name, kind)
		for _, server := range []string{b.Link.Gateway4.String(), b.Link.Gateway6.String()} {
			m, err := queryAt(b, server, q)
			if err != nil {
				b.Fatal(err)
			}
			if len(m) > 512 {
				b.Errorf("%s: an answer has %d bytes", name, len(m))
			}
			var a dns.Msg
			if err := a.Unpack(m); err != nil || a.Truncated || a.Id != q.Id {
				b.Fatalf("%s: %v, %v", name, err, &a)
			}
			if a.Rcode == dns.RcodeSuccess || a.Rcode == dns.RcodeNameError {
				answers[i] = &a
			}
		}
	}
	for _, a := range answers {
		if a == nil {
			return nil, eaiAgain
		}
		for _, rr := range a.Answer {
			switch rr := rr.(type) {
			case *dns.A:
				addrs = append(addrs, rr.A.String())
			case *dns.AAAA:
				addrs = append(addrs, rr.AAAA.String())
			}
		}
	}
	switch first := answers[0].Rcode; {
	case len(addrs) > 0:
		return addrs, ""
	case first == dns.RcodeSuccess || first == dns.RcodeNameError:
		return nil, eaiNoName
	}
	return nil, eaiFail
}

// queryAt sends a question over UDP, and returns the bytes of the answer.
func queryAt(b *Bench, server string, q *dns.Msg) ([]byte, error) {
	c, err := b.Cell.Dial(b.Ctx(), "udp", net.JoinHostPort(server, "53"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testenv.Patience()))
	out, err := q.Pack()
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(out); err != nil {
		return nil, err
	}
	in := make([]byte, 4096)
	n, err := c.Read(in)
	return in[:n], err
}

// testMusl: what a cell may not look up, and what no name can be, is final for a program of musl.
func testMusl(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test", "four.test", "missing.test", "broken.test", "*.wild.test", "*.arpa")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("a.test. 60 IN AAAA 2001:db8::1")
	b.Record("four.test. 60 IN A 203.0.113.2")
	b.Answers("broken.test", dns.RcodeServerFailure)
	both := []uint16{dns.TypeA, dns.TypeAAAA}
	for _, c := range []struct {
		name  string
		kinds []uint16
		want  string // how many addresses, or an error
	}{
		{"a.test", both, "2"}, {"four.test", both, "2"},
		{"b.test", both, "1"}, {"b.test", both[:1], "1"}, {"b.test", both[1:], eaiNoName},
		{"single", both, "1"}, {"with_underscore", both, "1"},
		{"missing.test", both, eaiNoName}, {"missing.test", both[1:], eaiNoName},
		{"-b.test", both, eaiNoName}, {"b-", both, eaiNoName}, {"-a.wild.test", both, eaiNoName},
		{strings.Repeat("a", 41) + ".wild.test", both, "1"},
		{"1.113.0.203.in-addr.arpa", []uint16{dns.TypePTR}, eaiNoName},
		{"1.0.0.127.other", []uint16{dns.TypePTR}, eaiNoName},
		{"broken.test", both, eaiAgain}, // that is a fault that may pass
	} {
		addrs, got := musl(b, c.name, c.kinds...)
		if got == "" {
			got = fmt.Sprint(len(addrs))
		}
		if got != c.want {
			t.Errorf("%s %v: %s %v, want %s", c.name, c.kinds, got, addrs, c.want)
		}
	}
	b.Decided(cell.Deny, func(a cell.Access) bool { return a.Host == "-b.test" })
	before := b.denials("b.test")
	addrs, _ := musl(b, "b.test", both...)
	if n := b.denials("b.test") - before; n != 1 {
		t.Errorf("an attempt at two servers was told as %d", n)
	}
	if c, err := b.Cell.Dial(b.Ctx(), "tcp", net.JoinHostPort(addrs[0], "22")); !refused(err) {
		t.Errorf("%v: %v, %v", addrs, c, err)
	}
}
