package sshagent

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// decider says yes to one host.
type decider string

func (d decider) Decide(a cell.Access) cell.Decision {
	if a.Act == cell.Sign && a.Host == string(d) {
		return cell.Decision{Effect: cell.Allow, Rule: "allow 1", Origin: "--allow", By: "policy"}
	}
	return cell.Decision{Effect: cell.Deny, Rule: "default", Origin: "default", Reason: "no rule allows " + a.Host, By: "policy"}
}

func (decider) Digest() cell.Digest { return cell.Sum([]byte("policy")) }

type events struct {
	mu   sync.Mutex
	list []cell.Decided
}

func (e *events) emit(kind string, fields any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fields.(cell.Decided))
}

// last returns the newest event, and forgets all.
func (e *events) last(t testing.TB) cell.Decided {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.list) == 0 {
		t.Fatal("there is no event")
	}
	d := e.list[len(e.list)-1]
	e.list = nil
	return d
}

func newKey(t testing.TB) (ssh.Signer, ed25519.PrivateKey) {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return s, priv
}

// fake is a filter before an agent with two keys, the first of them lent for
// host "good".
type fake struct {
	*Filter
	*session
	ev          events
	lent, other ssh.Signer
	good, evil  ssh.Signer // host keys
}

func newFake(t testing.TB) *fake {
	t.Helper()
	ring := agent.NewKeyring()
	f := &fake{}
	var keys [2]ed25519.PrivateKey
	f.lent, keys[0] = newKey(t)
	f.other, keys[1] = newKey(t)
	f.good, _ = newKey(t)
	f.evil, _ = newKey(t)
	for _, k := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: k, Comment: "me@home"}); err != nil {
			t.Fatal(err)
		}
	}
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	go agent.ServeAgent(ring, b)
	var err error
	f.Filter, err = New(Config{Upstream: a, Policy: decider("good"), Emit: f.ev.emit, Keys: []cell.LentKey{{
		Handle: "deploy", Key: ssh.FingerprintSHA256(f.lent.PublicKey()),
		Hosts: []cell.KnownHost{{Host: "good", Port: 22, Keys: []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(f.good.PublicKey())))}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	f.again()
	return f
}

// again begins a new connection.
func (f *fake) again() { f.session = &session{f: f.Filter} }

// binds makes the contents of session-bind, as a client does after its host has signed.
func binds(t testing.TB, host, signedBy ssh.Signer, id string, forwarding byte) []byte {
	t.Helper()
	sig, err := signedBy.Sign(rand.Reader, []byte(id))
	if err != nil {
		t.Fatal(err)
	}
	return append(texts(host.PublicKey().Marshal(), []byte(id), ssh.Marshal(sig)), forwarding)
}

func login(id string, key ssh.Signer, host ssh.Signer) []byte {
	b := append(texts([]byte(id)), userauthRequest)
	method := "publickey"
	if host != nil {
		method = "publickey-hostbound-v00@openssh.com"
	}
	b = append(b, texts([]byte("git"), []byte("ssh-connection"), []byte(method))...)
	b = append(b, 1)
	b = append(b, texts([]byte("ssh-ed25519"), key.PublicKey().Marshal())...)
	if host != nil {
		b = append(b, texts(host.PublicKey().Marshal())...)
	}
	return b
}

func TestFilterListsLentKeysOnly(t *testing.T) {
	f := newFake(t)
	keys, err := f.list()
	if err != nil || len(keys) != 1 || !bytes.Equal(keys[0].Blob, f.lent.PublicKey().Marshal()) || keys[0].Comment != "deploy" {
		t.Fatalf("%v, %v", keys, err)
	}
}

func TestFilterSigns(t *testing.T) {
	f := newFake(t)
	for _, host := range []ssh.Signer{nil, f.good} {
		f.again()
		if !f.bind(binds(t, f.good, f.good, "session", 0)) {
			t.Fatal("not bound")
		}
		data := login("session", f.lent, host)
		sig, err := f.sign(f.lent.PublicKey(), data, 0)
		if err != nil {
			t.Fatal(err, f.ev.list)
		}
		if err := f.lent.PublicKey().Verify(data, sig); err != nil {
			t.Error(err)
		}
		d := f.ev.last(t)
		if !d.Decision.Allowed() || d.Access.Act != cell.Sign || d.Access.Host != "good" || d.Access.Port != 22 || d.Decision.Credential != "deploy" ||
			d.Access.Key != ssh.FingerprintSHA256(f.lent.PublicKey()) || d.Policy.IsZero() || d.ID == "" {
			t.Errorf("%+v", d)
		}
	}
}

// Every way to a signature that was not lent, one by one.
func TestH60FilterRefuses(t *testing.T) {
	for name, x := range map[string]struct {
		do   func(f *fake) ([]byte, ssh.Signer)
		want string
	}{
		"a key that is not lent": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return login("s", f.other, nil), f.other
		}, "not lent"},
		"no binding": {func(f *fake) ([]byte, ssh.Signer) {
			return login("s", f.lent, nil), f.lent
		}, "did not say"},
		"another host, proven": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.evil, f.evil, "s", 0))
			return login("s", f.lent, nil), f.lent
		}, "not known"},
		"another host, claiming to be the lent one": {func(f *fake) ([]byte, ssh.Signer) {
			if f.bind(binds(t, f.good, f.evil, "s", 0)) {
				t.Error("bound without the host's signature")
			}
			return login("s", f.lent, nil), f.lent
		}, "did not say"},
		"a session that was not proven": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return login("other", f.lent, nil), f.lent
		}, "another connection"},
		"another host in the log-in": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return login("s", f.lent, f.evil), f.lent
		}, "another host key"},
		"a session bound twice": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.evil, f.evil, "s", 0))
			if f.bind(binds(t, f.good, f.good, "s", 0)) {
				t.Error("bound again")
			}
			return login("s", f.lent, nil), f.lent
		}, "not known"},
		"a forwarded agent": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "first", 1))
			f.bind(binds(t, f.good, f.good, "s", 0))
			return login("s", f.lent, nil), f.lent
		}, "forwarded"},
		"another key in the log-in": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return login("s", f.other, nil), f.lent
		}, "another key"},
		"a file": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return append([]byte("SSHSIG"), texts([]byte("file"), nil, []byte("sha512"), make([]byte, 64))...), f.lent
		}, "no log-in"},
		"a commit": {func(f *fake) ([]byte, ssh.Signer) {
			return signed("git", "sha512", 64), f.lent
		}, "not for signatures of git"},
		"more after the log-in": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return append(login("s", f.lent, nil), 0), f.lent
		}, "no log-in"},
		"nothing": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			return nil, f.lent
		}, "no log-in"},
		"taken back": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			if err := f.Govern(nil, decider("good")); err != nil {
				t.Fatal(err)
			}
			return login("s", f.lent, nil), f.lent
		}, "not lent"},
		"the policy": {func(f *fake) ([]byte, ssh.Signer) {
			f.bind(binds(t, f.good, f.good, "s", 0))
			if err := f.Govern(f.cfg.Keys, decider("another")); err != nil {
				t.Fatal(err)
			}
			return login("s", f.lent, nil), f.lent
		}, "no rule allows good"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			data, key := x.do(f)
			if sig, err := f.sign(key.PublicKey(), data, 0); err == nil {
				t.Fatalf("it was signed: %v", sig)
			}
			if d := f.ev.last(t); d.Decision.Allowed() || !strings.Contains(d.Decision.Reason, x.want) {
				t.Errorf("%+v, want %q", d.Decision, x.want)
			}
		})
	}
}

