package decide

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// FuzzFile: a policy file is read or refused with its place; what is read
// becomes a policy that compiles, always the same.
func FuzzFile(f *testing.F) {
	f.Add(wordsOf(f))
	for _, s := range []string{"", "version: 1\n", "version: 1\nlimits: {pids: 1}\n", "version: 1\nnetwork: {allow: [\"@npm\", \"*.example.com:8000-8010\"]}\n",
		"a: &x [*x]\n", "<<: {version: 1}\n", "!!str version: 1\n", "version: 1\n---\n", "? [a]\n: b\n", "version: 1\nnetwork: {deny: [{host: \"[::1]:80\"}]}\n", "%YAML 1.1\n---\nversion: 1\n", "version: 1\nenvironment: {set: {A: |\n  x\n}}\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		boundtest.Allocates(t, len(s), func() {
			file, err := policy.ParseFile("p.yaml", []byte(s))
			if err != nil {
				if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "p.yaml") || !strings.Contains(err.Error(), "[") {
					t.Fatalf("%v", err)
				}
				return
			}
			layers := []policy.Layer{{Name: policy.LayerUser, File: file}} // which may say all there is
			r, err := policy.MergeLayers(policy.Defaults(machine), layers, policy.Flags{})
			if err != nil {
				t.Fatalf("read, and not merged: %v", err)
			}
			p, err := Of(r)
			if err != nil {
				t.Fatalf("read, and not compiled: %v\n%s", err, r.Canonical())
			}
			if again, err := policy.MergeLayers(policy.Defaults(machine), layers, policy.Flags{}); err != nil || again.Digest() != p.Digest() {
				t.Fatalf("another digest the second time: %v", err)
			}
		})
	})
}

// FuzzDecide: whatever an access says, the answer comes, is explained, and is
// the same for all ways to write the address.
func FuzzDecide(f *testing.F) {
	f.Add("connect", "a.example", []byte{10, 0, 0, 1}, uint16(443), "GET", "/x/y")
	f.Add("request", "b.a.example", []byte{}, uint16(443), "POST", "/x/%2e%2e/y")
	f.Add("resolve", "A.example.", []byte{}, uint16(0), "", "")
	f.Add("request", "", []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, uint16(80), "GET", "/..;/x")
	f.Add("execute", "curl", []byte{}, uint16(0), "", "/usr/bin/curl")
	file, err := policy.ParseFile("p.yaml", []byte(wordsOf(f)))
	if err != nil {
		f.Fatal(err)
	}
	file.Findings = policy.FileFindings{} // no access depends on them
	r, err := policy.Merge(policy.Defaults(machine), file, policy.Flags{Allow: []string{"*.example", "0.0.0.0/0", "::/0", "a.example:*"}})
	if err != nil {
		f.Fatal(err)
	}
	p, err := Of(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, act, name string, addr []byte, port uint16, method, path string) {
		a := cell.Access{Act: cell.Act(act), Host: name, Port: port, Method: method, Path: path, Program: path}
		a.Addr, _ = netip.AddrFromSlice(addr)
		var d cell.Decision
		boundtest.Allocates(t, len(name)+len(path)+len(method), func() { d = p.Decide(a) })
		if d.Effect != cell.Allow && d.Effect != cell.Deny && d.Effect != cell.Ask || d.Rule == "" || d.Reason == "" || d.Rule == policy.RuleError && a.Program != "" {
			t.Fatalf("%+v: %+v", a, d)
		}
		if strings.ContainsAny(d.Reason+d.Permit+d.Narrower, "\n\x00\x1b") {
			t.Fatalf("%+v: control characters in %+v", a, d)
		}
		if a.Addr.Is4() {
			a.Addr = netip.AddrFrom16(a.Addr.As16())
			if again := p.Decide(a); again.Effect != d.Effect {
				t.Fatalf("%+v: %+v, and mapped %+v", a, d, again)
			}
		}
		if d.Allowed() && a.Act == cell.Connect {
			if b, ok := policy.Special(policy.PlainAddr(a.Addr)); a.Addr.IsValid() && ok {
				t.Fatalf("%+v is %s, and allowed: %+v", a, b.What, d)
			}
		}
	})
}

// wordsOf is a policy file with each word of the table.
func wordsOf(f *testing.F) string {
	b, err := os.ReadFile("../testdata/every-word.yaml")
	if err != nil {
		f.Fatal(err)
	}
	return string(b)
}
