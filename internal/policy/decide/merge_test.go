package decide

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func rank(e cell.Effect) int { return map[cell.Effect]int{cell.Deny: 0, cell.Ask: 1, cell.Allow: 2}[e] }

// Whatever the layers say, what comes out allows no more than any of them: a
// layer that lists what is allowed, a deny of any layer, the least of limits.
func TestMergingNeverWidens(t *testing.T) {
	merged, tried := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var layers []policy.Layer
		var nets []policy.Network
		var denies []policy.Rule
		pids := []string{}
		for _, name := range []string{policy.LayerHost, policy.LayerUser, policy.LayerProject, policy.LayerRun} {
			if !rapid.Bool().Draw(t, name) {
				continue
			}
			f := &policy.File{Name: name, LimitLines: map[string]int{}}
			n := policy.Network{Allow: drawRules(t), Ask: drawRules(t), Deny: drawSome(t, "deny", 0, 1, func(t *rapid.T) policy.Rule { return drawRule(t, false) })}
			f.Network = policy.FileNetwork{Allow: asFile(n.Allow), Ask: asFile(n.Ask), Deny: asFile(n.Deny), AllowLine: 1, AskLine: 2}
			f.Limits.PIDs = rapid.SampledFrom([]string{"", "10", "20", "99999"}).Draw(t, "pids")
			if f.Limits.PIDs != "" {
				pids = append(pids, f.Limits.PIDs)
			}
			layers = append(layers, policy.Layer{Name: name, File: f})
			nets, denies = append(nets, n), append(denies, n.Deny...)
		}
		tried++
		r, err := policy.MergeLayers(policy.Defaults(machine), layers, policy.Flags{})
		if err != nil {
			if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "allows less") {
				t.Fatal(err)
			}
			return
		}
		merged++
		p, err := Of(r)
		if err != nil {
			t.Fatal(err)
		}
		lists := 0
		for i, n := range nets {
			if len(n.Allow)+len(n.Ask) > 0 && layers[i].Name != policy.LayerHost {
				lists++
			}
		}
		for range 5 {
			a := drawAccess(t)
			got := p.Decide(a)
			for i, n := range nets {
				n.Deny = denies
				if len(n.Allow)+len(n.Ask) == 0 {
					continue
				}
				if upper := reference(n, a); rank(got.Effect) > rank(upper) {
					t.Fatalf("%+v is %s, and layer %s says %s: %s", a, got.Effect, layers[i].Name, upper, r.Canonical())
				}
			}
			if lists == 0 && got.Effect != cell.Deny {
				t.Fatalf("no layer gives anything, and %+v is %s", a, got.Effect)
			}
		}
		for _, s := range pids {
			if n, _ := policy.ParseCount("", s); r.Limits.PIDs > n {
				t.Fatalf("%d processes, and a layer says %d", r.Limits.PIDs, n)
			}
		}
	})
	if merged == 0 || merged == tried {
		t.Errorf("%d of %d were merged: the test is about nothing", merged, tried)
	}
}

func asFile(rules []policy.Rule) (out []policy.FileRule) {
	for i, r := range rules {
		out = append(out, policy.FileRule{Rules: []policy.Rule{r}, Line: 10 + i})
	}
	return out
}