// signed makes what ssh-keygen -Y sign has an agent sign.
func signed(namespace, hash string, size int) []byte {
	return append([]byte("SSHSIG"), texts([]byte(namespace), nil, []byte(hash), make([]byte, size))...)
}

// A key that is lent for git signs what has git's namespace, and nothing else; each is an event with what it was for.
func TestH60FilterSignsForGit(t *testing.T) {
	f := newFake(t)
	key := f.lent.PublicKey()
	if err := f.Govern([]cell.LentKey{{Handle: "signing", Key: ssh.FingerprintSHA256(key), Git: true}}, decider("good")); err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{signed("git", "sha512", 64), signed("git", "sha256", 32)} {
		sig, err := f.sign(key, data, 0)
		if err != nil {
			t.Fatal(err, f.ev.list)
		}
		if err := key.Verify(data, sig); err != nil {
			t.Error(err)
		}
		if d := f.ev.last(t); !d.Decision.Allowed() || d.Access.Signs != "git" || d.Access.Host != "" || d.Decision.Credential != "signing" || d.Access.Want() != "sign for git with "+ssh.FingerprintSHA256(key) {
			t.Errorf("%+v", d)
		}
	}
	f.bind(binds(t, f.good, f.good, "s", 0))
	for what, x := range map[string]struct {
		data []byte
		key  ssh.Signer
		want string
	}{
		"a file":                     {signed("file", "sha512", 64), f.lent, "no commit or tag"},
		"a namespace that is longer": {signed("git\x00", "sha512", 64), f.lent, "no commit or tag"},
		"no namespace":               {signed("", "sha512", 64), f.lent, "no log-in"},
		"a digest that is none":      {signed("git", "sha512", 63), f.lent, "no log-in"},
		"another hash":               {signed("git", "md5", 16), f.lent, "no log-in"},
		"more":                       {append(signed("git", "sha512", 64), 0), f.lent, "no log-in"},
		"less":                       {signed("git", "sha512", 64)[:40], f.lent, "no log-in"},
		"a log-in":                   {login("s", f.lent, nil), f.lent, "git alone"},
		"another key":                {signed("git", "sha512", 64), f.other, "not lent"},
	} {
		if _, err := f.sign(x.key.PublicKey(), x.data, 0); err == nil {
			t.Errorf("%s was signed", what)
		} else if d := f.ev.last(t); d.Decision.Allowed() || d.Access.Signs != "" || !strings.Contains(d.Decision.Reason, x.want) {
			t.Errorf("%s: %+v", what, d)
		}
	}
	f.bind(binds(t, f.good, f.good, "forwarded", 1))
	if _, err := f.sign(key, signed("git", "sha512", 64), 0); err == nil {
		t.Error("it was signed for a forwarded agent")
	}
}

