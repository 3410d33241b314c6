package ocsf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// metadata are the addresses under which clouds give their virtual machines
// names, keys and tokens: Amazon (also for tasks and pods), Google, Azure,
// OpenStack and others, then Alibaba, Azure's wire server, Oracle.
var metadata = []string{"169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"}

// metadataNames are names for them.
var metadataNames = []string{"metadata.google.internal", "metadata", "instance-data", "instance-data.ec2.internal", "metadata.azure.internal", "metadata.tencentyun.com"}

func isMetadata(a cell.Access) bool {
	if slices.Contains(metadataNames, a.Host) || slices.Contains(metadata, a.Host) {
		return true
	}
	return a.Addr.IsValid() && slices.ContainsFunc(metadata, func(s string) bool { return netip.MustParseAddr(s) == a.Addr.Unmap() })
}

// tunnelRule is the rule of the gateway that a query with the shape of a tunnel
// meets.
const tunnelRule = "dns tunnel"

// attack reports whether a denial looks like an attack. The finding is empty
// when it has been told already.
func (m *Mapper) attack(s Source, a cell.Access, d cell.Decided) (f Event, ok bool) {
	fresh := false
	switch {
	case isMetadata(a):
		f, fresh = m.finding(s, "metadata", high, "Attempt to reach a cloud's metadata service", "Cloud metadata",
			"a process of the cell tried to reach a cloud's metadata service, which hands out credentials of the host; it was denied")
	case d.Decision.By == "gateway" && d.Decision.Rule == tunnelRule:
		f, fresh = m.finding(s, "tunnel/"+base(a.Host), high, "DNS queries with the shape of a tunnel", "DNS tunnel",
			"a process of the cell asked for names below "+base(a.Host)+" that look like data: "+d.Decision.Reason)
	default:
		return f, false
	}
	if !fresh {
		return Event{}, true
	}
	f.decided(blocked)
	f.FirewallRule = &FirewallRule{UID: d.Decision.Rule, Name: d.Decision.Origin, Desc: d.Decision.Reason}
	f.Metadata.CorrelationUID = d.ID
	if a.Host != "" {
		f.also("host", a.Host)
	}
	if a.Addr.IsValid() {
		f.also("addr", ipOf(a.Addr))
	}
	return f, true
}

// base is what names below it are told as one finding: the last two labels.
func base(host string) string {
	labels := strings.Split(host, ".")
	if len(labels) > 2 {
		labels = labels[len(labels)-2:]
	}
	return strings.Join(labels, ".")
}

// finding makes a finding, once per key.
func (m *Mapper) finding(s Source, key string, severity int, title, kind, desc string) (Event, bool) {
	if m.told[key] {
		return Event{}, false
	}
	m.told[key] = true
	sum := sha256.Sum256([]byte(m.facts.Run + "\x00" + key))
	uid := "f-" + hex.EncodeToString(sum[:8])
	e := m.begin(s)
	e.is(detectionFinding, created)
	e.severity(severity)
	e.Metadata.UID = fmt.Sprintf("%s/%s", m.facts.Run, uid)
	e.Message = desc
	e.IsAlert = true
	state := 1
	e.StatusID, e.Status = &state, "New"
	e.FindingInfo = &FindingInfo{UID: uid, Title: title, Desc: desc, Types: []string{kind}, CreatedTime: s.Time.UnixMilli(), DataSources: []string{"pando events"}}
	return e, true
}
