package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// booted is a systemd with pando's units, in namespaces of its own: see units.sh.
type booted struct {
	t    *testing.T
	work string
	pid  int
	env  []string
}

func boot(t *testing.T) *booted {
	t.Helper()
	testenv.Root(t)
	for _, p := range []string{"systemctl", "systemd-analyze", "journalctl", "unshare", "nsenter", "ip", "curl"} {
		testenv.Program(t, p)
	}
	work, units := t.TempDir(), t.TempDir()
	b := &booted{t: t, work: work}
	for _, name := range []string{"sysinit", "basic", "sockets", "network", "shutdown", "umount", "local-fs"} {
		must(t, os.WriteFile(filepath.Join(units, name+".target"), []byte("[Unit]\nDefaultDependencies=no\n"), 0o644))
	}
	must(t, os.WriteFile(filepath.Join(units, "multi-user.target"), []byte("[Unit]\nRequires=pando.socket systemd-journald.socket\n"), 0o644))
	for _, pattern := range []string{"../packaging/systemd/*", "/lib/systemd/system/systemd-journald.service", "/lib/systemd/system/systemd-journald.socket"} {
		list, err := filepath.Glob(pattern)
		must(t, err)
		for _, from := range list {
			text, err := os.ReadFile(from)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(units, filepath.Base(from)), text, 0o644))
		}
	}
	c := exec.Command("./units.sh", work, units, filepath.Dir(built))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := os.Create(filepath.Join(work, "out"))
	must(t, err)
	c.Stdout, c.Stderr = out, out
	must(t, c.Start())
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"out", "systemd.log"} {
				text, _ := os.ReadFile(filepath.Join(work, name))
				t.Logf("%s:\n%s", name, text)
			}
			if b.pid > 0 {
				t.Log(b.try("journalctl --no-pager -u pando -n 40; systemctl --no-pager status pando pando.socket"))
			}
		}
		c.Process.Kill()
		c.Wait()
		list, _ := os.ReadFile(filepath.Join(work, "cgroups"))
		for _, dir := range strings.Fields(string(list)) {
			for range 100 { // its processes are just ending
				if exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run(); gone(dir) {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if !gone(dir) {
				t.Errorf("%s is left", dir)
			}
		}
	})
	b.until("systemd to begin", 10*time.Second, func() bool {
		children, _ := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/task/" + strconv.Itoa(c.Process.Pid) + "/children")
		pid, _ := strconv.Atoi(strings.TrimSpace(string(children)))
		if pid == 0 || !strings.HasPrefix(processName(pid), "systemd") && !strings.Contains(commandLine(pid), "systemd --system") {
			return false
		}
		b.pid = pid
		return true
	})
	b.until("the socket", 15*time.Second, func() bool { return b.try("systemctl is-active pando.socket") == "active\n" })
	return b
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

func commandLine(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.ReplaceAll(string(text), "\x00", " ")
}