// A key that two credentials lend is for what each of them says, and each use is that of the one that allows it.
func TestFilterKeyOfTwoCredentials(t *testing.T) {
	f := newFake(t)
	key := f.lent.PublicKey()
	if err := f.Govern(append(f.cfg.Keys, cell.LentKey{Handle: "signing", Key: ssh.FingerprintSHA256(key), Git: true}), decider("good")); err != nil {
		t.Fatal(err)
	}
	if list, err := f.list(); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	f.bind(binds(t, f.good, f.good, "s", 0))
	for handle, data := range map[string][]byte{"signing": signed("git", "sha512", 64), "deploy": login("s", f.lent, nil)} {
		if _, err := f.sign(key, data, 0); err != nil {
			t.Error(handle, err)
		}
		if d := f.ev.last(t); !d.Decision.Allowed() || d.Decision.Credential != handle {
			t.Errorf("%+v", d)
		}
	}
}

// A cell that asks a million times does not make a million events, and each is
// counted.
func TestFilterCountsFloods(t *testing.T) {
	f := newFake(t)
	const n = 5000
	for range n {
		f.sign(f.lent.PublicKey(), nil, 0)
	}
	f.Flush()
	var sum int64
	for _, d := range f.ev.list {
		sum += d.Count
	}
	if sum != n || len(f.ev.list) > 2*told {
		t.Errorf("%d in %d events", sum, len(f.ev.list))
	}
}

// Messages that are no messages end the connection or are refused; nothing
// else happens, and the agent behind is as it was.
func TestFilterChangesNothing(t *testing.T) {
	f := newFake(t)
	here, there := net.Pipe()
	defer here.Close()
	go f.serve(there) // which closes it
	for kind := range 256 {
		if kind == msgList {
			continue
		}
		msg := []byte{0, 0, 0, 1, byte(kind)}
		if _, err := here.Write(msg); err != nil {
			t.Fatal(err)
		}
		var answer [5]byte
		if _, err := io.ReadFull(here, answer[:]); err != nil || answer[4] != msgFailure {
			t.Errorf("message %d: %v, %v", kind, answer, err)
		}
	}
	here.Write([]byte{0xff, 0xff, 0xff, 0xff})
	if _, err := here.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a message of 4 GiB: %v", err)
	}
	if keys, err := f.list(); err != nil || len(keys) != 1 {
		t.Error(keys, err)
	}
}

func FuzzFilter(f *testing.F) {
	x := newFake(f)
	good := binds(f, x.good, x.good, "s", 0)
	for _, msg := range [][]byte{
		{msgList}, append([]byte{msgExtension}, append(texts([]byte(sessionBind)), good...)...),
		append(append([]byte{msgSign}, texts(x.lent.PublicKey().Marshal(), login("s", x.lent, nil))...), 0, 0, 0, 0),
		append(append([]byte{msgSign}, texts(x.lent.PublicKey().Marshal(), login("s", x.lent, x.evil))...), 0, 0, 0, 0),
		append(append([]byte{msgSign}, texts(x.lent.PublicKey().Marshal(), signed("git", "sha512", 64))...), 0, 0, 0, 0),
	} {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		boundtest.Allocates(t, len(msg), func() {
			if len(msg) == 0 {
				return
			}
			x.again() // nothing is bound: whatever is said, nothing is signed
			if out := x.answer(msg[0], msg[1:]); len(out) == 0 || out[0] == msgSignature {
				t.Fatalf("%v", out)
			}
			x.ev.list = nil
		})
	})
}
