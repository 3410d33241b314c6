package decide

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func rulesOf(t *testing.T, n policy.Network) *Rules {
	t.Helper()
	e := policy.Defaults(machine)
	e.Network = n
	p, err := Compile(e.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ask reads an access in the words of `pando policy why`: "resolve HOST",
// "connect HOST:PORT[=ADDR]", "METHOD URL".
func asked(s string) cell.Access {
	verb, rest, _ := strings.Cut(s, " ")
	rest, addr, _ := strings.Cut(rest, "=")
	a, err := ParseRequest(verb + " " + rest)
	if err != nil {
		panic(err)
	}
	if addr != "" {
		a.Addr = netip.MustParseAddr(addr)
	}
	return a
}

func TestDecisions(t *testing.T) {
	p := rulesOf(t, policy.Network{
		Allow: []policy.Rule{
			{Hosts: []string{"registry.npmjs.org"}, Ports: []string{"80", "443"}},
			{Hosts: []string{"*.example.com"}, Ports: []string{"443"}},
			{Hosts: []string{"api.github.com"}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: []string{"/repos/me/**", "/users/*"}},
			{Hosts: []string{"10.1.0.0/16"}, Ports: []string{"5432"}},
			{Hosts: []string{"db.internal"}, Ports: []string{"5432", "5433"}},
			{Hosts: []string{"0.0.0.0/0"}, Ports: []string{"8443"}},
			{Hosts: []string{"wide.example"}, Ports: []string{"443"}, Except: []policy.Rule{{Hosts: []string{"203.0.113.0/24"}}}},
			{Hosts: []string{"half.example"}, Ports: []string{"443"}},
			{Hosts: []string{"files.example.net"}, Ports: []string{"443"}, Except: []policy.Rule{{Methods: []string{"PUT", "POST"}}}},
		},
		Ask: []policy.Rule{
			{Hosts: []string{"api.github.com"}, Ports: []string{"443"}, Methods: []string{"POST"}, Except: []policy.Rule{{Paths: []string{"/graphql"}}}},
			{Hosts: []string{"slow.example.org"}, Ports: []string{"443"}},
			{Hosts: []string{"192.0.2.128/25"}, Ports: []string{"443"}},
		},
		Deny: []policy.Rule{
			{Hosts: []string{"evil.example.com"}},
			{Hosts: []string{"registry.npmjs.org"}, Paths: []string{"/-/npm/**"}},
			{Hosts: []string{"198.51.100.0/24"}},
			{Hosts: []string{"half.example"}, Except: []policy.Rule{{Hosts: []string{"203.0.113.0/24"}}}},
			{Hosts: []string{"192.0.2.0/25"}, Methods: []string{"DELETE"}},
		},
	})
	for _, c := range []struct {
		access string
		want   cell.Effect
		open   bool
	}{
		{"resolve registry.npmjs.org", cell.Allow, false},
		{"connect registry.npmjs.org:443", cell.Allow, true}, // a deny looks at paths
		{"connect registry.npmjs.org:22", cell.Deny, false},
		{"GET https://registry.npmjs.org/left-pad", cell.Allow, false},
		{"GET https://registry.npmjs.org/-/npm/v1/x", cell.Deny, false},
		{"GET https://registry.npmjs.org/-/npm", cell.Deny, false},
		{"GET https://registry.npmjs.org/%2d/npm/v1", cell.Deny, false},
		{"GET https://registry.npmjs.org/x%2f..%2f-/npm", cell.Deny, false},
		{"GET https://registry.npmjs.org//-/npm", cell.Deny, false},
		{"GET https://registry.npmjs.org/a/../-/npm", cell.Deny, false},
		{"resolve a.b.example.com", cell.Allow, false},
		{"connect a.b.example.com:443", cell.Allow, false},
		{"connect a.b.example.com:80", cell.Deny, false},
		{"resolve example.com", cell.Deny, false},
		{"resolve notexample.com", cell.Deny, false},
		{"resolve evil.example.com", cell.Deny, false},
		{"connect evil.example.com:443", cell.Deny, false},
		{"connect api.github.com:443", cell.Allow, true},
		{"GET https://api.github.com/repos/me/x/y", cell.Allow, false},
		{"HEAD https://api.github.com/repos/me", cell.Allow, false},
		{"GET https://api.github.com/users/you", cell.Allow, false},
		{"GET https://api.github.com/users/you/keys", cell.Deny, false},
		{"GET https://api.github.com/users/", cell.Deny, false},
		{"DELETE https://api.github.com/repos/me/x", cell.Deny, false},
		{"POST https://api.github.com/repos/x/y/issues", cell.Ask, false},
		{"POST https://api.github.com/graphql", cell.Deny, false},
		{"resolve slow.example.org", cell.Allow, false},
		{"connect slow.example.org:443", cell.Ask, false},
		{"connect slow.example.org:443=93.184.216.34", cell.Allow, false},
		{"GET https://slow.example.org/", cell.Allow, false},
		{"connect files.example.net:443", cell.Allow, true},
		{"GET https://files.example.net/x", cell.Allow, false},
		{"PUT https://files.example.net/x", cell.Deny, false},
		{"connect 10.1.2.3:5432", cell.Allow, false},
		{"connect 10.1.2.3:22", cell.Deny, false},
		{"connect 10.2.2.3:5432", cell.Deny, false},
		{"connect db.internal:5432=10.1.2.3", cell.Allow, false},
		{"connect db.internal:5433=10.1.2.3", cell.Deny, false}, // the address is named for 5432
		{"connect db.internal:5432=10.9.2.3", cell.Deny, false},
		{"connect db.internal:5432=203.0.113.7", cell.Allow, false},
		{"connect db.internal:5432=198.51.100.7", cell.Deny, false}, // denied by address
		{"connect registry.npmjs.org:443=127.0.0.1", cell.Deny, false},
		{"connect registry.npmjs.org:443=::1", cell.Deny, false},
		{"connect registry.npmjs.org:443=::ffff:127.0.0.1", cell.Deny, false},
		{"connect registry.npmjs.org:443=64:ff9b::7f00:1", cell.Deny, false},
		{"connect registry.npmjs.org:443=2002:7f00:1::", cell.Deny, false},
		{"connect registry.npmjs.org:443=2001:0:7f00:1::1", cell.Deny, false},
		{"connect registry.npmjs.org:443=169.254.169.254", cell.Deny, false},
		{"connect 93.184.216.34:8443", cell.Allow, false},
		{"connect wide.example:443=93.184.216.34", cell.Allow, false},
		{"connect wide.example:443=203.0.113.9", cell.Deny, false}, // what takes counts where a name leads
		{"connect half.example:443=203.0.113.9", cell.Deny, false}, // what gives does not
		{"connect wide.example:443=192.0.2.1", cell.Deny, false},   // too late to look into it
		{"connect wide.example:443=192.0.2.129", cell.Deny, false}, // too late to ask
		{"connect 192.0.2.129:443", cell.Ask, false},
		{"GET https://192.0.2.129/x", cell.Allow, false},
		{"connect 203.0.113.9:8443", cell.Allow, false},
		{"connect 127.0.0.1:8443", cell.Deny, false}, // 0.0.0.0/0 does not name it
		{"connect 169.254.169.254:8443", cell.Deny, false},
		{"connect 198.51.100.9:8443", cell.Deny, false},
		{"connect [2001:db8::1]:8443", cell.Deny, false},
	} {
		got := p.Decide(asked(c.access))
		if got.Effect != c.want || got.Open != c.open {
			t.Errorf("%s: %+v; want %s, open %v", c.access, got, c.want, c.open)
		}
		if got.Rule == "" || got.Origin == "" || got.Reason == "" || got.By != "policy" {
			t.Errorf("%s is not explained: %+v", c.access, got)
		}
	}
}

// What is in no form that rules have is denied, also where everything is
// allowed.
func TestWhatHasNoFormIsDenied(t *testing.T) {
	p := rulesOf(t, policy.Network{Allow: []policy.Rule{{Hosts: []string{"*", "0.0.0.0/0", "::/0"}}}})
	for _, a := range []cell.Access{
		{},
		{Act: "other", Host: "a.example"},
		{Act: cell.Connect, Port: 443},
		{Act: cell.Connect, Host: "A.example", Port: 443},
		{Act: cell.Connect, Host: "a.example.", Port: 443},
		{Act: cell.Connect, Host: "127.0.0.1", Port: 443},
		{Act: cell.Connect, Host: "0x7f000001", Port: 443},
		{Act: cell.Connect, Host: "a.1", Port: 443},
		{Act: cell.Connect, Host: "[::1]", Port: 443},
		{Act: cell.Connect, Host: "a.example", Port: 53, Transport: "udp"},
		{Act: cell.Resolve, Addr: netip.MustParseAddr("93.184.216.34")},
	} {
		if d := p.Decide(a); d.Effect != cell.Deny {
			t.Errorf("%+v: %+v", a, d)
		}
	}
	for _, ok := range []string{"resolve a.example", "connect a.example:9", "connect 93.184.216.34:9", "connect [2600::1]:9", "GET https://a.example//x"} {
		if d := p.Decide(asked(ok)); !d.Allowed() {
			t.Errorf("%s: %+v", ok, d)
		}
	}
}

// Rules are never changed: any number may ask at once (with -race).
func TestManyAskAtOnce(t *testing.T) {
	p := rulesOf(t, policy.Network{
		Allow: []policy.Rule{{Hosts: []string{"a.example", "*.example"}}, {Hosts: []string{"*"}, Methods: []string{"GET"}}, {Hosts: []string{"10.0.0.0/8", "10.1.0.0/16"}}},
		Deny:  []policy.Rule{{Hosts: []string{"a.example"}, Paths: []string{"/x/**", "/x/y"}}},
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				for access, want := range map[string]cell.Effect{"resolve a.example": cell.Allow, "connect a.example:443=10.1.2.3": cell.Allow, "GET https://a.example/x/y": cell.Deny, "GET https://b.test/": cell.Allow} {
					if d := p.Decide(asked(access)); d.Effect != want {
						t.Errorf("%s: %+v", access, d)
					}
				}
			}
		})
	}
	wg.Wait()
}

