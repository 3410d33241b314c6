package ocsf

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pando-dev/pando/internal/cell"
)

// A validator knows the part of the published schema that testdata has.
type validator map[int]*jsonschema.Resolved

func schema(t testing.TB) validator {
	t.Helper()
	text, err := os.ReadFile("testdata/ocsf-" + Version + ".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	v := validator{}
	for _, c := range []struct {
		uid  int
		name string
	}{{1007, "process_activity"}, {2004, "detection_finding"}, {4001, "network_activity"}, {4002, "http_activity"}, {4003, "dns_activity"}, {4007, "ssh_activity"}} {
		var s jsonschema.Schema
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		s.Ref = "#/$defs/" + c.name
		if v[c.uid], err = s.Resolve(nil); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// check returns what is wrong with an event.
func (v validator) check(t *testing.T, e Event) error {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return v.checkJSON(t, m)
}

func (v validator) checkJSON(t *testing.T, m map[string]any) error {
	t.Helper()
	number := func(name string) int { n, _ := m[name].(float64); return int(n) }
	class := number("class_uid")
	if v[class] == nil {
		t.Fatalf("no class %d", class)
	}
	if number("category_uid") != class/1000 || number("type_uid") != class*100+number("activity_id") {
		t.Errorf("category %d, class %d, activity %d, type %d", number("category_uid"), class, number("activity_id"), number("type_uid"))
	}
	return v[class].Validate(m)
}

func facts() Facts {
	return Facts{Run: "r-1", Cell: "c-1", CellName: "web", Backend: "namespace", Command: []string{"/usr/bin/npm", "ci"}, Policy: "sha256:01", Receipt: "sha256:02",
		Version: "0.2.0", Hostname: "host", User: cell.User{UID: 1000, Name: "me"}}
}

func at(seq int64, kind, fields string) Source {
	return Source{Seq: seq, Time: time.UnixMilli(1_700_000_000_000 + seq), Kind: kind, Text: "text of " + kind, Fields: json.RawMessage(fields)}
}

func fields(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// accesses are those that a gateway asks about, with every act, and odd ones.
func accesses() []cell.Access {
	ip := netip.MustParseAddr
	return []cell.Access{
		{Act: cell.Resolve, Host: "registry.npmjs.org"},
		{Act: cell.Resolve, Host: "_x._tcp.xn--bcher-kva.example"},
		{Act: cell.Connect, Host: "registry.npmjs.org", Addr: ip("104.16.0.1"), Port: 443, Transport: "tcp", Scheme: "https"},
		{Act: cell.Connect, Addr: ip("2001:db8::1"), Port: 22, Transport: "tcp"},
		{Act: cell.Connect, Addr: ip("::ffff:10.0.0.1"), Port: 53, Transport: "udp"},
		{Act: cell.Connect, Addr: ip("fe80::1%eth0"), Transport: "icmp"},
		{Act: cell.Connect, Addr: ip("::1"), Port: 65535},
		{Act: cell.Connect},
		{Act: cell.Request, Host: "api.github.com", Port: 443, Scheme: "https", Method: "POST", Path: "/repos/x/y/issues"},
		{Act: cell.Request, Host: "api.github.com", Port: 8080, Scheme: "http", Method: "VERSION-CONTROL", Path: "/"},
		{Act: cell.Request, Addr: ip("2001:db8::1"), Port: 80, Scheme: "http", Method: "BREW"},
		{Act: cell.Request},
		{Act: cell.Sign, Host: "github.com", Key: "SHA256:abc"},
		{Act: cell.Sign},
		{Act: cell.Execute, Program: "/usr/bin/curl"},
		{Act: cell.Execute},
		{Act: "act of tomorrow", Host: "h"},
	}
}

// sources are events of every kind, with all that they can have and with
// nothing.
func sources(t *testing.T) (list []Source) {
	add := func(kind string, f string) { list = append(list, at(int64(len(list)+1), kind, f)) }
	add("process.start", `{"args":2,"tty":false}`)
	add("process.failed", `{"error":"no such file"}`)
	add("process.running", `{"pid":42}`)
	add("process.signal", `{"signal":"SIGINT"}`)
	add("process.exit", `{"code":0,"signal":"","cause":"","left_over":0,"stdout":{"bytes":1},"stats":{"measured":["memory"]}}`)
	add("process.exit", `{"code":137,"signal":"SIGKILL","cause":"memory limit"}`)
	add("process.exec", `{"pid":43,"parent":42,"argv":["go","test","./..."],"cut":0,"path":"/usr/bin/go","tried":["/bin/go"],"as":"asked"}`)
	add("process.ended", `{"pid":43,"code":137,"signal":"SIGKILL","as":"observed"}`)
	add("process.ended", `{"pid":43,"code":null,"signal":"","as":"not seen"}`)
	add("process.lost", `{"starts":3,"ends":1,"why":"too many"}`)
	add("process.unseen", `{"what":"ends","why":"none"}`)
	add("limit.time", `{"timeout_ms":100}`)
	add("limit.disk", `{"limit":1,"used":2}`)
	add("network.none", `{"tries":3}`)
	add("network.unresolved", `{"host":"a.test","error":"no answer"}`)
	add("kernel.missing", `{"calls":["mseal"],"others":0}`)
	add("kind.of.tomorrow", `{"a":1}`)
	for _, kind := range []string{"process.start", "process.failed", "process.running", "process.exit", "process.exec", "process.ended", "limit.time", "kind", "decision", "flow", "network.earlier", "network.none", "network.unresolved"} {
		add(kind, ``)
		add(kind, `"text"`)
		add(kind, `{}`)
	}
	var denials []cell.Decided
	for _, a := range accesses() {
		for _, d := range []cell.Decision{
			{Effect: cell.Allow, Rule: "allow 1", Origin: "--allow @npm", Reason: "it is allowed", By: "policy", Credential: "github"},
			{Effect: cell.Allow, Rule: "ask 1", Origin: "pando.policy.yaml:3", By: "person"},
			{Effect: cell.Ask, Rule: "ask 1", Origin: "pando.policy.yaml:3", By: "policy"},
			{Effect: cell.Deny, Rule: "default", Origin: "default", Reason: "nothing allows it", Permit: "--allow x", Line: "x", Narrower: "x/y", By: "policy"},
			{Effect: cell.Deny, Rule: "dns tunnel", Origin: "gateway", Reason: "too many names", By: "gateway"},
			{},
		} {
			full := cell.Decided{ID: "q-0123456789abcdef", Access: a, Decision: d, Policy: cell.Sum(nil), Conn: "n-1", Count: 3}
			add("decision", fields(t, full))
			add("decision", fields(t, cell.Decided{Access: a, Decision: d}))
			if d.Effect == cell.Deny {
				denials = append(denials, full)
			}
		}
	}
	add("network.earlier", fields(t, map[string]any{"allowed": 1, "denied": len(denials), "asked": 2, "flows": 3, "denials": denials}))
	for _, f := range []cell.Flow{
		{Conn: "n-1", ID: "q-1", Host: "h", Addr: netip.MustParseAddr("1.2.3.4"), Port: 443, Scheme: "https", Opened: true, Method: "GET", Path: "/a", Status: 200, Sent: 1, Received: 1 << 40, MS: 12.5, Secret: "github", Protocol: "HTTP/2.0"},
		{Conn: "n-1", Host: "h", Port: 80, Scheme: "http", Method: "BREW", Path: "/pot", Status: 418, Protocol: "HTTP/1.1"},
		{Conn: "n-1", Host: "h", Port: 443, Scheme: "https", Method: "GET", Path: "/ws", Status: 101, Protocol: "websocket"},
		{Conn: "n-2", Addr: netip.MustParseAddr("2001:db8::1"), Port: 22, Sent: 5, Received: 6},
		{Conn: "n-2", Host: "h", Port: 443, Scheme: "https", Sent: 5, Error: "the policy has changed"},
		{Conn: "n-2", Host: "h", Port: 443, Error: "no route to host"},
		{},
	} {
		add("flow", fields(t, f))
	}
	return list
}

func TestEveryEventIsValid(t *testing.T) {
	v := schema(t)
	for name, f := range map[string]Facts{"all facts": facts(), "few facts": {Run: "r-1", Cell: "c-1"}} {
		t.Run(name, func(t *testing.T) {
			m := NewMapper(f)
			classes, uids := map[int]int{}, map[string]bool{}
			see := func(s Source, e Event) {
				if err := v.check(t, e); err != nil {
					text, _ := json.MarshalIndent(e, "", " ")
					t.Errorf("%s %s: %v\n%s", s.Kind, s.Fields, err, text)
				}
				if uids[e.Metadata.UID] {
					t.Errorf("%s: there are two events %s", s.Kind, e.Metadata.UID)
				}
				uids[e.Metadata.UID] = true
				classes[e.ClassUID]++
			}
			for _, s := range sources(t) {
				list := m.Map(s)
				if len(list) == 0 && s.Kind != "process.start" {
					t.Errorf("%s %s says nothing", s.Kind, s.Fields)
				}
				for _, e := range list {
					see(s, e)
				}
			}
			for _, s := range []int{1007, 2004, 4001, 4002, 4003, 4007} {
				if classes[s] == 0 {
					t.Errorf("no event of class %d", s)
				}
			}
		})
	}
	f := facts()
	f.Surprises = []string{"cannot start web: the canary \"mount\" was not stopped"}
	f.Found = []Found{{"github", "stdout", "base64"}, {"github", "a/b.txt", "plain"}}
	list := NewMapper(f).Findings(time.UnixMilli(1))
	if len(list) != 3 {
		t.Fatalf("%d findings", len(list))
	}
	for _, e := range list {
		if err := v.check(t, e); err != nil {
			t.Error(err)
		}
		if e.ClassUID != 2004 || e.SeverityID != critical || !e.IsAlert {
			t.Errorf("%+v", e)
		}
	}
}

// The schema refuses what is not valid: without that the test above says
// nothing.
func TestSchemaRefuses(t *testing.T) {
	v := schema(t)
	get := fields(t, cell.Flow{Conn: "n-1", Host: "h", Addr: netip.MustParseAddr("1.2.3.4"), Port: 443, Scheme: "https", Method: "GET", Path: "/a", Status: 200})
	denied := fields(t, cell.Decided{Access: cell.Access{Act: cell.Resolve, Host: "h"}, Decision: cell.Decision{Effect: cell.Deny, Rule: "default"}})
	for name, c := range map[string]struct {
		kind, fields string
		spoil        func(m map[string]any)
	}{
		"no time":              {"flow", get, func(m map[string]any) { delete(m, "time") }},
		"a time in words":      {"flow", get, func(m map[string]any) { m["time"] = "now" }},
		"no metadata":          {"flow", get, func(m map[string]any) { delete(m, "metadata") }},
		"another version":      {"flow", get, func(m map[string]any) { m["metadata"].(map[string]any)["version"] = "1.0.0" }},
		"no product":           {"flow", get, func(m map[string]any) { delete(m["metadata"].(map[string]any), "product") }},
		"an unknown attribute": {"flow", get, func(m map[string]any) { m["colour"] = "red" }},
		"neither request nor response": {"flow", get, func(m map[string]any) {
			delete(m, "http_request")
			delete(m, "http_response")
		}},
		"a port too large":     {"flow", get, func(m map[string]any) { m["dst_endpoint"].(map[string]any)["port"] = 65536.0 }},
		"no address":           {"flow", get, func(m map[string]any) { m["dst_endpoint"].(map[string]any)["ip"] = "here" }},
		"an empty endpoint":    {"flow", get, func(m map[string]any) { m["dst_endpoint"] = map[string]any{} }},
		"no direction":         {"flow", get, func(m map[string]any) { delete(m["connection_info"].(map[string]any), "direction_id") }},
		"an unlisted method":   {"flow", get, func(m map[string]any) { m["http_request"].(map[string]any)["http_method"] = "BREW" }},
		"a wrong caption":      {"flow", get, func(m map[string]any) { m["severity"] = "Fatal" }},
		"another activity":     {"flow", get, func(m map[string]any) { m["activity_name"] = "Post" }},
		"an unlisted activity": {"flow", get, func(m map[string]any) { m["activity_id"], m["type_uid"] = 41.0, 400241.0 }},
		"other without a label": {"flow", get, func(m map[string]any) {
			m["activity_id"], m["type_uid"] = 99.0, 400299.0
			delete(m, "activity_name")
		}},
		"a disposition in words": {"decision", denied, func(m map[string]any) { m["disposition_id"] = "Blocked" }},
		"allowed and blocked":    {"decision", denied, func(m map[string]any) { m["disposition"] = "Allowed" }},
		"a query for nothing":    {"decision", denied, func(m map[string]any) { m["query"] = map[string]any{} }},
		"no end": {"decision", denied, func(m map[string]any) {
			delete(m, "src_endpoint")
			delete(m, "dst_endpoint")
		}},
		"a process without number and name": {"process.running", `{"pid":1}`, func(m map[string]any) { m["process"] = map[string]any{"name": "sh"} }},
		"no device":                         {"process.running", `{"pid":1}`, func(m map[string]any) { delete(m, "device") }},
		"no actor":                          {"process.running", `{"pid":1}`, func(m map[string]any) { delete(m, "actor") }},
		"no user beside the device":         {"process.running", `{"pid":1}`, func(m map[string]any) { delete(m["actor"].(map[string]any), "user") }},
		"a device of no type":               {"process.running", `{"pid":1}`, func(m map[string]any) { delete(m["device"].(map[string]any), "type_id") }},
	} {
		t.Run(name, func(t *testing.T) {
			e := NewMapper(facts()).Map(at(1, c.kind, c.fields))[0]
			var m map[string]any
			if err := json.Unmarshal([]byte(fields(t, e)), &m); err != nil {
				t.Fatal(err)
			}
			if err := v.checkJSON(t, m); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.spoil(m)
			if v[e.ClassUID].Validate(m) == nil {
				t.Error("it is valid")
			}
		})
	}
}

func TestDecisions(t *testing.T) {
	m := NewMapper(facts())
	deny := cell.Decision{Effect: cell.Deny, Rule: "deny 1", Origin: "pando.policy.yaml:31", Reason: "writing is denied", Permit: "--allow x", By: "policy"}
	list := m.Map(at(7, "decision", fields(t, cell.Decided{ID: "q-1", Conn: "n-1", Decision: deny, Policy: cell.Sum(nil),
		Access: cell.Access{Act: cell.Request, Host: "api.github.com", Port: 443, Scheme: "https", Method: "POST", Path: "/repos/x/y/issues"}})))
	if len(list) != 1 {
		t.Fatalf("%d events", len(list))
	}
	e := list[0]
	got := map[string]any{
		"type": e.TypeName, "disposition": e.Disposition, "action": e.Action, "status": e.Status, "why": e.StatusDetail, "severity": e.Severity,
		"rule": *e.FirewallRule, "policy": e.Policy.UID, "url": e.HTTPRequest.URL.String, "actor": e.Actor.Process.CmdLine, "user": e.Actor.User.Name,
		"from": e.SrcEndpoint.UID, "to": e.DstEndpoint.Hostname, "uid": e.Metadata.UID, "of": e.Metadata.CorrelationUID, "kind": e.Metadata.EventCode,
		"version": e.Metadata.Version, "permit": e.Unmapped["permit"],
	}
	want := map[string]any{
		"type": "HTTP Activity: Post", "disposition": "Blocked", "action": "Denied", "status": "Failure", "why": "writing is denied", "severity": "Low",
		"rule": FirewallRule{"deny 1", "pando.policy.yaml:31", "writing is denied"}, "policy": cell.Sum(nil).String(), "url": "https://api.github.com/repos/x/y/issues",
		"actor": "/usr/bin/npm ci", "user": "me", "from": "c-1", "to": "api.github.com", "uid": "r-1/7", "of": "n-1", "kind": "decision",
		"version": "1.9.0", "permit": "--allow x",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for effect, want := range map[cell.Effect]string{cell.Allow: "Allowed", cell.Ask: "Delayed", cell.Deny: "Blocked", "": "Blocked"} {
		e := m.Map(at(8, "decision", fields(t, cell.Decided{Access: cell.Access{Act: cell.Resolve, Host: "h"}, Decision: cell.Decision{Effect: effect}})))[0]
		if e.Disposition != want || (e.RCode == "Refused") != (want == "Blocked") {
			t.Errorf("%q: %s, %s", effect, e.Disposition, e.RCode)
		}
	}
}

// An address has one spelling, because collectors compare addresses as text.
func TestAddresses(t *testing.T) {
	for given, want := range map[string]string{"::ffff:10.0.0.1": "10.0.0.1", "fe80::1%eth0": "fe80::1", "2001:DB8:0::1": "2001:db8::1"} {
		e := NewMapper(facts()).Map(at(1, "flow", fields(t, cell.Flow{Addr: netip.MustParseAddr(given), Port: 1})))[0]
		if e.DstEndpoint.IP != want || *e.DstEndpoint.Port != 1 {
			t.Errorf("%s: %+v, want %s", given, e.DstEndpoint, want)
		}
	}
}

// What is told by one event has the time of the first of them.
func TestAggregates(t *testing.T) {
	m := NewMapper(facts())
	for act, bounds := range map[cell.Act][3]int64{cell.Connect: {9_000, 9_000, 10_000}, cell.Sign: {10_000, 0, 10_000}} {
		s := at(1, "decision", fields(t, cell.Decided{Access: cell.Access{Act: act, Host: "h"}, Count: 5}))
		s.Time = time.UnixMilli(10_000)
		e := m.Map(s)[0]
		if got := [3]int64{e.Time, e.StartTime, e.EndTime}; got != bounds || e.Count != 5 {
			t.Errorf("%s: %v, count %d", act, got, e.Count)
		}
	}
}

func TestFindings(t *testing.T) {
	m := NewMapper(facts())
	deny := func(rule, by string, a cell.Access) []Event {
		return m.Map(at(1, "decision", fields(t, cell.Decided{Access: a, Decision: cell.Decision{Effect: cell.Deny, Rule: rule, By: by}})))
	}
	ip := netip.MustParseAddr
	for _, c := range []struct {
		name   string
		got    []Event
		events int
		alert  bool
	}{
		{"a usual denial", deny("default", "policy", cell.Access{Act: cell.Connect, Addr: ip("1.2.3.4"), Port: 80}), 1, false},
		{"metadata", deny("default", "policy", cell.Access{Act: cell.Connect, Addr: ip("169.254.169.254"), Port: 80}), 2, true},
		{"metadata again, by name", deny("default", "policy", cell.Access{Act: cell.Resolve, Host: "metadata.google.internal"}), 1, true},
		{"metadata again, mapped", deny("default", "policy", cell.Access{Act: cell.Connect, Addr: ip("::ffff:169.254.169.254"), Port: 80}), 1, true},
		{"a tunnel", deny("dns tunnel", "gateway", cell.Access{Act: cell.Resolve, Host: "aaaa.bbbb.evil.example"}), 2, true},
		{"the same tunnel", deny("dns tunnel", "gateway", cell.Access{Act: cell.Resolve, Host: "cccc.evil.example"}), 1, true},
		{"another tunnel", deny("dns tunnel", "gateway", cell.Access{Act: cell.Resolve, Host: "aaaa.worse.example"}), 2, true},
		{"a rule of that name", deny("dns tunnel", "policy", cell.Access{Act: cell.Resolve, Host: "aaaa.third.example"}), 1, false},
	} {
		if len(c.got) != c.events || c.got[0].IsAlert != c.alert || (c.got[0].SeverityID == high) != c.alert {
			t.Errorf("%s: %d events, alert %v, severity %s", c.name, len(c.got), c.got[0].IsAlert, c.got[0].Severity)
		}
		if c.events == 2 && (c.got[1].ClassUID != 2004 || c.got[1].FindingInfo.Title == "" || c.got[1].Disposition != "Blocked") {
			t.Errorf("%s: %+v", c.name, c.got[1])
		}
	}
	allowed := m.Map(at(1, "decision", fields(t, cell.Decided{Access: cell.Access{Act: cell.Connect, Addr: ip("169.254.169.254")}, Decision: cell.Decision{Effect: cell.Allow}})))
	if len(allowed) != 1 || allowed[0].IsAlert {
		t.Errorf("what is allowed is no attack: %+v", allowed)
	}
	// Two runs have findings of their own; the same run has the same, however
	// often it is told.
	again := NewMapper(facts())
	one := again.Map(at(5, "decision", fields(t, cell.Decided{Access: cell.Access{Act: cell.Connect, Addr: ip("169.254.169.254")}})))
	f := facts()
	f.Run = "r-2"
	two := NewMapper(f).Map(at(5, "decision", fields(t, cell.Decided{Access: cell.Access{Act: cell.Connect, Addr: ip("169.254.169.254")}})))
	if one[1].FindingInfo.UID == two[1].FindingInfo.UID {
		t.Error("two runs have the same finding")
	}
}

// A process that the command starts is another one than the command, which is its actor.
func TestStartsOfProcesses(t *testing.T) {
	m := NewMapper(facts())
	m.Map(at(1, "process.running", `{"pid":42}`))
	e := m.Map(at(2, "process.exec", `{"pid":43,"parent":42,"argv":["go","test","./..."],"path":"/usr/bin/go","as":"asked"}`))[0]
	if e.TypeName != "Process Activity: Launch" || e.LaunchType != "Exec" || e.Process.PID != 43 || e.Process.CmdLine != "go test ./..." || e.Process.Name != "go" || e.Actor.Process.PID != 42 || e.Unmapped["as"] != "asked" || e.Unmapped["parent"] != 42 {
		t.Errorf("%+v %+v", e, e.Process)
	}
	e = m.Map(at(3, "process.ended", `{"pid":43,"code":3,"signal":"","as":"observed"}`))[0]
	if e.TypeName != "Process Activity: Terminate" || *e.ExitCode != 3 || e.StatusCode != "3" || e.Process.PID != 43 {
		t.Errorf("%+v", e)
	}
	if e = m.Map(at(4, "process.ended", `{"pid":43,"code":null,"as":"not seen"}`))[0]; e.ExitCode != nil {
		t.Errorf("exit code %d", *e.ExitCode)
	}
}

func TestProcessHasItsNumberFromThenOn(t *testing.T) {
	m := NewMapper(facts())
	before := m.Map(at(1, "decision", `{"access":{"act":"resolve","host":"h"},"decision":{"effect":"allow","rule":"x"}}`))[0]
	m.Map(at(2, "process.running", `{"pid":42}`))
	after := m.Map(at(3, "decision", `{"access":{"act":"resolve","host":"h"},"decision":{"effect":"allow","rule":"x"}}`))[0]
	if before.Actor.Process.PID != 0 || after.Actor.Process.PID != 42 || after.Actor.Process.UID != "r-1" || after.Actor.Process.Container.Name != "web" {
		t.Errorf("%+v, %+v", before.Actor.Process, after.Actor.Process)
	}
	exit := m.Map(at(4, "process.exit", `{"code":3,"cause":"","usage":{"user_ms":1}}`))[0]
	if *exit.ExitCode != 3 || exit.TypeName != "Process Activity: Terminate" || exit.Process.TerminatedTime == 0 {
		t.Errorf("%+v", exit)
	}
}

// Nothing that a cell can put into its events breaks the mapping or the schema.
func FuzzMap(f *testing.F) {
	f.Add("decision", `{"access":{"act":"request","host":"h","method":"GET"},"decision":{"effect":"deny"}}`)
	f.Add("flow", `{"addr":"1.2.3.4","port":1,"method":"A B","ms":1e300}`)
	f.Add("network.earlier", `{"denied":1,"denials":[{}]}`)
	f.Add("process.exit", `{"code":1e99}`)
	v := schema(f)
	f.Fuzz(func(t *testing.T, kind, text string) {
		if !json.Valid([]byte(text)) || strings.ContainsRune(kind, 0) {
			return
		}
		for _, e := range NewMapper(facts()).Map(at(1, kind, text)) {
			if err := v.check(t, e); err != nil {
				t.Errorf("%s %s: %v", kind, text, err)
			}
		}
	})
}

func TestEveryMethodHasItsActivity(t *testing.T) {
	var ids []int
	for _, a := range methods() {
		ids = append(ids, a.id)
	}
	slices.Sort(ids)
	if len(ids) != 40 || ids[0] != 1 || ids[39] != 40 || len(slices.Compact(ids)) != 40 {
		t.Errorf("%v", ids)
	}
}

func BenchmarkMap(b *testing.B) {
	text, err := json.Marshal(cell.Decided{ID: "q-1", Access: cell.Access{Act: cell.Request, Host: "api.github.com", Port: 443, Scheme: "https", Method: "GET", Path: "/"},
		Decision: cell.Decision{Effect: cell.Allow, Rule: "allow 1", Origin: "--allow @github", By: "policy"}})
	if err != nil {
		b.Fatal(err)
	}
	m := NewMapper(facts())
	for b.Loop() {
		for _, e := range m.Map(at(1, "decision", string(text))) {
			if _, err := json.Marshal(e); err != nil {
				b.Fatal(err)
			}
		}
	}
}
