package gatewaytest

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"testing"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/testenv"
)

// Bench is a cell with a gateway and a world outside, for one test.
type Bench struct {
	testing.TB
	Site
	*World
	Gateway   *gateway.Gateway
	Events    *Events
	Authority cell.Authority
	Trust     *x509.CertPool // what a client inside trusts: the world's roots and the cell's own
}

// Join opens a gateway for a site, with a world outside.
func Join(t testing.TB, site Site, g func(w *World, authority cell.Authority) cell.Governance) *Bench {
	t.Helper()
	b := &Bench{TB: t, Site: site, World: NewWorld(t), Events: &Events{}}
	var err error
	if b.Authority, err = gateway.NewAuthority("test"); err != nil {
		t.Fatal(err)
	}
	b.Trust = b.Roots().Clone()
	b.Trust.AppendCertsFromPEM([]byte(b.Authority.Cert))
	b.Gateway, err = gateway.Open(gateway.Config{
		Cell: "c-test", Link: site.Link, File: site.File, Endpoint: site.Endpoint, Governance: g(b.World, b.Authority), Compile: Compile, Emit: b.Events.Emit, Dial: b.World.Dial, Service: b.World.Service,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Gateway.Close() })
	return b
}

// With makes the governance of a policy, with an authority and credentials.
func With(p Policy, lent ...cell.Lent) func(*World, cell.Authority) cell.Governance {
	return func(w *World, a cell.Authority) cell.Governance {
		g := w.Governance(p)
		g.Authority, g.Credentials = a, lent
		return g
	}
}

// Ctx is bounded by what a test may take.
func (b *Bench) Ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience())
	b.Cleanup(cancel)
	return ctx
}

// Get fetches an address from inside.
func (b *Bench) Get(url string) (*http.Response, string, error) {
	res, err := Client(b.Cell, b.Link, b.Trust).Get(url)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

// Decided waits for the decision about an access.
func (b *Bench) Decided(effect cell.Effect, f func(cell.Access) bool) cell.Decided {
	b.Helper()
	return b.Events.Wait(b, "decision "+string(effect), func(e Event) bool {
		return e.Kind == "decision" && e.Decided.Decision.Effect == effect && f(e.Decided.Access)
	}).Decided
}

// Ask asks the gateway's DNS.
func (b *Bench) Ask(network string, q *dns.Msg) *dns.Msg {
	b.Helper()
	m, err := Query(b.Ctx(), b.Cell, b.Link.Gateway4, network, q)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// Run is the conformance suite. site joins a new cell to a link.
func Run(t *testing.T, site func(t testing.TB) Site) {
	for _, c := range []struct {
		name string
		f    func(t *testing.T, site func(t testing.TB) Site)
	}{
		{"Names", testNames},
		{"NamesDenied", testNamesDenied},
		{"NamesAsUpstreamTellsThem", testNamesAsTold},
		{"NamesOfOtherTypes", testNamesOfOtherTypes},
		{"NamesThatAreData", testNamesThatAreData},
		{"X40Refusals", testRefusals},
		{"X40RefusalsForwardNothing", testRefusalsForwardNothing},
		{"X40DenialsAreShown", testDenialsShown},
		{"X40MuslIsToldAtOnce", testMusl},
		{"Connect", testConnect},
		{"ConnectDenied", testConnectDenied},
		{"Services", testServices},
		{"F10NothingElseLeaves", testNothingElse},
		{"PrivateAddresses", testPrivate},
		{"FloodsMakeFewEvents", testFlood},
		{"TLSPassedThrough", testPassThrough},
		{"TLSNames", testTLSNames},
		{"TLSOpened", testOpened},
		{"HTTP", testHTTP},
		{"HTTPDenied", testHTTPDenied},
		{"HTTPOfAnotherHost", testOtherHost},
		{"Paths", testPaths},
		{"Streams", testStreams},
		{"WebSocket", testWebSocket},
		{"OtherProtocols", testOther},
		{"Disguised", testDisguised},
		{"LongRequests", testLongRequests},
		{"TLSThatComesSlowly", testSlowHello},
		{"Turns", testTurns},
		{"CodedTurns", testCodedTurns},
		{"Models", testModels},
		{"Credentials", testCredentials},
		{"CredentialsStayInPlace", testCredentialsStayInPlace},
		{"F68Asked", testAsked},
		{"F67Govern", testGovern},
		{"Budget", testBudget},
		{"BudgetCountsTrailers", testTrailersCount},
		{"Trial", testTrial},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, site) })
	}
}
