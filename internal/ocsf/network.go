package ocsf

import (
	"cmp"
	"encoding/json"
	"math"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// gathered is how long the gateway gathers decisions that are alike before it
// tells them by one event, at most, in milliseconds.
const gathered = 1000

// decision maps what was said about an access.
func (m *Mapper) decision(s Source, d cell.Decided) []Event {
	e := m.begin(s)
	a := d.Access
	e.Metadata.CorrelationUID = cmp.Or(d.Conn, d.ID)
	if !d.Policy.IsZero() {
		e.Policy = &Policy{UID: d.Policy.String(), IsApplied: true}
	}
	e.FirewallRule = &FirewallRule{UID: cmp.Or(d.Decision.Rule, "default"), Name: d.Decision.Origin, Desc: d.Decision.Reason}
	if d.Count > 1 {
		e.Count, e.EndTime = min(d.Count, math.MaxInt32), e.Time
		if a.Act != cell.Sign { // its filter counts for as long as it lasts
			e.Time -= gathered
			e.StartTime = e.Time
		}
	}
	denied := false
	switch d.Decision.Effect {
	case cell.Allow:
		e.decided(allowed)
		if d.Decision.By == "person" {
			e.decided(approved)
		}
	case cell.Ask:
		e.decided(delayed)
		e.severity(low)
	default:
		denied = true
		e.decided(blocked)
		e.severity(low)
		e.didNot(d.Decision.Reason)
	}
	for name, value := range map[string]string{"by": d.Decision.By, "request": d.ID, "permit": d.Decision.Permit, "line": d.Decision.Line,
		"narrower": d.Decision.Narrower, "credential": d.Decision.Credential, "key": a.Key} {
		if value != "" {
			e.also(name, value)
		}
	}
	if a.Act == cell.Execute {
		e.is(processActivity, launch)
		e.Process = &Process{UID: cmp.Or(d.ID, m.facts.Run), Path: a.Program, Name: path.Base(a.Program), Container: m.container()}
	} else {
		m.ends(&e, a)
		m.talks(&e, a, denied)
	}
	out := []Event{e}
	if denied {
		if f, ok := m.attack(s, a, d); ok {
			out[0].IsAlert = true
			out[0].severity(high)
			if f.ClassUID != 0 {
				out = append(out, f)
			}
		}
	}
	return out
}

// talks classifies a decision about the network.
func (m *Mapper) talks(e *Event, a cell.Access, denied bool) {
	switch a.Act {
	case cell.Resolve:
		e.is(dnsActivity, query)
		e.Query = &DNSQuery{Hostname: a.Host, Class: "IN"}
		if denied {
			code := 5
			e.RCodeID, e.RCode = &code, "Refused"
		}
		return
	case cell.Request:
		e.is(httpActivity, methodOf(a.Method))
		e.HTTPRequest = request(a.Scheme, hostOf(a.Host, a.Addr), a.Port, a.Method, a.Path)
		e.AppProtocol = cmp.Or(a.Scheme, "http")
		return
	case cell.Sign:
		e.is(sshActivity, other("Sign"))
		if a.Signs == "" { // else it is no log-in
			e.AuthTypeID, e.AuthType = 6, "Public Key"
		}
		e.AppProtocol = "ssh"
		return
	}
	act := opened
	if denied {
		act = refused
	}
	e.is(networkActivity, act)
}

// ends sets the ends of a connection and its kind.
func (m *Mapper) ends(e *Event, a cell.Access) {
	e.SrcEndpoint = &Endpoint{UID: m.facts.Cell, Name: m.facts.CellName, Container: m.container()}
	if a.Host != "" || a.Addr.IsValid() {
		e.DstEndpoint = &Endpoint{Hostname: a.Host, IP: ipOf(a.Addr), Port: portOf(a.Port)}
	}
	protocol := a.Transport
	if protocol == "" && a.Act != cell.Resolve {
		protocol = "tcp"
	}
	e.ConnectionInfo = &Connection{UID: e.Metadata.CorrelationUID, DirectionID: 2, Direction: "Outbound", ProtocolName: protocol,
		ProtocolNum: map[string]int{"icmp": 1, "tcp": 6, "udp": 17}[protocol]}
}

// flow maps a connection, or a request in one, that has ended.
func (m *Mapper) flow(s Source, f cell.Flow) Event {
	e := m.begin(s)
	e.Metadata.CorrelationUID = cmp.Or(f.Conn, f.ID)
	m.ends(&e, cell.Access{Host: f.Host, Addr: f.Addr, Port: f.Port})
	e.Traffic = &Traffic{Bytes: f.Sent + f.Received, BytesIn: f.Received, BytesOut: f.Sent}
	e.AppProtocol = f.Scheme
	e.succeeded("")
	if f.Error != "" {
		e.didNot(f.Error)
		e.severity(low)
	}
	switch {
	case f.Method != "":
		e.is(httpActivity, methodOf(f.Method))
		e.HTTPRequest = request(f.Scheme, hostOf(f.Host, f.Addr), f.Port, f.Method, f.Path)
		e.HTTPRequest.UID = f.ID
		if v, ok := strings.CutPrefix(f.Protocol, "HTTP/"); ok {
			e.HTTPRequest.Version = v
		}
		if f.Status != 0 {
			e.HTTPResponse = &HTTPResponse{Code: f.Status, Latency: int64(min(max(f.MS, 0), math.MaxInt32))}
			e.StatusCode = strconv.Itoa(f.Status)
			if f.Status >= 400 {
				e.didNot(f.Error)
			}
		}
	case f.Error == "":
		e.is(networkActivity, closed)
	case f.Sent+f.Received > 0:
		e.is(networkActivity, reset)
	default:
		e.is(networkActivity, failed)
	}
	e.also("ms", f.MS) // the schema's duration is that of an aggregate
	e.also("tls_opened", f.Opened)
	for name, value := range map[string]string{"request": f.ID, "credential": f.Secret, "protocol": f.Protocol} {
		if value != "" {
			e.also(name, value)
		}
	}
	return e
}

// earlier maps what happened while no run was there: a summary, and each of
// the denials that were kept.
func (m *Mapper) earlier(s Source) []Event {
	var f struct {
		Allowed, Denied, Asked, Flows int64
		Denials                       []cell.Decided
	}
	json.Unmarshal(s.Fields, &f)
	e := m.begin(s)
	e.is(networkActivity, traffic)
	e.SrcEndpoint = &Endpoint{UID: m.facts.Cell, Name: m.facts.CellName, Container: m.container()}
	for name, n := range map[string]int64{"allowed": f.Allowed, "denied": f.Denied, "asked": f.Asked, "flows": f.Flows} {
		e.also(name, n)
	}
	if f.Denied > 0 {
		e.severity(low)
	}
	out := []Event{e}
	for i, d := range f.Denials {
		for _, one := range m.decision(s, d) {
			one.Metadata.UID += "/" + strconv.Itoa(i+1)
			one.Metadata.Labels = []string{"before the run"} // its time is that of the run's beginning
			out = append(out, one)
		}
	}
	return out
}

// none maps that a command looked for the network of a cell that has none.
func (m *Mapper) none(s Source) Event {
	var f struct{ Tries int64 }
	json.Unmarshal(s.Fields, &f)
	e := m.begin(s)
	e.is(networkActivity, failed)
	e.SrcEndpoint = &Endpoint{UID: m.facts.Cell, Name: m.facts.CellName, Container: m.container()}
	e.severity(low)
	e.decided(blocked)
	e.didNot("the cell has no network")
	e.also("tries", f.Tries)
	return e
}

// unresolved maps that an allowed name could not be looked up.
func (m *Mapper) unresolved(s Source) Event {
	var f cell.Unresolved
	json.Unmarshal(s.Fields, &f)
	e := m.begin(s)
	e.is(networkActivity, failed)
	e.SrcEndpoint = &Endpoint{UID: m.facts.Cell, Name: m.facts.CellName, Container: m.container()}
	e.severity(informational)
	e.didNot(f.Error)
	e.also("host", f.Host)
	return e
}

// methodOf is the activity of a method.
func methodOf(method string) activity {
	if a, ok := methods()[method]; ok {
		return a
	}
	return other(cmp.Or(method, "Unknown"))
}

// request describes an HTTP request. The schema lists the methods there are: an
// unlisted one is told by the activity's name.
func request(scheme, host string, port uint16, method, path string) *HTTPRequest {
	scheme, path = cmp.Or(scheme, "http"), cmp.Or(path, "/")
	at := host
	if strings.Contains(host, ":") {
		at = "[" + host + "]"
	}
	if port != 0 && !(scheme == "https" && port == 443) && !(scheme == "http" && port == 80) {
		at += ":" + strconv.Itoa(int(port))
	}
	r := &HTTPRequest{URL: &URL{Scheme: scheme, Hostname: host, Port: portOf(port), Path: path, String: scheme + "://" + at + path}}
	if _, listed := methods()[method]; listed {
		r.Method = method
	}
	return r
}

func hostOf(host string, addr netip.Addr) string { return cmp.Or(host, ipOf(addr)) }

// ipOf is an address as the schema's pattern has it: four bytes as four, and
// no zone.
func ipOf(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.Unmap().WithZone("").String()
}

func portOf(port uint16) *int {
	if port == 0 {
		return nil
	}
	n := int(port)
	return &n
}