func layer(t *testing.T, name, text string) policy.Layer {
	t.Helper()
	f, err := policy.ParseFile(name+".yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return policy.Layer{Name: name, File: f}
}

func TestLayers(t *testing.T) {
	hostLayer := layer(t, policy.LayerHost, "version: 1\nnetwork:\n  allow: [\"*.example\", \"@npm\"]\n  deny: [evil.example]\nlimits: {pids: 100}\ncredentials: [github]\n")
	user := layer(t, policy.LayerUser, "version: 1\nlimits: {pids: 200, memory: 1G}\napprovals: {timeout: 5m}\n")
	project := layer(t, policy.LayerProject, "version: 1\nnetwork:\n  allow:\n    - a.example\n    - evil.example\n  ask:\n    - b.example\napprovals: {timeout: 1h}\n")
	r, err := policy.MergeLayers(policy.Defaults(machine), []policy.Layer{hostLayer, user, project}, policy.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Of(r)
	if err != nil {
		t.Fatal(err)
	}
	for access, want := range map[string]string{
		"connect a.example:443":          "allow allow 1 project.yaml:4",
		"connect b.example:443":          "ask ask 1 project.yaml:7",
		"connect evil.example:443":       "deny deny 1 host.yaml:4",
		"connect c.example:443":          "deny default default",
		"connect registry.npmjs.org:443": "deny default default", // the host's file gives nothing
	} {
		d := p.Decide(asked(access))
		if got := string(d.Effect) + " " + d.Rule + " " + d.Origin; got != want {
			t.Errorf("%s: %s; want %s", access, got, want)
		}
		if d.Permit != "" {
			t.Errorf("%s: %s would not permit it, for project.yaml bounds flags", access, d.Permit)
		}
	}
	if r.Limits.PIDs != 100 || r.Limits.Memory != 1<<30 || r.Approvals.Timeout != 5*60*1000 {
		t.Errorf("%+v %+v", r.Limits, r.Approvals)
	}
	for name, want := range map[string]string{"limits.pids": "host.yaml:5", "limits.memory": "user.yaml:2", "approvals.timeout": "user.yaml:3"} {
		if r.Origins.Lines[name] != want {
			t.Errorf("%s comes from %q; want %s", name, r.Origins.Lines[name], want)
		}
	}

	// What a layer above asks about is asked about, whatever the one beneath
	// allows; and a part of what is allowed above is cut out of it.
	r, err = policy.MergeLayers(policy.Defaults(machine), []policy.Layer{
		layer(t, policy.LayerUser, "version: 1\nnetwork:\n  allow: [{host: a.example, methods: [GET]}]\n  ask: [{host: a.example, methods: [POST]}]\n"),
		layer(t, policy.LayerRun, "version: 1\nnetwork: {allow: [a.example]}\n")}, policy.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = Of(r); err != nil {
		t.Fatal(err)
	}
	for access, want := range map[string]string{
		"connect a.example:443":    "allow",
		"GET https://a.example/":   "allow",
		"POST https://a.example/x": "ask",
		"PUT https://a.example/x":  "deny",
	} {
		if d := p.Decide(asked(access)); string(d.Effect) != want || access == "connect a.example:443" && !d.Open {
			t.Errorf("%s: %+v; want %s", access, d, want)
		}
	}

	lends := layer(t, policy.LayerUser, "version: 1\ncredentials: [{name: mine, for: ['https://a.example/me/**']}]\n")
	for _, c := range []struct {
		what   string
		layers []policy.Layer
		flags  policy.Flags
		want   []string
	}{
		{"a flag outside of the project's file", []policy.Layer{project}, policy.Flags{Allow: []string{"c.example"}}, []string{"--allow c.example", "project.yaml:3"}},
		{"a flag on another port", []policy.Layer{project}, policy.Flags{Allow: []string{"a.example:22"}}, []string{"port 22", "project.yaml:3"}},
		{"a file outside of the host's", []policy.Layer{hostLayer, layer(t, policy.LayerRun, "version: 1\nnetwork: {allow: [other.net]}\n")}, policy.Flags{}, []string{"other.net", "run.yaml:2", "host.yaml:3"}},
		{"a credential", []policy.Layer{hostLayer}, policy.Flags{Credentials: []string{"anthropic"}}, []string{"credential anthropic", "host.yaml:6"}},
		{"a mount by a flag", []policy.Layer{layer(t, policy.LayerUser, "version: 1\nfiles: {mounts: [{source: /data, target: /data}]}\n")}, policy.Flags{Mounts: []string{"/etc:/x"}}, []string{"--mount /etc:/x", "user.yaml:2"}},
		{"a writable mount by a flag", []policy.Layer{layer(t, policy.LayerUser, "version: 1\nfiles: {mounts: [{source: /data, target: /data}]}\n")}, policy.Flags{Mounts: []string{"/data/x:/x:rw"}}, []string{"--mount /data/x:/x:rw", "user.yaml:2"}},
		{"a credential by a rule", []policy.Layer{lends, layer(t, policy.LayerProject, "version: 1\nnetwork: {allow: [{host: a.example, credential: other}]}\n")}, policy.Flags{}, []string{"credential other", "project.yaml:2", "user.yaml:2"}},
		{"a credential by a rule elsewhere", []policy.Layer{lends, layer(t, policy.LayerProject, "version: 1\nnetwork: {allow: [{host: b.example, credential: mine}]}\n")}, policy.Flags{}, []string{"credential mine", "project.yaml:2", "user.yaml:2"}},
		{"a credential by a rule with more paths", []policy.Layer{lends, layer(t, policy.LayerProject, "version: 1\nnetwork: {allow: [{host: a.example, credential: mine}]}\n")}, policy.Flags{}, []string{"credential mine", "project.yaml:2", "user.yaml:2"}},
		{"a mount", []policy.Layer{layer(t, policy.LayerUser, "version: 1\nfiles: {mounts: [{source: /data, target: /data}]}\n"), layer(t, policy.LayerProject, "version: 1\nfiles: {mounts: [{source: /data/x, target: /x, writable: true}]}\n")}, policy.Flags{}, []string{"/data/x", "user.yaml:2", "project.yaml:2"}},
	} {
		_, err := policy.MergeLayers(policy.Defaults(machine), c.layers, c.flags)
		if cell.KindOf(err) != cell.Denied || cell.HintOf(err) == "" {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want %q in it", c.what, err, w)
			}
		}
	}

	// A rule may put in what is within what was lent above.
	if _, err := policy.MergeLayers(policy.Defaults(machine), []policy.Layer{lends, layer(t, policy.LayerProject, "version: 1\nnetwork: {allow: [{host: a.example, paths: /me/x/*, credential: mine}]}\n")}, policy.Flags{}); err != nil {
		t.Error(err)
	}
	// A file of the run and its flags are one layer.
	if _, err := policy.MergeLayers(policy.Defaults(machine), []policy.Layer{layer(t, policy.LayerRun, "version: 1\nfiles: {mounts: [{source: /data, target: /data}]}\n")}, policy.Flags{Mounts: []string{"/srv:/srv", "/opt:/opt"}}); err != nil {
		t.Error(err)
	}
	r, err = policy.MergeLayers(policy.Defaults(machine), []policy.Layer{layer(t, policy.LayerRun, "version: 1\nnetwork: {allow: [a.example]}\n")}, policy.Flags{Allow: []string{"@npm"}, Credentials: []string{"npm"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"allow 1": "run.yaml:2", "allow 2": "--allow @npm", "credential npm": "--credential npm"}
	if d := cmp.Diff(want, r.Origins.Lines); d != "" {
		t.Error(d)
	}
	if !r.Talks() || r.Network.Mode != policy.ModeGateway || r.Origins.Bound != "" {
		t.Errorf("%+v", r)
	}
}

// The same policy on other lines, in other words and another order, has one
// digest.
func TestOneDigestForOnePolicy(t *testing.T) {
	a := layer(t, "a", "version: 1\nnetwork:\n  allow:\n    - \"@npm\"\n    - {host: [b.example, A.Example.], ports: [443, 80]}\n    - {host: c.example, methods: [post, GET]}\n  deny: [10.0.0.0/8]\n")
	b := layer(t, "b", "version: 1\n# the same\nnetwork:\n  deny: [10.0.0.0/8]\n  allow:\n\n    - {host: c.example, methods: [GET, POST], ports: [80, 443]}\n    - registry.npmjs.org:443\n    - {host: [a.example, b.example]}\n")
	ra, err := policy.MergeLayers(policy.Defaults(machine), []policy.Layer{a}, policy.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	rb, err := policy.MergeLayers(policy.Defaults(machine), []policy.Layer{b}, policy.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(ra.Canonical()), string(rb.Canonical())); d != "" || ra.Digest() != rb.Digest() {
		t.Error(d)
	}
	if cmp.Equal(ra.Origins, rb.Origins) {
		t.Error("the origins are the same")
	}
	if _, err := Compile([]byte(strings.Replace(string(ra.Canonical()), `"mode"`, ` "mode"`, 1))); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("compiled other bytes: %v", err)
	}
}

func TestCredentialsGoWhereTheyMay(t *testing.T) {
	r, err := policy.MergeLayers(policy.Defaults(machine), []policy.Layer{layer(t, policy.LayerRun, "version: 1\nnetwork:\n  allow:\n    - api.github.com\n    - {host: uploads.github.com, paths: /x/**, credential: other}\n")}, policy.Flags{Credentials: []string{"github"}})
	if err != nil {
		t.Fatal(err)
	}
	before := r.Digest()
	if err := r.Lend("github", []string{"https://api.github.com/repos/me/**"}); err != nil {
		t.Fatal(err)
	}
	if r.Digest() == before {
		t.Error("where a credential goes is no part of the policy")
	}
	if d := cmp.Diff([]string{"github", "other"}, r.Handles()); d != "" {
		t.Error(d)
	}
	p, err := Of(r)
	if err != nil {
		t.Fatal(err)
	}
	for access, want := range map[string]string{
		"GET https://api.github.com/repos/me/x":    "github",
		"GET https://api.github.com/repos/you/x":   "",
		"GET http://api.github.com/repos/me/x":     "",
		"GET https://uploads.github.com/x/y":       "other",
		"GET https://api.github.com/repos/me/..;/": "", // no rule looks at paths; the credential does
	} {
		d := p.Decide(asked(access))
		if !d.Allowed() || d.Credential != want {
			t.Errorf("%s: %+v; want credential %q", access, d, want)
		}
	}
	wide, err := policy.MergeLayers(policy.Defaults(machine), nil, policy.Flags{Allow: []string{"api.github.com"}, Credentials: []string{"github"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := wide.Lend("github", []string{"https://api.github.com/*"}); err != nil {
		t.Fatal(err)
	}
	w, err := Of(wide)
	if err != nil {
		t.Fatal(err)
	}
	if d := w.Decide(asked("GET https://api.github.com//")); d.Credential != "" {
		t.Errorf("a path with two meanings got a credential: %+v", d)
	}
	if d := p.Decide(asked("connect api.github.com:443")); !d.Open {
		t.Error("a credential goes in, and the connection stays closed")
	}
	if d := p.Decide(asked("connect api.github.com:80")); d.Open {
		t.Error("opened for a credential that does not go there")
	}
}

// TestX49PinIsNarrowedOnly: a credential is pinned unless every layer that speaks
// of it says otherwise, and the digest tells the two apart.
func TestX49PinIsNarrowedOnly(t *testing.T) {
	host := func(pin string) policy.Layer {
		return layer(t, policy.LayerUser, "version: 1\ncredentials: [{name: trk, for: ['https://a.example/**']"+pin+"}]\n")
	}
	run := func(pin string) policy.Layer {
		return layer(t, policy.LayerRun, "version: 1\nnetwork: {allow: [a.example]}\ncredentials: [{name: trk"+pin+"}]\n")
	}
	digests := map[bool]string{}
	for _, x := range []struct {
		upper, lower    string
		refused, pinned bool
	}{
		{"", "", false, true}, {", pin: true", "", false, true}, {", pin: false", "", false, false}, {", pin: false", ", pin: true", false, true},
		{", pin: false", ", pin: false", false, false}, {"", ", pin: false", true, true}, {", pin: true", ", pin: false", true, true},
	} {
		r, err := policy.MergeLayers(policy.Defaults(policy.Host{}), []policy.Layer{host(x.upper), run(x.lower)}, policy.Flags{})
		if (err != nil) != x.refused {
			t.Errorf("%q above %q: %v", x.upper, x.lower, err)
		}
		if err != nil {
			continue
		}
		rules, err := Of(r)
		if err != nil {
			t.Fatal(err)
		}
		handle := ""
		if x.pinned {
			handle = "trk"
		}
		if rules.Pins("trk") != x.pinned || rules.PinnedTo("a.example") != handle || rules.PinnedTo("b.example") != "" {
			t.Errorf("%q above %q: pins %v, to %q", x.upper, x.lower, rules.Pins("trk"), rules.PinnedTo("a.example"))
		}
		if d := digests[x.pinned]; d != "" && d != r.Digest().String() {
			t.Errorf("%q above %q: another digest", x.upper, x.lower)
		}
		digests[x.pinned] = r.Digest().String()
		if named := len(r.Downgrades()) > 0; named == x.pinned {
			t.Errorf("%q above %q: the downgrades are %v", x.upper, x.lower, r.Downgrades())
		}
	}
	if digests[true] == digests[false] {
		t.Error("one digest for both")
	}
	r, err := policy.MergeLayers(policy.Defaults(policy.Host{}), []policy.Layer{host("")}, policy.Flags{Credentials: []string{"other"}})
	if err == nil {
		t.Errorf("a credential that the layer above does not lend: %+v", r.Credentials)
	}
}