// A preset may allow a few requests to a host, and nothing else there: with flags, and in a file.
func TestX38PresetsAllowSingleRequests(t *testing.T) {
	flags, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 2, Memory: 8 << 30}), nil, policy.Flags{Allow: []string{"@anthropic"}})
	if err != nil {
		t.Fatal(err)
	}
	file, err := policy.ParseFile("p.yaml", []byte("version: 1\nnetwork:\n  allow:\n    - \"@anthropic\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	filed, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 2, Memory: 8 << 30}), file, policy.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]policy.Result{"flags": flags, "file": filed} {
		p := rulesOf(t, r.Network)
		for access, want := range map[string]cell.Effect{
			"resolve platform.claude.com":                          cell.Allow,
			"GET https://platform.claude.com/v1/oauth/hello":       cell.Allow,
			"HEAD https://platform.claude.com/v1/oauth/hello":      cell.Allow,
			"POST https://platform.claude.com/v1/oauth/hello":      cell.Deny,
			"GET https://platform.claude.com/v1/files":             cell.Deny,
			"connect platform.claude.com:80=93.184.216.34":         cell.Deny,
			"POST https://api.anthropic.com/v1/messages":           cell.Allow,
			"GET https://platform.claude.com/v1/oauth/hello/other": cell.Deny,
		} {
			if got := p.Decide(asked(access)); got.Effect != want {
				t.Errorf("%s: %s: %s, want %s", name, access, got.Effect, want)
			}
		}
	}
}

// machine is what limits are worked out from.
var machine = policy.Host{CPUs: 2, Memory: 8 << 30}
