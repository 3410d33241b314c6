package sshagent

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/pando-dev/pando/internal/cell"
)

// Config is what a Filter goes by.
type Config struct {
	// Upstream is the caller's agent.
	Upstream io.ReadWriter
	Keys     []cell.LentKey
	Policy   Decider
	// Emit takes the events, from any goroutine.
	Emit func(kind string, fields any)
	Log  *slog.Logger
}

// A Decider is asked before each signature. It is safe for concurrent use.
type Decider interface {
	Decide(cell.Access) cell.Decision
	Digest() cell.Digest
}

// maxConns bounds how many connections of one cell are served at once.
const maxConns = 64

// Filter is the agent that a cell sees. It is safe for concurrent use.
type Filter struct {
	cfg Config
	up  agent.ExtendedAgent

	mu     sync.Mutex // guards what follows
	keys   []*lent
	policy Decider
	denied int64        // how often, in all
	untold cell.Decided // the latest denial that was counted and not told yet
	conns  map[net.Conn]bool
	closed bool
	work   sync.WaitGroup
}

// lent is a key in the form that requests are compared with: of one that several credentials lend, all of them.
type lent struct {
	key    string               // its fingerprint
	handle string               // the credential that lends it first
	git    string               // the one that lends it for signatures of git; "": none
	hosts  map[string]knownHost // by host key, in the wire's form
	names  []string             // of the hosts
}

// knownHost is a host that a key is lent for, by a credential.
type knownHost struct {
	cell.KnownHost
	handle string
}

// New makes a filter. It serves nothing yet.
func New(cfg Config) (*Filter, error) {
	f := &Filter{cfg: cfg, up: agent.NewClient(cfg.Upstream), conns: map[net.Conn]bool{}}
	if f.cfg.Log == nil {
		f.cfg.Log = slog.New(slog.DiscardHandler)
	}
	return f, f.Govern(cfg.Keys, cfg.Policy)
}

// Govern replaces the lent keys and the policy, also for open connections. When it fails,
// the old ones stay in force.
func (f *Filter) Govern(keys []cell.LentKey, policy Decider) error {
	var list []*lent
	for _, k := range keys {
		at := slices.IndexFunc(list, func(l *lent) bool { return l.key == k.Key })
		if at < 0 {
			at = len(list)
			list = append(list, &lent{key: k.Key, handle: k.Handle, hosts: map[string]knownHost{}})
		}
		l := list[at]
		if k.Git && l.git == "" {
			l.git = k.Handle
		}
		for _, h := range k.Hosts {
			l.names = append(l.names, h.Host)
			for _, text := range h.Keys {
				_, b64, _ := strings.Cut(text, " ")
				blob, err := base64.StdEncoding.DecodeString(b64)
				if err != nil {
					return cell.Errorf(cell.Invalid, "sshagent.Govern", "", "cannot read a key of host %s: %w", h.Host, err)
				}
				l.hosts[string(blob)] = knownHost{h, k.Handle}
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys, f.policy = list, policy
	return nil
}

// lent returns the lent key with a fingerprint, nil if there is none, and the policy that decides.
func (f *Filter) lent(key string) (l *lent, policy Decider) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.keys {
		if l.key == key {
			return l, f.policy
		}
	}
	return nil, f.policy
}

// told is how many denials are events of their own; of more, one of each power
// of two is, with the number since the last.
const told = 64

// tell emits what was decided. A flood of denials makes few events.
func (f *Filter) tell(d cell.Decided) {
	if !d.Decision.Allowed() {
		f.mu.Lock()
		f.denied++
		d.Count = f.untold.Count + 1
		if f.denied > told && f.denied&(f.denied-1) != 0 {
			f.untold = d
			f.mu.Unlock()
			return
		}
		f.untold = cell.Decided{}
		f.mu.Unlock()
	}
	f.cfg.Emit("decision", d)
}

// Flush emits what was counted and not told yet.
func (f *Filter) Flush() {
	f.mu.Lock()
	d := f.untold
	f.untold = cell.Decided{}
	f.mu.Unlock()
	if d.Count > 0 {
		f.cfg.Emit("decision", d)
	}
}

// Serve answers the connections that come in, until the listener is closed.
func (f *Filter) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f.mu.Lock()
		if f.closed || len(f.conns) >= maxConns {
			f.mu.Unlock()
			c.Close()
			continue
		}
		f.conns[c] = true
		f.work.Go(func() { f.serve(c) })
		f.mu.Unlock()
	}
}

// serve answers one connection. Whatever comes over it, it ends no other.
func (f *Filter) serve(c net.Conn) {
	defer func() {
		if r := recover(); r != nil {
			f.cfg.Log.Error("a connection to the agent made its filter panic", "panic", r)
		}
		c.Close()
		f.mu.Lock()
		delete(f.conns, c)
		f.mu.Unlock()
	}()
	(&session{f: f}).talk(c) // until its end, which is no error
}

// Close ends all connections. The caller closes the listener and the upstream.
func (f *Filter) Close() error {
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.work.Wait()
	f.Flush()
	return nil
}

// session is one connection of a client in the cell.
type session struct {
	f         *Filter
	forwarded bool
	bound     []binding
}

