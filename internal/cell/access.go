package cell

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
)

// Act is what a process of a cell wants to do.
type Act string

// The acts that a policy decides on.
const (
	Resolve Act = "resolve" // learn the addresses of a name
	Connect Act = "connect" // open a connection
	Request Act = "request" // send an HTTP request
	Sign    Act = "sign"    // have a key of the caller's SSH agent sign
	Execute Act = "execute" // start a program
)

// Access is one request of a process of a cell, as the policy is asked about
// it. Names are lower case, in ASCII (xn--…) and without a final dot; paths are
// canonical: whoever asks has made them so, and refuses what has no one form.
type Access struct {
	Act Act `json:"act"`
	// Host is the name that was asked for; "" when an address was.
	Host string `json:"host,omitempty"`
	// Addr is the address that was asked for, or (with Host) the one that the
	// name led to, when that is known. Without it only the name is judged.
	Addr      netip.Addr `json:"addr,omitzero"`
	Port      uint16     `json:"port,omitempty"`
	Transport string     `json:"transport,omitempty"` // "tcp", "udp", "icmp"
	// Scheme is what the connection was seen to speak: "https", "http", "" for
	// what is neither or not seen yet.
	Scheme string `json:"scheme,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // with a leading slash, without a query
	Key    string `json:"key,omitempty"`  // Sign: fingerprint, "SHA256:…"
	// Program is what Execute starts: the path in the cell.
	Program string `json:"program,omitempty"`
}

// Overlong reports whether bytes have a character in a longer form of UTF-8 than
// its own (RFC 3629, section 10): a lenient server reads 0xC0 0xAE as a dot and
// 0xC0 0xAF as a slash, and who judges bytes doesn't.
func Overlong(s string) bool {
	for i := 0; i < len(s); i++ {
		next := byte(0)
		if i+1 < len(s) {
			next = s[i+1]
		}
		switch c := s[i]; {
		case c == 0xC0 || c == 0xC1, c == 0xE0 && next >= 0x80 && next < 0xA0, c == 0xF0 && next >= 0x80 && next < 0x90, c >= 0xF8 && c <= 0xFD && next >= 0x80 && next < 0xC0:
			return true
		}
	}
	return false
}

// Want says in one line what an access is: as `pando policy why` reads it.
func (a Access) Want() string {
	host := a.Host
	if host == "" && a.Addr.IsValid() {
		host = a.Addr.String()
		if a.Addr.Is6() {
			host = "[" + host + "]"
		}
	}
	port := ""
	if a.Port != 0 && !(a.Scheme == "https" && a.Port == 443) && !(a.Scheme == "http" && a.Port == 80) {
		port = ":" + strconv.Itoa(int(a.Port))
	}
	switch a.Act {
	case Resolve:
		return "resolve " + host
	case Request:
		return a.Method + " " + cmp.Or(a.Scheme, "http") + "://" + host + port + a.Path
	case Sign:
		if host == "" { // it was not proven, or not known
			return "sign with " + a.Key
		}
		return "sign for " + host + " with " + a.Key
	case Execute:
		return "execute " + a.Program
	}
	if a.Transport != "" && a.Transport != "tcp" {
		return a.Transport + " " + host + port
	}
	if port == "" && a.Port != 0 {
		port = ":" + strconv.Itoa(int(a.Port))
	}
	return "connect " + host + port
}

// Effect is what a policy, or a person, says.
type Effect string

// The effects. The zero Effect is no decision, and is taken as Deny.
const (
	Allow Effect = "allow"
	Deny  Effect = "deny"
	Ask   Effect = "ask" // hold it, and ask a person
)

// Decision is what was said about one Access, and why.
type Decision struct {
	Effect Effect `json:"effect"`
	// Rule names the rule that decided: "allow 2", "deny 1", "default", and
	// Origin where it stands: "pando.policy.yaml:31", "--allow @npm",
	// "default".
	Rule   string `json:"rule"`
	Origin string `json:"origin"`
	Reason string `json:"reason"` // one sentence for people
	// Permit is the flag that would allow it, "" when none can; Line is what
	// to write into a policy file; Narrower is the least grant that would do.
	Permit   string `json:"permit,omitempty"`
	Line     string `json:"line,omitempty"`
	Narrower string `json:"narrower,omitempty"`
	// Open: the connection must be opened, because a rule looks at what is in
	// it or a credential goes in. On Connect decisions only.
	Open bool `json:"open,omitempty"`
	// Credential is the handle of what the gateway puts into the request.
	Credential string `json:"credential,omitempty"`
	// By is who decided: "policy", "person", "gateway" (a protocol that is
	// never allowed), "budget".
	By string `json:"by"`
}

// Allowed reports whether it may be done.
func (d Decision) Allowed() bool { return d.Effect == Allow }

// Decided is the event "decision": an access and what was said about it.
type Decided struct {
	ID       string   `json:"id"` // of the request: "q-" and 16 hexadecimal digits
	Access   Access   `json:"access"`
	Decision Decision `json:"decision"`
	Policy   Digest   `json:"policy"` // that was in force
	Conn     string   `json:"conn,omitempty"`
	// Count is how many like it came at once and are told by this one event;
	// 0 means 1.
	Count int64 `json:"count,omitempty"`
}

// Refusal is a class of denials.
type Refusal struct {
	Act Act `json:"act"`
	// Reason is who refused it: "rule" of a policy that denies, "default" where
	// none allows, "special" for addresses that no name may lead to, "person",
	// "gateway", "budget", "error" when the policy could not be evaluated.
	Reason string `json:"reason"`
}

// Refused is how often a class of denials has happened.
type Refused struct {
	Refusal
	Count int64 `json:"count"`
}

// Refusal is the class of a denial.
func (d Decided) Refusal() Refusal {
	reason := d.Decision.By
	if reason == "policy" || reason == "" {
		switch word, _, _ := strings.Cut(d.Decision.Rule, " "); word {
		case "default", "special", "error":
			reason = word
		default:
			reason = "rule"
		}
	}
	return Refusal{Act: d.Access.Act, Reason: reason}
}

// Unresolved is a name that the host could not look up, though it was allowed: its resolver
// did not answer, or failed.
type Unresolved struct {
	Host  string `json:"host"`
	Error string `json:"error"`
}

// Flow is the event "flow": a connection, or an HTTP request in one, that has
// ended.
type Flow struct {
	Conn string     `json:"conn"`
	ID   string     `json:"id,omitempty"` // of the decision it was allowed by
	Host string     `json:"host,omitempty"`
	Addr netip.Addr `json:"addr,omitzero"` // that was dialled
	// Proxy is the host's proxy, HOST:PORT, that the connection went through.
	Proxy string `json:"proxy,omitempty"`
	// Unchecked: the host itself found no address of the name, so that where the proxy
	// found it was not judged.
	Unchecked bool    `json:"unchecked,omitempty"`
	Port      uint16  `json:"port"`
	Scheme    string  `json:"scheme,omitempty"`
	Opened    bool    `json:"opened,omitempty"` // TLS was opened by the gateway
	Method    string  `json:"method,omitempty"`
	Path      string  `json:"path,omitempty"`
	Status    int     `json:"status,omitempty"`   // of the HTTP response
	Sent      int64   `json:"sent"`               // bytes out of the cell
	Received  int64   `json:"received"`           // bytes into it
	MS        float64 `json:"ms"`                 // how long it took
	Error     string  `json:"error,omitempty"`    // why it ended, unless by its two ends
	Secret    string  `json:"secret,omitempty"`   // handle of the credential that was put in
	Without   string  `json:"without,omitempty"`  // handle of the credential that the host is for, where none was put in
	Protocol  string  `json:"protocol,omitempty"` // "HTTP/1.1", "HTTP/2.0", "websocket"
}
