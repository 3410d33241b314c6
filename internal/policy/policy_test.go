package policy

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

var host = Host{CPUs: 2, Memory: 8 << 30}

func TestF66PolicyFileErrorsNameLineAndColumn(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "version: 1\nlimits:\n  memroy: 1G\n", "3:3"},
		{"unknown section", "version: 1\nnetwrok: {}\n", "2:1"},
		{"duplicate key", "version: 1\nlimits: {pids: 1}\nlimits: {pids: 2}\n", "3:1"},
		{"wrong version", "version: 2\n", "1:10"},
		{"no version", "limits: {pids: 1}\n", "version must be 1"},
		{"empty list", "version: 1\nfiles:\n  mounts: []\n", "3:"},
		{"empty map", "version: 1\nenvironment:\n  set: {}\n", "3:"},
		{"empty limits", "version: 1\nlimits: {}\n", "2:"},
		{"bad size", "version: 1\nlimits:\n  memory: lots\n", "3:"},
		{"zero", "version: 1\nlimits:\n  pids: 0\n", "3:"},
		{"negative", "version: 1\nlimits:\n  pids: -1\n", "3:"},
		{"overflow", "version: 1\nlimits:\n  memory: 99999999999999T\n", "3:"},
		{"mount without target", "version: 1\nfiles:\n  mounts:\n    - source: /x\n", "4:"},
		{"not a map", "- 1\n", "1:"},
		{"empty file", "", "1:1"},
		{"two documents", "version: 1\n---\nversion: 1\n", "more than one document"},
	} {
		_, err := ParseFile("p.yaml", []byte(c.text))
		if cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "p.yaml") {
			t.Errorf("%s: %v; want %q in it", c.name, err, c.want)
		}
	}
	if _, err := ParseFile("p.yaml", []byte("version: 1\nlimits: {cpus: 2, memory: 4G, pids: 512, disk: 10G, timeout: 30m}\nenvironment: {set: {CI: \"true\"}}\nfiles:\n  mounts:\n    - {source: /a, target: /b, writable: true}\n")); err != nil {
		t.Error(err)
	}
}

func TestDigestIsOfTheCanonicalForm(t *testing.T) {
	a, err := Merge(Defaults(host), nil, Flags{Mounts: []string{"/a:/x", "/b:/y:rw"}, Env: []string{"A=1", "B=2"}})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Merge(Defaults(host), nil, Flags{Mounts: []string{"/b:/y:rw", "/a:/x"}, Env: []string{"B=3", "A=4"}})
	if a.Digest() != b.Digest() {
		t.Error("order of flags, or values of variables, change the digest")
	}
	c, _ := Merge(Defaults(host), nil, Flags{Mounts: []string{"/a:/x:rw", "/b:/y:rw"}, Env: []string{"A=1", "B=2"}})
	if a.Digest() == c.Digest() {
		t.Error("a writable mount does not change the digest")
	}
	if a.Digest() != cell.Sum(a.Canonical()) {
		t.Error("the digest is of other bytes")
	}
	if strings.Contains(string(a.Canonical()), "=1") {
		t.Error("values are in the canonical form")
	}
}

