package decide

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func mergedRules(t *testing.T, text string, allow ...string) *Rules {
	t.Helper()
	var f *policy.File
	if text != "" {
		var err error
		if f, err = policy.ParseFile("p.yaml", []byte("version: 1\nnetwork:\n"+text)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 1, Memory: 1 << 30}), f, policy.Flags{Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := Of(r)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestX41HeadBesideGet: HEAD is part of GET, and may be said; alone it is no rule.
func TestX41HeadBesideGet(t *testing.T) {
	r := mergedRules(t, "  allow:\n    - {host: a.test, methods: [GET, HEAD]}\n")
	for method, want := range map[string]cell.Effect{"GET": cell.Allow, "HEAD": cell.Allow, "POST": cell.Deny} {
		if d := r.Decide(cell.Access{Act: cell.Request, Host: "a.test", Port: 443, Scheme: "https", Method: method, Path: "/"}); d.Effect != want {
			t.Errorf("%s: %+v", method, d)
		}
	}
	if _, err := policy.ParseFile("p.yaml", []byte("version: 1\nnetwork:\n  allow:\n    - {host: a.test, methods: [HEAD, POST]}\n")); err == nil || !strings.Contains(err.Error(), "HEAD alone") {
		t.Errorf("HEAD without GET: %v", err)
	}
}

// TestX41HintsAreNarrow: a denial of a path proposes no flag, which would open the
// whole host, and none proposes a metadata address.
func TestX41HintsAreNarrow(t *testing.T) {
	r := mergedRules(t, "  allow:\n    - {host: a.test, paths: [/x/**]}\n    - b.test\n")
	d := r.Decide(cell.Access{Act: cell.Request, Host: "a.test", Port: 443, Scheme: "https", Method: "GET", Path: "/y"})
	if d.Effect != cell.Deny || d.Permit != "" || d.Line != "- {host: a.test, methods: [GET], paths: [/y]}" {
		t.Errorf("a path: %+v", d)
	}
	for _, a := range []string{"169.254.169.254", "fd00:ec2::254", "169.254.1.1"} {
		for _, host := range []string{"", "b.test"} {
			d := r.Decide(cell.Access{Act: cell.Connect, Host: host, Addr: netip.MustParseAddr(a), Port: 80, Transport: "tcp"})
			if d.Effect != cell.Deny || d.Permit != "" || d.Line != "" || d.Narrower != "" {
				t.Errorf("%s %s: %+v", host, a, d)
			}
		}
	}
	if d := r.Decide(cell.Access{Act: cell.Connect, Host: "b.test", Addr: netip.MustParseAddr("10.1.2.3"), Port: 80, Transport: "tcp"}); d.Permit != "--allow 10.1.2.3:80" {
		t.Errorf("a private address: %+v", d)
	}
}

// TestX41YourOwnMachine: it is reached by its name with a port, by no pattern, and
// only on its loopback.
func TestX41YourOwnMachine(t *testing.T) {
	connect := func(port uint16, addr string) cell.Access {
		a := cell.Access{Act: cell.Connect, Host: cell.HostName, Port: port, Transport: "tcp"}
		if addr != "" {
			a.Addr = netip.MustParseAddr(addr)
		}
		return a
	}
	r := mergedRules(t, "", cell.HostName+":9101")
	for a, want := range map[cell.Access]cell.Effect{
		connect(9101, ""): cell.Allow, connect(9101, "127.0.0.1"): cell.Allow, connect(9101, "::1"): cell.Allow,
		connect(9102, ""): cell.Deny, connect(9101, "10.0.0.1"): cell.Deny, connect(9101, "169.254.169.254"): cell.Deny,
		{Act: cell.Resolve, Host: cell.HostName}: cell.Allow,
	} {
		if d := r.Decide(a); d.Effect != want {
			t.Errorf("%+v: %+v", a, d)
		}
	}
	for _, text := range []string{"  allow: [\"*\"]\n", "  allow: [\"*.internal:9101\", \"*.pando.internal:9101\"]\n", "  ask: [\"*:9101\"]\n"} {
		r := mergedRules(t, text)
		if d := r.Decide(connect(9101, "")); d.Effect != cell.Deny || d.Permit != "--allow "+cell.HostName+":9101" {
			t.Errorf("%s: %+v", text, d)
		}
		if d := r.Decide(cell.Access{Act: cell.Resolve, Host: cell.HostName}); d.Effect != cell.Deny {
			t.Errorf("%s: %+v", text, d)
		}
	}
	if d := mergedRules(t, "  allow: [\""+cell.HostName+":9101\"]\n  deny: [\"*\"]\n").Decide(connect(9101, "")); d.Effect != cell.Deny {
		t.Errorf("denied by a pattern: %+v", d)
	}
	for _, bad := range []string{cell.HostName, cell.HostName + ":*"} {
		if _, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 1, Memory: 1 << 30}), nil, policy.Flags{Allow: []string{bad}}); err == nil || !strings.Contains(cell.HintOf(err), cell.HostName+":9101") {
			t.Errorf("%s: %v", bad, err)
		}
		if _, err := policy.ParseFile("p.yaml", []byte("version: 1\nnetwork:\n  allow:\n    - \""+bad+"\"\n")); err == nil {
			t.Errorf("%s in a file is taken", bad)
		}
	}
}

