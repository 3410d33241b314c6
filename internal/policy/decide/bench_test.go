package decide

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Goal: 5 µs for each decision (PERFORMANCE.md).
func BenchmarkDecide(b *testing.B) {
	small := policy.Network{Allow: []policy.Rule{{Hosts: []string{"registry.npmjs.org"}, Ports: []string{"443"}}}}
	big := policy.Network{Deny: []policy.Rule{{Hosts: []string{"*.evil.example"}}, {Hosts: []string{"10.0.0.0/8"}}}}
	for i := range 300 {
		big.Allow = append(big.Allow, policy.Rule{Hosts: []string{fmt.Sprintf("h%d.example", i), fmt.Sprintf("*.w%d.example", i)}, Ports: []string{"443"}})
	}
	paths := policy.Network{}
	for i := range 30 {
		paths.Allow = append(paths.Allow, policy.Rule{Hosts: []string{"api.github.com"}, Ports: []string{"443"}, Methods: []string{"GET", "POST"}, Paths: []string{fmt.Sprintf("/repos/me/r%d/**", i)}})
	}
	for _, c := range []struct {
		name string
		n    policy.Network
		a    cell.Access
	}{
		{"resolve", small, cell.Access{Act: cell.Resolve, Host: "registry.npmjs.org"}},
		{"connect", small, cell.Access{Act: cell.Connect, Host: "registry.npmjs.org", Port: 443}},
		{"dial", small, cell.Access{Act: cell.Connect, Host: "registry.npmjs.org", Port: 443, Addr: netip.MustParseAddr("104.16.1.34")}},
		{"denied", small, cell.Access{Act: cell.Connect, Host: "other.example", Port: 443}},
		{"300 rules", big, cell.Access{Act: cell.Connect, Host: "a.w77.example", Port: 443}},
		{"request, 30 rules of one host", paths, cell.Access{Act: cell.Request, Host: "api.github.com", Port: 443, Method: "GET", Path: "/repos/me/r17/issues"}},
		{"request denied, 30 rules of one host", paths, cell.Access{Act: cell.Request, Host: "api.github.com", Port: 443, Method: "GET", Path: "/repos/you/r17/issues"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := policy.Defaults(policy.Host{CPUs: 2, Memory: 8 << 30})
			e.Network = c.n
			p, err := Compile(e.Canonical())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				p.Decide(c.a)
			}
			// What it takes of a processor, also when others want them too.
			b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is what this process has used of the processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCompile(b *testing.B) {
	r, err := policy.MergeLayers(policy.Defaults(policy.Host{CPUs: 2, Memory: 8 << 30}), nil, policy.Flags{Allow: []string{"@npm", "@github", "@anthropic"}})
	if err != nil {
		b.Fatal(err)
	}
	text := r.Canonical()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(text); err != nil {
			b.Fatal(err)
		}
	}
}