func TestFlagsOnlyNarrow(t *testing.T) {
	f, err := ParseFile("p", []byte("version: 1\nlimits: {memory: 1G}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Merge(Defaults(host), f, Flags{Limits: FileLimits{Memory: "2G"}}); cell.KindOf(err) != cell.Denied {
		t.Errorf("widened: %v", err)
	}
	r, err := Merge(Defaults(host), f, Flags{Limits: FileLimits{Memory: "512M", Timeout: "1m"}})
	if err != nil || r.Limits.Memory != 512<<20 || r.Limits.CellLimits().Timeout != time.Minute {
		t.Errorf("%+v %v", r.Limits, err)
	}
	if strings.Join(r.Asked, " ") != "memory timeout" {
		t.Errorf("asked %v", r.Asked)
	}
}

// What a mode or a default says has an origin of its own, in lines and in refusals.
func TestOriginsOfTheRequest(t *testing.T) {
	said := map[string]string{"allow @npm": "mode development @npm", "credential key": "agent claude key", "mount /a:/b": "config mount /a:/b", "env CI": "config env CI", "memory": "config memory"}
	flags := Flags{Allow: []string{"@npm", "a.test"}, Credentials: []string{"key"}, Mounts: []string{"/a:/b"}, Env: []string{"CI=1"}, Limits: FileLimits{Memory: "2G", PIDs: "9"}, Said: said}
	r, err := Merge(Defaults(host), nil, flags)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"allow 1": "--allow a.test", "allow 2": "mode development @npm", "credential key": "agent claude key", "mount /b": "config mount /a:/b",
		"variable CI": "config env CI", "limits.memory": "config memory", "limits.pids": "--pids"}
	if !maps.Equal(r.Origins.Lines, want) {
		t.Errorf("%v", r.Origins.Lines)
	}
	for at, is := range map[string]bool{"--allow a.test": true, "mode development @npm": true, "config memory": true, "agent claude key": true, "p.yaml:3": false, "default": false} {
		if OfRequest(at) != is {
			t.Errorf("%s is of the request: %t", at, !is)
		}
	}
	bounded, err := ParseFile("p", []byte("version: 1\nnetwork: {allow: [b.test]}\nlimits: {memory: 1G}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags Flags
		hint  string
	}{
		{Flags{Allow: []string{"a.test"}}, "a lower layer can only narrow: leave out --allow a.test, or add it at p:2"},
		{Flags{Allow: []string{"@npm"}, Said: said}, "a lower layer can only narrow: choose another --mode, or add it at p:2"},
		{Flags{Allow: []string{"a.test"}, Said: map[string]string{"allow a.test": "agent claude a.test"}}, "a lower layer can only narrow: add it at p:2"},
		{Flags{Allow: []string{"a.test"}, Said: map[string]string{"allow a.test": "config allow a.test"}},
			"a lower layer can only narrow: take the default back with pando config unset allow, go without with --no-config, or add it at p:2"},
		{Flags{Limits: FileLimits{Memory: "2G"}}, "leave out --memory, or change it at p:3"},
		{Flags{Limits: FileLimits{Memory: "2G"}, Said: said}, "take the default back with pando config unset memory, go without with --no-config, or change it at p:3"},
	} {
		if _, err := MergeLayers(Defaults(host), []Layer{{LayerUser, bounded}}, c.flags); cell.HintOf(err) != c.hint {
			t.Errorf("%v, hint %q, not %q", err, cell.HintOf(err), c.hint)
		}
	}
	lower, err := ParseFile("q", []byte("version: 1\nnetwork: {allow: [a.test]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = MergeLayers(Defaults(host), []Layer{{LayerUser, bounded}, {LayerProject, lower}}, Flags{})
	if hint := "a lower layer can only narrow: take it out at q:2, or add it at p:2"; cell.HintOf(err) != hint {
		t.Errorf("%v, hint %q, not %q", err, cell.HintOf(err), hint)
	}
}

func TestF31BudgetsAreNeverUnlimited(t *testing.T) {
	for _, s := range []string{"", "0", "-1", "0M", "1e30", "NaN", "inf", "9999999999999999999", "0x10", "M", "1 000"} {
		if _, err := ParseSize(s); err == nil {
			t.Errorf("size %q accepted", s)
		}
		if _, err := ParseCount("things", s); err == nil {
			t.Errorf("count %q accepted", s)
		}
	}
	for s, want := range map[string]int64{"4096": 4096, "512M": 512 << 20, "2GiB": 2 << 30, "1.5k": 1536, "1tb": 1 << 40} {
		if n, err := ParseSize(s); err != nil || n != want {
			t.Errorf("%q = %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"0", "-1s", "", "5", "1y", "0s", "1ns", "999us", "9999999h"} {
		if _, err := ParseTimeout(s); err == nil {
			t.Errorf("timeout %q accepted", s)
		}
	}
	for _, s := range []string{"0", "-1", "NaN", "inf", "", "1e9"} {
		if _, err := ParseCPUs(s); err == nil {
			t.Errorf("cpus %q accepted", s)
		}
	}
	d := Defaults(host)
	if d.Limits.Memory <= 0 || d.Limits.PIDs <= 0 || d.Limits.Disk <= 0 {
		t.Error("a default is unlimited")
	}
}

func TestParseMount(t *testing.T) {
	for _, s := range []string{"", "/a", ":", "/a:", ":/b", "/a:/b:xx", "/a:/b:rw:rw", "/a\x00:/b"} {
		if _, err := ParseMount(s); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q: %v", s, err)
		}
	}
	m, err := ParseMount("../x:/y:rw")
	if err != nil || m != (Mount{"../x", "/y", true}) {
		t.Error(m, err)
	}
}

// No preset allows the user's own machine.
func TestX41NoPresetHasTheHost(t *testing.T) {
	for name, p := range presets() {
		if slices.Contains(p.hosts, cell.HostName) {
			t.Errorf("%s has it", name)
		}
	}
}