// TestX41LoopbackMeansTheCells: an address that needs no rule and gets nowhere with
// one is refused with the name of what was meant; beside names it says where these
// may lead.
func TestX41LoopbackMeansTheCells(t *testing.T) {
	for _, c := range []struct {
		allow []string
		ok    bool
	}{
		{[]string{"127.0.0.1:9101"}, false}, {[]string{"[::1]:9101"}, false}, {[]string{"localhost:9101"}, false}, {[]string{"a.test", "localhost:9101"}, false},
		{[]string{"127.0.0.1:9101", cell.HostName + ":9101"}, false},
		{[]string{"a.test:9101", "127.0.0.1:9101"}, true},
	} {
		_, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 1, Memory: 1 << 30}), nil, policy.Flags{Allow: c.allow})
		if c.ok != (err == nil) || err != nil && !strings.Contains(cell.HintOf(err), "--allow "+cell.HostName+":9101") {
			t.Errorf("%v: %v", c.allow, err)
		}
	}
	r := mergedRules(t, "  allow: [\"127.0.0.1:9101\"]\n")
	steps, effect := r.Why(cell.Access{Act: cell.Connect, Addr: netip.MustParseAddr("127.0.0.1"), Port: 9101, Transport: "tcp"})
	if effect != cell.Deny || !strings.Contains(steps[0].Decision.Permit, cell.HostName+":9101") {
		t.Errorf("why: %s, %+v", effect, steps)
	}
}

// TestX41OverlongPaths: a character in a longer form than its own has no meaning.
func TestX41OverlongPaths(t *testing.T) {
	for p, ok := range map[string]bool{"/a/%c0%ae%c0%ae/b": false, "/a%c0%afb": false, "/%e0%80%af": false, "/%f0%80%80%af": false, "/\xc0\xae": false, "/%C3%A4": true, "/%e2%82%ac": true, "/%f0%9f%98%80": true} {
		if _, got := policy.CanonicalPath(p); got != ok {
			t.Errorf("%q: %v", p, got)
		}
	}
}

// TestX41ReachesHost: a policy speaks of the gateway's own machine by its name, and by each
// range that names an address of it: what leads there by a wider range is denied anyway.
func TestX41ReachesHost(t *testing.T) {
	for host, want := range map[string]bool{
		cell.HostName: true, "127.0.0.1": true, "127.0.0.0/8": true, "127.5.0.0/16": true, "::1": true, "0.0.0.0": true, "0.0.0.0/8": true, "::": true,
		"169.254.169.254": true, "169.254.0.0/16": true, "fe80::/10": true, "fd00:ec2::254": true, "168.63.129.16": true, "2002:7f00:1::": true,
		"::ffff:127.0.0.1": true, "64:ff9b::7f00:1": true,
		"a.test": false, "*": false, "0.0.0.0/0": false, "::/0": false, "0.0.0.0/7": false, "126.0.0.0/7": false, "64:ff9b::/96": false,
		"10.0.0.0/8": false, "192.168.0.7": false, "fd00::/8": false, "168.63.129.0/24": false, "203.0.113.7": false, "2002::/16": false,
	} {
		for _, n := range []policy.Network{{Allow: []policy.Rule{{Hosts: []string{"b.test"}}, {Hosts: []string{host}}}}, {Ask: []policy.Rule{{Hosts: []string{host}}}}} {
			if got := n.ReachesHost(); (got != "") != want || got != "" && got != host {
				t.Errorf("%s: %q", host, got)
			}
		}
		if got := (policy.Network{Deny: []policy.Rule{{Hosts: []string{host}}}}).ReachesHost(); got != "" {
			t.Errorf("a denial of %s: %q", host, got)
		}
	}
}
