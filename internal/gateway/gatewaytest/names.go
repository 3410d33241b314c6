package gatewaytest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
)

type joins = func(t testing.TB) Site

func question(name string, kind uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
}

func rcode(m *dns.Msg) string { return dns.RcodeToString[m.Rcode] }

// explained is the extended error of an answer.
func explained(m *dns.Msg) *dns.EDNS0_EDE {
	if o := m.IsEdns0(); o != nil {
		for _, e := range o.Option {
			if e, ok := e.(*dns.EDNS0_EDE); ok {
				return e
			}
		}
	}
	return nil
}

// testNames: each name has addresses of its own, and keeps them.
func testNames(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test", "b.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("b.test. 60 IN A 203.0.113.1")
	b.Record("b.test. 60 IN AAAA 2001:db8::1")
	seen := map[string]string{}
	for _, name := range []string{"a.test", "b.test"} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
			var first string
			for _, network := range []string{"udp", "tcp", "udp"} {
				m := b.Ask(network, question(name, kind))
				if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].Header().Ttl > 60 {
					t.Fatalf("%s over %s: %s", name, network, m)
				}
				_, addr, _ := strings.Cut(m.Answer[0].String(), "IN\t")
				if first == "" {
					first = addr
				}
				if addr != first {
					t.Errorf("%s had the address %s and now %s", name, first, addr)
				}
			}
			if other := seen[first]; other != "" {
				t.Errorf("%s and %s have one address, %s", name, other, first)
			}
			seen[first] = name
		}
	}
	// A resolver that plays with upper case gets its own spelling back.
	m := b.Ask("udp", question("A.tESt", dns.TypeA))
	if m.Question[0].Name != "A.tESt." || len(m.Answer) != 1 || m.Answer[0].Header().Name != "A.tESt." {
		t.Errorf("asked for A.tESt: %s", m)
	}
	// Over IPv6, too.
	if m, err := Query(b.Ctx(), b.Cell, b.Link.Gateway6, "udp", question("a.test", dns.TypeA)); err != nil || len(m.Answer) != 1 {
		t.Errorf("asked over IPv6: %v, %v", m, err)
	}
}

// testNamesDenied: a name that no rule allows has a refusal address and no other
// records, with the reason, and nothing outside hears of it.
func testNamesDenied(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test")))
	for _, network := range []string{"udp", "tcp"} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHTTPS, dns.TypeANY, dns.TypeNULL} {
			q := question("secret.evil.test", kind)
			q.SetEdns0(1232, false)
			m := b.Ask(network, q)
			if kind == dns.TypeA && !refusalOnly(b.Link, m) || kind != dns.TypeA && (m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0) {
				t.Errorf("%s %s: %s", network, dns.TypeToString[kind], m)
			}
			if e := explained(m); e == nil || e.InfoCode != dns.ExtendedErrorCodeProhibited || !strings.Contains(e.ExtraText, "no rule allows secret.evil.test") || !strings.Contains(e.ExtraText, "--allow secret.evil.test") {
				t.Errorf("%s %s: the reason is %v", network, dns.TypeToString[kind], e)
			}
		}
	}
	if m := b.Ask("udp", question("evil.test", dns.TypeA)); m.IsEdns0() != nil {
		t.Error("an answer has EDNS though the question had none")
	}
	q := question("a.test", dns.TypeA)
	q.Question[0].Qclass = dns.ClassCHAOS
	if m := b.Ask("udp", q); m.Rcode != dns.RcodeRefused {
		t.Errorf("another class: %s", rcode(m))
	}
	if n := b.Asked("secret.evil.test"); n > 0 {
		t.Errorf("a denied name was asked for outside, %d times", n)
	}
	d := b.Decided(cell.Deny, func(a cell.Access) bool { return a.Act == cell.Resolve && a.Host == "secret.evil.test" })
	if d.ID == "" || d.Policy.IsZero() || d.Decision.Permit == "" {
		t.Errorf("the event says %+v", d)
	}
}

