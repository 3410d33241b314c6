package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pando-dev/pando/internal/testenv"
)

// sshdCmd starts two SSH servers and an SSH agent for the script, on loopback. SSH_PORT is the
// port of the first, with a host key known for a.test, and SSH_PORT2 that of the second, for
// b.test; both accept both keys of the agent. SSH_KEY and SSH_KEY2 are the keys' fingerprints,
// SSH_USER is the user.
func sshdCmd(ts *testscript.TestScript, neg bool, args []string) {
	u, err := user.Current()
	ts.Check(err)
	dir := filepath.Join(ts.Getenv("WORK"), "ssh")
	ts.Check(os.MkdirAll(filepath.Join(ts.Getenv("HOME"), ".ssh"), 0o700))
	ts.Check(os.MkdirAll(dir, 0o700))
	if os.Geteuid() == 0 { // sshd insists on it, for each connection too: it stays, since another test may have one
		ts.Check(os.MkdirAll("/run/sshd", 0o755))
	}
	keygen := func(name string) (pub, sum string) {
		file := filepath.Join(dir, name)
		ts.Check(exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file).Run())
		b, err := os.ReadFile(file + ".pub")
		ts.Check(err)
		out, err := exec.Command("ssh-keygen", "-l", "-f", file).Output()
		ts.Check(err)
		return string(b), strings.Fields(string(out))[1]
	}
	var authorized, known string
	for i, name := range []string{"SSH_KEY", "SSH_KEY2"} {
		pub, sum := keygen("key" + strconv.Itoa(i))
		authorized += pub
		ts.Setenv(name, sum)
	}
	ts.Check(os.WriteFile(filepath.Join(dir, "authorized"), []byte(authorized), 0o600))
	for i, name := range []string{"SSH_PORT", "SSH_PORT2"} {
		host := fmt.Sprintf("%c.test", 'a'+i)
		pub, _ := keygen(host)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		ts.Setenv(name, strconv.Itoa(port))
		known += fmt.Sprintf("[%s]:%d %s", host, port, pub)
		conf := filepath.Join(dir, host+".conf")
		ts.Check(os.WriteFile(conf, fmt.Appendf(nil, "Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n",
			port, filepath.Join(dir, host), filepath.Join(dir, "authorized")), 0o600))
		background(ts, "/usr/sbin/sshd", "-D", "-e", "-f", conf)
		awaitPort(ts, port)
	}
	ts.Check(os.WriteFile(filepath.Join(ts.Getenv("HOME"), ".ssh/known_hosts"), []byte(known), 0o600))
	sock := filepath.Join(dir, "agent")
	background(ts, "ssh-agent", "-D", "-a", sock)
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(sock); err == nil {
			break
		}
		if time.Since(began) > testenv.Patience() {
			ts.Fatalf("ssh-agent does not come up")
		}
	}
	add := exec.Command("ssh-add", "-q", filepath.Join(dir, "key0"), filepath.Join(dir, "key1"))
	add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+sock)
	if out, err := add.CombinedOutput(); err != nil {
		ts.Fatalf("ssh-add: %v: %s", err, out)
	}
	ts.Setenv("SSH_AUTH_SOCK", sock)
	ts.Setenv("SSH_USER", u.Username)
}

// background starts a server that ends with the script.
func background(ts *testscript.TestScript, name string, args ...string) {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ts.Check(cmd.Start())
	ts.Defer(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
}

func awaitPort(ts *testscript.TestScript, port int) {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			c.Close()
			return
		}
		if time.Since(began) > testenv.Patience() {
			ts.Fatalf("nothing listens at port %d: %v", port, err)
		}
	}
}