// binding is an SSH session with a host that has proven itself.
type binding struct {
	id   []byte
	host ssh.PublicKey
}

// maxBindings bounds the sessions of one connection. A client has one.
const maxBindings = 16

// sessionBind is OpenSSH's extension (PROTOCOL.agent, section 1).
const sessionBind = "session-bind@openssh.com"

var errRefused = errors.New("refused")

// list returns the keys that are lent.
func (s *session) list() ([]*agent.Key, error) {
	all, err := s.f.up.List()
	if err != nil {
		return nil, err
	}
	var out []*agent.Key
	for _, k := range all {
		if l, _ := s.f.lent(ssh.FingerprintSHA256(k)); l != nil {
			k.Comment = l.handle // the caller's comment is private
			out = append(out, k)
		}
	}
	return out, nil
}

// bind records a session with a host that has proven itself.
func (s *session) bind(contents []byte) bool {
	var m struct {
		HostKey, Session, Signature []byte
		Forwarding                  bool
	}
	if err := ssh.Unmarshal(contents, &m); err != nil || len(m.Session) == 0 || len(m.Session) > 128 {
		return false
	}
	host, err := ssh.ParsePublicKey(m.HostKey)
	if err != nil {
		return false
	}
	var sig ssh.Signature
	if err := ssh.Unmarshal(m.Signature, &sig); err != nil || host.Verify(m.Session, &sig) != nil {
		return false
	}
	if m.Forwarding {
		s.forwarded = true // the client behind it is not this cell
		return true
	}
	for _, b := range s.bound {
		if bytes.Equal(b.id, m.Session) {
			return false // a session has one host
		}
	}
	if len(s.bound) == maxBindings {
		return false
	}
	s.bound = append(s.bound, binding{bytes.Clone(m.Session), host})
	return true
}

// sign has the caller's agent sign if that is allowed, and says so either way.
func (s *session) sign(key ssh.PublicKey, data []byte, flags agent.SignatureFlags) (*ssh.Signature, error) {
	a := cell.Access{Act: cell.Sign, Transport: "tcp", Key: ssh.FingerprintSHA256(key)}
	l, policy := s.f.lent(a.Key)
	handle, why := s.judge(key, data, l, &a)
	d := cell.Decision{Effect: cell.Deny, Rule: "ssh", Origin: "gateway", Reason: why, By: "gateway"}
	switch {
	case why != "":
	case a.Signs != "": // which goes nowhere: that the key is lent for it decides
		d = cell.Decision{Effect: cell.Allow, Rule: "ssh", Origin: "credential " + handle, Reason: "the key is lent for signatures of git", By: "gateway"}
	default:
		d = policy.Decide(a)
	}
	d.Credential = handle
	if d.Effect == cell.Ask {
		d.Effect, d.Reason = cell.Deny, "a person would have to be asked, and a log-in does not wait: "+d.Reason
	}
	s.f.tell(cell.Decided{ID: cell.NewRequestID(), Access: a, Decision: d, Policy: policy.Digest()})
	if !d.Allowed() {
		return nil, errRefused
	}
	return s.f.up.SignWithFlags(key, data, flags)
}

// judge says why a signature is refused before any policy is asked; "" when it
// is not. Then a says for which host it is, or that it is git's. handle is the credential that lends the key.
func (s *session) judge(key ssh.PublicKey, data []byte, l *lent, a *cell.Access) (handle, why string) {
	if l == nil {
		return "", "the key is not lent to this cell"
	}
	if s.forwarded {
		return l.handle, "the agent was forwarded to another host, and a key is lent to the cell alone"
	}
	if namespace, err := parseSigned(data); err == nil {
		switch {
		case namespace != gitNamespace:
			return l.handle, "what shall be signed is no log-in of SSH, and no commit or tag of git"
		case l.git == "":
			return l.handle, "the key is lent for " + strings.Join(l.names, ", ") + ", and not for signatures of git"
		}
		a.Signs = "git"
		return l.git, ""
	}
	auth, err := parseAuth(data)
	if err != nil {
		return l.handle, "what shall be signed is no log-in of SSH"
	}
	if !bytes.Equal(auth.key, key.Marshal()) {
		return l.handle, "what shall be signed is a log-in with another key"
	}
	var host ssh.PublicKey
	for _, b := range s.bound {
		if bytes.Equal(b.id, auth.session) {
			host = b.host
		}
	}
	switch {
	case host == nil && len(s.bound) == 0:
		return l.handle, "the SSH client did not say to which host it is connected; OpenSSH does since 8.9"
	case host == nil:
		return l.handle, "what shall be signed belongs to another connection than the one that was proven"
	case auth.host != nil && !bytes.Equal(auth.host, host.Marshal()):
		return l.handle, "what shall be signed names another host key than the one that was proven"
	}
	known, ok := l.hosts[string(host.Marshal())]
	if !ok && len(l.names) == 0 {
		return l.handle, "the key is lent for signatures of git alone"
	}
	if !ok {
		return l.handle, "the key is lent for " + strings.Join(l.names, ", ") + ", and the host's key " + ssh.FingerprintSHA256(host) + " is not known to be of there"
	}
	a.Host, a.Port = known.Host, known.Port
	return known.handle, ""
}
