package cell

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Act is the kind of operation that a process of a cell asks for.
type Act string

// The acts that a policy decides on.
const (
	Resolve Act = "resolve" // learn the addresses of a name
	Connect Act = "connect" // open a connection
	Request Act = "request" // send an HTTP request
	Sign    Act = "sign"    // have a key of the caller's SSH agent sign
	Execute Act = "execute" // start a program
)

// Access is one request of a process of a cell, in the form that the policy decides on.
// Names are lower case, in ASCII (xn--…) and without a final dot; paths are canonical.
// The caller canonicalises both and rejects what has no single canonical form.
type Access struct {
	Act Act `json:"act"`
	// Host is the requested name; "" when an address was requested.
	Host string `json:"host,omitempty"`
	// Addr is the requested address or, with Host, the resolved one if it is known.
	// Without it only the name is judged.
	Addr      netip.Addr `json:"addr,omitzero"`
	Port      uint16     `json:"port,omitempty"`
	Transport string     `json:"transport,omitempty"` // "tcp", "udp", "icmp"
	// Scheme is the protocol that was seen on the connection: "https", "http", or ""
	// for any other and for one that was not seen yet.
	Scheme string `json:"scheme,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // with a leading slash, without a query
	Key    string `json:"key,omitempty"`  // Sign: fingerprint, "SHA256:…"
	// Signs is what a signature is for: "git" for its commits and tags, "" for a log-in at Host.
	Signs string `json:"signs,omitempty"`
	// Program is what Execute starts: the path in the cell.
	Program string `json:"program,omitempty"`
}

// Overlong reports whether s has a character in overlong UTF-8 (RFC 3629, section 10). A
// lenient server reads 0xC0 0xAE as a dot and 0xC0 0xAF as a slash; a check by bytes sees
// neither.
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

// Want describes an access in one line, in the syntax of `pando policy why`.
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
		if a.Signs != "" {
			return "sign for " + a.Signs + " with " + a.Key
		}
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

// Effect is the answer of a policy or a person.
type Effect string

// The effects. The zero Effect is no decision and counts as Deny.
const (
	Allow Effect = "allow"
	Deny  Effect = "deny"
	Ask   Effect = "ask" // hold the request and ask a person
)

// Decision is the answer to one Access, with the reason.
type Decision struct {
	Effect Effect `json:"effect"`
	// Rule names the rule that decided: "allow 2", "deny 1", "default". Origin is where
	// that rule is written: "pando.policy.yaml:31", "--allow @npm", "mode development @npm", "default".
	Rule   string `json:"rule"`
	Origin string `json:"origin"`
	Reason string `json:"reason"` // one sentence for people
	// Permit is the flag that would allow it, "" when none can. Line is the line for a
	// policy file. Narrower is the least grant that suffices.
	Permit   string `json:"permit,omitempty"`
	Line     string `json:"line,omitempty"`
	Narrower string `json:"narrower,omitempty"`
	// Open says that the gateway must open the connection, because a rule needs its
	// content or a credential is put into it. On Connect decisions only.
	Open bool `json:"open,omitempty"`
	// Credential is the handle of the credential that the gateway puts into the request.
	Credential string `json:"credential,omitempty"`
	// By is the source of the decision: "policy", "person", "gateway" (a protocol that
	// is never allowed), "budget".
	By string `json:"by"`
}

// Allowed reports whether the effect is Allow.
func (d Decision) Allowed() bool { return d.Effect == Allow }

// Decided is the event "decision": an access and its decision.
type Decided struct {
	ID       string   `json:"id"` // of the request: "q-" and 16 hexadecimal digits
	Access   Access   `json:"access"`
	Decision Decision `json:"decision"`
	Policy   Digest   `json:"policy"` // the policy in force
	Conn     string   `json:"conn,omitempty"`
	// Count is the number of equal requests that this one event stands for; 0 means 1.
	Count int64 `json:"count,omitempty"`
}

// Refusal is a class of denials.
type Refusal struct {
	Act Act `json:"act"`
	// Reason is "rule" of a policy that denies, "default" where none allows, "special"
	// for addresses that no name may resolve to, "person", "gateway", "budget", or
	// "error" when the policy could not be evaluated.
	Reason string `json:"reason"`
}

// Refused counts the denials of one class.
type Refused struct {
	Refusal
	Count int64 `json:"count"`
}

// Refusal returns the class of a denial.
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

// Unresolved is a name that the policy allows and the host could not look up: its resolver
// failed or did not answer.
type Unresolved struct {
	Host  string `json:"host"`
	Error string `json:"error"`
}

// Flow is the event "flow": a connection, or an HTTP request in one, has ended.
type Flow struct {
	Conn string     `json:"conn"`
	ID   string     `json:"id,omitempty"` // of the decision that allowed it
	Host string     `json:"host,omitempty"`
	Addr netip.Addr `json:"addr,omitzero"` // the dialled address
	// Proxy is the host's proxy, HOST:PORT, that the connection went through.
	Proxy string `json:"proxy,omitempty"`
	// Unchecked: the host itself found no address of the name, so the address that the
	// proxy found was not judged.
	Unchecked bool    `json:"unchecked,omitempty"`
	Port      uint16  `json:"port"`
	Scheme    string  `json:"scheme,omitempty"`
	Opened    bool    `json:"opened,omitempty"` // TLS was opened by the gateway
	Method    string  `json:"method,omitempty"`
	Path      string  `json:"path,omitempty"`
	Status    int     `json:"status,omitempty"`   // of the HTTP response
	Sent      int64   `json:"sent"`               // bytes out of the cell
	Received  int64   `json:"received"`           // bytes into it
	MS        float64 `json:"ms"`                 // duration
	Error     string  `json:"error,omitempty"`    // why it ended, unless one of its two ends closed it
	Secret    string  `json:"secret,omitempty"`   // handle of the credential that was put in
	Without   string  `json:"without,omitempty"`  // handle of the credential for this host, where none was put in
	Protocol  string  `json:"protocol,omitempty"` // "HTTP/1.1", "HTTP/2.0", "websocket"
	// Model is what the answer of a model said of its use; nil: no model was asked, or none answered.
	Model *ModelUse `json:"model,omitempty"`
}

// ModelUse is the use of one model: of one answer, or of many.
type ModelUse struct {
	Model      string `json:"model"` // as the answer names it; "": it names none
	Requests   int64  `json:"requests"`
	Input      int64  `json:"input"` // tokens, without those that a cache had
	Output     int64  `json:"output"`
	CacheRead  int64  `json:"cache_read,omitempty"`
	CacheWrite int64  `json:"cache_write,omitempty"`
	// Unseen counts the successful answers that did not say their use, or could not be read.
	Unseen int64 `json:"unseen,omitempty"`
	// Calls counts the calls of tools in the answers.
	Calls int64 `json:"calls,omitempty"`
}

// Tokens is the number of all tokens.
func (u ModelUse) Tokens() int64 { return u.Input + u.Output + u.CacheRead + u.CacheWrite }

// Add adds other use of the same model.
func (u *ModelUse) Add(o ModelUse) {
	u.Requests += o.Requests
	u.Input += o.Input
	u.Output += o.Output
	u.CacheRead += o.CacheRead
	u.CacheWrite += o.CacheWrite
	u.Unseen += o.Unseen
	u.Calls += o.Calls
}

// maxModels bounds the models of a list of uses.
const maxModels = 16

// AddUse adds the use of a model to a list, which is bounded: what is too much counts as of the model
// OtherModels.
func AddUse(list []ModelUse, o ModelUse) []ModelUse {
	at := func(name string) int { return slices.IndexFunc(list, func(u ModelUse) bool { return u.Model == name }) }
	i := at(o.Model)
	if i < 0 && len(list) >= maxModels {
		o.Model = OtherModels
		i = at(o.Model)
	}
	if i < 0 {
		return append(list, o)
	}
	list[i].Add(o)
	return list
}

// OtherModels is the name of the models of which there were too many.
const OtherModels = "other models"
