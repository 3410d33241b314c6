package sshagent

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// openssh is a place with OpenSSH's own programs: an agent with two keys, and
// two servers that take both, of which the first is known as "good" and the
// second as "evil".
type openssh struct {
	*testing.T
	dir    string
	user   string
	agent  string // the caller's own socket
	filter *Filter
	socket string // what the cell sees
	ev     events
	ports  map[string]int
	lent   string // fingerprint
}

func newOpenSSH(t *testing.T) *openssh {
	t.Helper()
	sshd := "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		t.Skip("needs the program sshd")
	}
	for _, p := range []string{"ssh", "ssh-agent", "ssh-add", "ssh-keygen"} {
		testenv.Program(t, p)
	}
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	o := &openssh{T: t, dir: t.TempDir(), user: u.Username, ports: map[string]int{}}
	if os.Geteuid() == 0 { // sshd insists on it, for each connection too: it stays, since another test may have one
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var authorized []byte
	for _, k := range []string{"lent", "other"} {
		o.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", k, "-f", o.path(k))
		b, _ := os.ReadFile(o.path(k + ".pub"))
		authorized = append(authorized, b...)
	}
	o.write("authorized", authorized)
	var known bytes.Buffer
	for _, host := range []string{"good", "evil"} {
		o.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", o.path(host))
		port := o.freePort()
		o.ports[host] = port
		o.write(host+".conf", fmt.Appendf(nil, `Port %d
ListenAddress 127.0.0.1
HostKey %s
AuthorizedKeysFile %s
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
AllowAgentForwarding yes
`, port, o.path(host), o.path("authorized")))
		o.start(sshd, "-D", "-e", "-f", o.path(host+".conf"))
		b, _ := os.ReadFile(o.path(host + ".pub"))
		fmt.Fprintf(&known, "[127.0.0.1]:%d %s", port, b)
		o.until(func() bool {
			c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
	o.write("known_hosts", known.Bytes())
	o.agent = o.path("agent")
	o.start("ssh-agent", "-D", "-a", o.agent)
	o.until(func() bool { _, err := os.Stat(o.agent); return err == nil })
	for _, k := range []string{"lent", "other"} {
		if out, err := o.run(o.agent, "ssh-add", "-q", o.path(k)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	b, _ := os.ReadFile(o.path("lent.pub"))
	pub, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		t.Fatal(err)
	}
	o.lent = ssh.FingerprintSHA256(pub)
	good, err := Known("127.0.0.1", uint16(o.ports["good"]), o.path("known_hosts"), o.path("none"))
	if err != nil {
		t.Fatal(err)
	}
	up, err := net.Dial("unix", o.agent)
	if err != nil {
		t.Fatal(err)
	}
	o.filter, err = New(Config{Upstream: up, Policy: decider("127.0.0.1"), Emit: o.ev.emit, Keys: []cell.LentKey{{Handle: "deploy", Key: o.lent, Hosts: []cell.KnownHost{good}}}})
	if err != nil {
		t.Fatal(err)
	}
	o.socket = o.path("filtered")
	l, err := net.Listen("unix", o.socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() { o.filter.Serve(l); close(done) }()
	t.Cleanup(func() {
		l.Close()
		o.filter.Close()
		up.Close()
		<-done
	})
	return o
}

func (o *openssh) path(name string) string { return filepath.Join(o.dir, name) }

func (o *openssh) write(name string, b []byte) {
	o.Helper()
	if err := os.WriteFile(o.path(name), b, 0o600); err != nil {
		o.Fatal(err)
	}
}

func (o *openssh) freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start starts a server, which ends with the test and takes its children along.
func (o *openssh) start(name string, args ...string) {
	o.Helper()
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		if o.Failed() {
			o.Logf("%s said:\n%s", name, out.String())
		}
	})
}

func (o *openssh) until(so func() bool) {
	o.Helper()
	testenv.Eventually(o, so, "the start of a server")
}

// run runs a program with an agent.
func (o *openssh) run(socket, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.dir, "SSH_AUTH_SOCK=" + socket}
	cmd.Dir = o.dir
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (o *openssh) must(name string, args ...string) {
	o.Helper()
	if out, err := o.run("", name, args...); err != nil {
		o.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// ssh logs in to a host and runs a command there.
func (o *openssh) ssh(socket, host string, args ...string) (string, error) {
	all := []string{"-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + o.path("known_hosts"), "-o", "ConnectTimeout=10",
		"-p", strconv.Itoa(o.ports[host])}
	return o.run(socket, "ssh", append(append(all, o.user+"@127.0.0.1"), args...)...)
}

func TestH60OpenSSH(t *testing.T) {
	o := newOpenSSH(t)
	if out, err := o.ssh(o.agent, "evil", "echo in"); err != nil {
		t.Fatalf("the caller can't log in at all: %v\n%s", err, out)
	}

	out, err := o.run(o.socket, "ssh-add", "-l")
	if err != nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, o.lent) {
		t.Errorf("ssh-add -l: %v\n%s", err, out)
	}
	if out, err := o.ssh(o.socket, "good", "echo logged in"); err != nil || out != "logged in\n" {
		t.Errorf("log-in: %v\n%s", err, out)
	}
	if d := o.ev.last(t); !d.Decision.Allowed() || d.Access.Port != uint16(o.ports["good"]) || d.Access.Key != o.lent || d.Decision.Credential != "deploy" {
		t.Errorf("%+v", d)
	}

	if out, err := o.ssh(o.socket, "evil", "echo in"); err == nil {
		t.Errorf("logged in elsewhere: %s", out)
	}
	if d := o.ev.last(t); d.Decision.Allowed() || !strings.Contains(d.Decision.Reason, "not known") {
		t.Errorf("%+v", d)
	}

	// The agent is forwarded to the lent host, and a program there tries it.
	o.must("cp", o.path("known_hosts"), o.path("known2"))
	inner := fmt.Sprintf("ssh -F none -o BatchMode=yes -o UserKnownHostsFile=%s -p %d %s@127.0.0.1 echo inner", o.path("known2"), o.ports["good"], o.user)
	all := []string{"-A", inner}
	cmd := append([]string{"-F", "none", "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=" + o.path("known_hosts"), "-p", strconv.Itoa(o.ports["good"])}, all[0], o.user+"@127.0.0.1", all[1])
	if out, err := o.run(o.socket, "ssh", cmd...); err == nil || strings.Contains(out, "inner\n") {
		t.Errorf("a forwarded agent signs: %s", out)
	}
	if d := o.ev.last(t); d.Decision.Allowed() || !strings.Contains(d.Decision.Reason, "forwarded") {
		t.Errorf("%+v", d)
	}

	o.write("file", []byte("text"))
	if out, err := o.run(o.socket, "ssh-keygen", "-Y", "sign", "-f", o.path("lent.pub"), "-n", "file", o.path("file")); err == nil {
		t.Errorf("a file was signed: %s", out)
	}
	if d := o.ev.last(t); d.Decision.Allowed() || !strings.Contains(d.Decision.Reason, "no log-in") {
		t.Errorf("%+v", d)
	}

	for _, args := range [][]string{{"-D"}, {"-d", o.path("lent.pub")}, {o.path("other")}, {"-X"}} {
		if out, err := o.run(o.socket, "ssh-add", args...); err == nil {
			t.Errorf("ssh-add %v: %s", args, out)
		}
	}
	if out, err := o.run(o.agent, "ssh-add", "-l"); err != nil || strings.Count(out, "\n") != 2 {
		t.Errorf("the caller's agent was changed: %v\n%s", err, out)
	}

	// A client that does not say where it is connected to.
	c, err := net.Dial("unix", o.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	old := agent.NewClient(c)
	_, err = ssh.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", o.ports["good"]), &ssh.ClientConfig{User: o.user, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(old.Signers)}})
	if err == nil {
		t.Error("a client without session-bind logged in")
	}
	if d := o.ev.last(t); d.Decision.Allowed() || !strings.Contains(d.Decision.Reason, "did not say") {
		t.Errorf("%+v", d)
	}

	// Taken back: at once, also on connections that are open.
	if err := o.filter.Govern(nil, decider("127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if keys, err := old.List(); err != nil || len(keys) != 0 {
		t.Errorf("%v, %v", keys, err)
	}
	if out, err := o.ssh(o.socket, "good", "echo in"); err == nil {
		t.Errorf("logged in: %s", out)
	}
}

// The caller's agent goes away: the cell gets refusals, not a hang.
func TestFilterWithoutUpstream(t *testing.T) {
	a, b := net.Pipe()
	f, err := New(Config{Upstream: a, Policy: decider("good"), Emit: func(string, any) {}})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if out := (&session{f: f}).answer(msgList, nil); len(out) != 1 || out[0] != msgFailure {
		t.Errorf("%v", out)
	}
	if _, err := (&session{f: f}).list(); err == nil || err == io.ErrUnexpectedEOF {
		t.Error(err)
	}
}

func TestKnown(t *testing.T) {
	dir := t.TempDir()
	key := func() string {
		s, _ := newKey(t)
		return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey())))
	}
	one, two, bad := key(), key(), key()
	file := filepath.Join(dir, "known_hosts")
	os.WriteFile(file, []byte("github.com "+one+"\ngithub.com,x "+bad+"\n@revoked * "+bad+"\n[git.example.com]:2222 "+two+"\n"), 0o600)
	k, err := Known("github.com", 22, file, filepath.Join(dir, "none"))
	if err != nil || len(k.Keys) != 1 || k.Keys[0] != one {
		t.Errorf("%+v, %v", k, err)
	}
	if k, err := Known("git.example.com", 2222, file); err != nil || len(k.Keys) != 1 || k.Keys[0] != two {
		t.Errorf("%+v, %v", k, err)
	}
	for host, port := range map[string]uint16{"git.example.com": 22, "gitlab.com": 22} {
		if _, err := Known(host, port, file); cell.KindOf(err) != cell.NotFound || !strings.Contains(cell.HintOf(err), host) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := Known("github.com", 22, filepath.Join(dir, "none")); cell.KindOf(err) != cell.NotFound {
		t.Error(err)
	}
	os.WriteFile(file, []byte("github.com ssh-ed25519 notbase64\n"), 0o600)
	if _, err := Known("github.com", 22, file); cell.KindOf(err) != cell.Invalid {
		t.Error(err)
	}
}