// testNamesAsTold: that there is no such name, and that it can't be found out,
// is passed on.
func testNamesAsTold(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("nowhere.test", "broken.test", "empty.test", "alias.test", "far.test", "many.test")))
	b.Answers("broken.test", dns.RcodeServerFailure)
	b.Record("empty.test. 60 IN MX 10 mail.test.")
	b.Record("alias.test. 60 IN CNAME real.elsewhere.test.")
	b.Record("real.elsewhere.test. 60 IN A 203.0.113.7")
	for i := range 120 { // more than a datagram takes
		b.Record(fmt.Sprintf("many.test. 60 IN A 203.0.113.%d", i))
	}
	for name, want := range map[string]string{"nowhere.test": "NXDOMAIN", "broken.test": "SERVFAIL", "empty.test": "NOERROR", "alias.test": "NOERROR", "many.test": "NOERROR"} {
		m := b.Ask("udp", question(name, dns.TypeA))
		addrs := map[string]int{"alias.test": 1, "many.test": 1}[name]
		if rcode(m) != want || len(m.Answer) != addrs {
			t.Errorf("%s: %s", name, m)
		}
	}
	// What could not be looked up is told, and is no denial.
	failed := b.Events.All(func(e Event) bool { return e.Kind == "network.unresolved" })
	if len(failed) != 1 || failed[0].Failed.Host != "broken.test" || failed[0].Failed.Error == "" {
		t.Errorf("of what could not be looked up is told: %+v", failed)
	}
	// The alias leads to the name; that one is not the cell's to know.
	if m := b.Ask("udp", question("real.elsewhere.test", dns.TypeA)); !refusalOnly(b.Link, m) {
		t.Errorf("the target of an alias: %s", m)
	}
}

// testNamesOfOtherTypes: there is nothing but addresses, and no way around TLS
// names (HTTPS records carry keys for encrypted ones).
func testNamesOfOtherTypes(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("a.test")))
	b.Record("a.test. 60 IN A 203.0.113.1")
	b.Record("a.test. 60 IN TXT \"what a server sends\"")
	for _, kind := range []uint16{dns.TypeHTTPS, dns.TypeSVCB, dns.TypeTXT, dns.TypeMX, dns.TypeSRV, dns.TypeNS} {
		if m := b.Ask("udp", question("a.test", kind)); m.Rcode != dns.RcodeSuccess || len(m.Answer)+len(m.Ns)+len(m.Extra) > 0 {
			t.Errorf("%s: %s", dns.TypeToString[kind], m)
		}
	}
	for _, kind := range []uint16{dns.TypeANY, dns.TypeNULL, dns.TypeAXFR} {
		if m := b.Ask("tcp", question("a.test", kind)); m.Rcode != dns.RcodeRefused {
			t.Errorf("%s: %s", dns.TypeToString[kind], rcode(m))
		}
	}
}

// testNamesThatAreData: a wildcard is no way to send data out in names.
func testNamesThatAreData(t *testing.T, site joins) {
	b := Join(t, site(t), With(Allow("*.wild.test", "exactly-this-name-which-is-longer-than-forty-characters.test")))
	b.Record("exactly-this-name-which-is-longer-than-forty-characters.test. 60 IN A 203.0.113.1")
	if m := b.Ask("udp", question("exactly-this-name-which-is-longer-than-forty-characters.test", dns.TypeA)); m.Rcode != dns.RcodeSuccess {
		t.Errorf("a long name that a rule names: %s", rcode(m))
	}
	for _, name := range []string{
		strings.Repeat("a", 41) + ".wild.test",
		"mzxw6ytboi4dkmrqgezdgnbvgy3tqojq.wild.test",
		strings.Repeat("abc.", 25) + "wild.test",
		"with space.wild.test", `q\000x.wild.test`,
	} {
		if m := b.Ask("udp", question(name, dns.TypeTXT)); len(m.Answer) > 0 || m.Rcode != dns.RcodeNameError && m.Rcode != dns.RcodeSuccess {
			t.Errorf("%s: %s", name, m)
		}
		if m := b.Ask("udp", question(name, dns.TypeA)); m.Rcode != dns.RcodeNameError && !refusalOnly(b.Link, m) {
			t.Errorf("%s: %s", name, m)
		}
		if b.Asked(name) > 0 {
			t.Errorf("%s was asked for outside", name)
		}
	}
	for _, name := range []string{"www.wild.test", "d3b07384-d9a0-4c9b-8f3a-1c2d3e4f5a6b.wild.test", "eu-west-1.api.wild.test"} {
		if m := b.Ask("udp", question(name, dns.TypeA)); m.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %s", name, rcode(m))
		}
	}
	refused := 0
	for i := range 100 {
		if m := b.Ask("udp", question(fmt.Sprintf("x%d.wild.test", i), dns.TypeA)); refusalOnly(b.Link, m) {
			refused++
		}
	}
	if refused < 30 {
		t.Errorf("of 100 names of one domain at once %d were refused", refused)
	}
	if m := b.Ask("udp", question("www.wild.test", dns.TypeA)); m.Rcode != dns.RcodeNameError {
		t.Errorf("a name that was asked for before: %s", rcode(m))
	}
}

// refusalOnly reports whether an answer is one refusal address that no name has.
func refusalOnly(link cell.NetworkLink, m *dns.Msg) bool {
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].Header().Ttl != 0 {
		return false
	}
	a, ok := m.Answer[0].(*dns.A)
	if !ok {
		return false
	}
	addr, ok := netip.AddrFromSlice(a.A.To4())
	return ok && link.Refusals().Contains(addr)
}