func (b *booted) until(what string, d time.Duration, ok func() bool) {
	b.t.Helper()
	for began := time.Now(); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > max(d, testenv.Patience()) {
			b.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (b *booted) command(script string) *exec.Cmd {
	c := exec.Command("nsenter", "-t", strconv.Itoa(b.pid), "-m", "-p", "-C", "-i", "-u", "-n", "sh", "-c", "cd /srv/src; "+script)
	c.Env = append([]string{"HOME=/root", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NO_COLOR=1", "SYSTEMD_UNIT_PATH=/run/units"}, b.env...)
	return c
}

// try runs a script there and returns what it says, however it ends.
func (b *booted) try(script string) string {
	out, _ := b.command(script).CombinedOutput()
	return string(out)
}

// sh runs a script, which must succeed.
func (b *booted) sh(script string) string {
	b.t.Helper()
	out, err := b.command(script).CombinedOutput()
	if err != nil {
		b.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// answers waits until the daemon takes work, and returns the service's process.
func (b *booted) answers() string {
	b.t.Helper()
	b.until("the daemon to answer", 20*time.Second, func() bool { return b.try("curl -sS -m 5 http://127.0.0.1:7070/readyz") == "ok\n" })
	return strings.TrimSpace(b.sh("systemctl show -P MainPID pando"))
}

// TestF55UnitsAreStarted starts the shipped units under a real systemd: the socket starts the
// service, which reports its state, is reloaded, killed, hangs, is stopped and started again,
// while a cell survives.
func TestF55UnitsAreStarted(t *testing.T) {
	t.Parallel()
	b := boot(t)
	if out := b.try("systemd-analyze verify --man=no /run/units/pando.service /run/units/pando.socket"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	// The watchdog's minute is too long for a test.
	b.sh("mkdir /run/units/pando.service.d; printf '[Service]\\nWatchdogSec=4s\\nRestartSec=100ms\\n' >/run/units/pando.service.d/fast.conf; systemctl daemon-reload")
	if state := b.try("systemctl is-active pando"); state != "inactive\n" {
		t.Fatalf("before anybody asked the service is %s", state)
	}
	b.answers()
	b.until("its status", 5*time.Second, func() bool { // systemd hears of it by a message
		return b.sh("systemctl show -P StatusText pando") == "answers at http://127.0.0.1:7070\n"
	})
	b.env = []string{"PANDO_HOST=http://127.0.0.1:7070", "PANDO_TOKEN=" + strings.TrimSpace(b.sh("pando token create me --scope admin --json | sed 's/.*\"secret\":\"\\([^\"]*\\)\".*/\\1/'"))}
	b.sh("echo 1 >file; pando run --cell web --from /srv/src --memory 200M -- true")
	b.sh("pando exec web -- sh -c 'setsid sleep 4321 </dev/null >/dev/null 2>&1 &'")
	// What pando does on a host without systemd it does here: the unit forbids nothing of it.
	b.sh("pando run --from /srv/src --allow example.test --disk 64M -- true")
	if d := decodedJSON[api.Diagnosis](t, b.sh("pando doctor --json")); !d.OK {
		t.Errorf("under the unit: %+v", d)
	}
	lives := func(when string) {
		t.Helper()
		if ps := b.sh("pando ps web"); !strings.Contains(ps, "sleep 4321") {
			t.Errorf("%s nothing runs in the cell:\n%s", when, ps)
		}
		if out := b.sh("pando exec web -- cat file"); out != "1\n" {
			t.Errorf("%s the cell has %q", when, out)
		}
	}
	lives("at first")
	b.sh("pando pause web && pando resume web") // the unit's umask leaves the cell's cgroup accessible
	if log := b.try("journalctl --no-pager -u pando"); !strings.Contains(log, "daemon is ready") {
		t.Errorf("the journal has: %s", log)
	}

	b.sh("mv /var/lib/pando/audit.jsonl /var/lib/pando/audit.old; systemctl reload pando")
	b.until("a new audit log", 5*time.Second, func() bool {
		return b.try("pando ls >/dev/null; test -s /var/lib/pando/audit.jsonl && echo yes") == "yes\n"
	})

	first := b.answers()
	b.sh("kill -9 " + first)
	b.until("another daemon", 20*time.Second, func() bool {
		pid := strings.TrimSpace(b.try("systemctl show -P MainPID pando"))
		return pid != first && pid != "0"
	})
	second := b.answers()
	lives("after the service was killed")

	b.sh("kill -STOP $(cat /sys/fs/cgroup/systemd/system.slice/pando.service/cgroup.procs /sys/fs/cgroup/system.slice/pando.service/cgroup.procs 2>/dev/null | while read p; do grep -q ^pando-daemon /proc/$p/cmdline && echo $p; done)")
	b.until("a hanging daemon to be started anew", 20*time.Second, func() bool {
		pid := strings.TrimSpace(b.try("systemctl show -P MainPID pando"))
		return pid != second && pid != "0"
	})
	b.answers()
	lives("after the daemon hung")

	b.sh("systemctl stop pando.socket pando")
	if state := b.try("systemctl is-active pando"); state != "inactive\n" {
		t.Errorf("after it was stopped the service is %s", state)
	}
	if out := b.try("pgrep -f 'sleep 4321'"); out == "" {
		t.Error("what ran in the cell has ended with the service")
	}
	b.sh("systemctl start pando.socket")
	b.answers()
	lives("after a stop")
	if v := decodedJSON[api.Verification](t, b.sh("pando receipt verify --all --json")); !v.OK {
		t.Errorf("%+v", v)
	}
	b.sh("pando rm --yes web")
}

func decodedJSON[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}
