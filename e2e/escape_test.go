package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A program in a cell tries to get out, and to reach the host's or another cell's objects. Every
// attempt is refused, and the bait on the host is untouched. This test's own program makes the
// attempts: see escape_probe_test.go.
func TestEscape(t *testing.T) {
	t.Parallel()
	t.Run("silent", func(t *testing.T) { escape(t) })
	t.Run("talking", func(t *testing.T) { escape(t, "--allow", "other.example") })
	// What an interpreter starts has no Landlock domain, and a fork's namespaces
	// were made around it.
	t.Run("evaluated", func(t *testing.T) { escapeBy(t, fromFork, interpreters) })
	t.Run("branched", func(t *testing.T) { escapeBy(t, fromBranch, interpreters) })
}

func escape(t *testing.T, flags ...string) { escapeBy(t, fromRun, nil, flags...) }

// interpreters are attempts that work, and lead nowhere, where an interpreter
// makes them: it is the first process of its cell itself, and /.pando is a file
// system of its own.
var interpreters = []string{"/proc/1/", "the first process", "first process without filter", "create /.pando/"}

// The probe is this program, in which the scanner for secrets finds its own patterns.

// fromRun has the probe run as the command of cell c, told by a variable.
func fromRun(h *host, variable string, flags []string) outcome {
	return h.try(slices.Concat([]string{"run", "--cell", "c", "--env", variable, "--with-secret", "probe"}, flags, []string{"--", "./probe"})...)
}

// fromFork has an interpreter in c start it, which was forked from a template.
func fromFork(h *host, variable string, _ []string) outcome {
	h.pando("template", "build", "warm", "--warm", "python", "--from", h.src, "--with-secret", "probe", "--setup", "import os, subprocess")
	h.pando("fork", "warm", "--name", "c")
	return h.evaluates("c", variable)
}

// fromBranch has a branch start it.
func fromBranch(h *host, variable string, _ []string) outcome {
	h.pando("template", "build", "warm", "--warm", "python", "--from", h.src, "--with-secret", "probe", "--setup", "import os, subprocess")
	h.pando("fork", "warm", "--name", "source")
	h.pando("eval", "source", "1")
	h.pando("branch", "source", "--name", "c")
	return h.evaluates("c", variable)
}

func (h *host) evaluates(cell, variable string) outcome {
	name, value, _ := strings.Cut(variable, "=")
	h.writeAt(filepath.Join(h.work, "code.py"), fmt.Sprintf("os.environ[%q] = %q\n_ = subprocess.run(['./probe'])", name, value))
	return h.try("eval", cell, "@"+filepath.Join(h.work, "code.py"))
}

// escapeBy has the probe started by start; own are parts of the names of attempts
// that reach nothing but the cell itself.
func escapeBy(t *testing.T, start func(h *host, variable string, flags []string) outcome, own []string, flags ...string) {
	h := newHost(t)
	self, err := os.Executable()
	h.must(err)
	copyProgram(t, self, filepath.Join(h.src, "probe"))

	// What is laid out.
	secret := filepath.Join(h.work, "home", ".ssh", "id_ed25519")
	victim := filepath.Join(h.work, "victim")
	h.writeAt(secret, "a key")
	h.writeAt(victim, "victim")
	h.must(os.Chmod(victim, 0o666))
	h.pando("run", "--cell", "other", "--", "sh", "-c", "echo other > secret; sleep 60 >/dev/null 2>&1 & echo $HOME > ~/mine")
	other := h.cell("other").ID
	b := bait{
		Files: []string{victim, secret, h.state("ledger", "entries"), h.state("keys", "receipt.key"), h.state("registry.log"), h.state("layers"), h.state("cells", other, "home", "mine"),
			h.socket(), filepath.Join(h.work, ".pando/run/keepers", other+".sock"), "/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"},
		Sockets:   []string{h.socket(), filepath.Join(h.work, ".pando/run/keepers", other+".sock"), filepath.Join(h.work, "host.sock")},
		Abstract:  "@pando-escape-" + filepath.Base(h.work),
		PIDs:      append(ours(h.work), os.Getpid()),
		SharedKey: 0x70616e64,
		Talks:     len(flags) > 0,
	}
	for _, at := range []string{b.Abstract, b.Sockets[2]} {
		l, err := net.Listen("unix", at)
		h.must(err)
		defer l.Close()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	h.must(err)
	defer l.Close()
	b.TCP = l.Addr().String()
	shm, err := unix.SysvShmGet(b.SharedKey, 4096, unix.IPC_CREAT|0o666)
	h.must(err)
	defer unix.SysvShmCtl(shm, unix.IPC_RMID, nil)
	var st unix.Stat_t
	h.must(unix.Stat(h.work, &st))
	b.HomeFD = st.Ino
	for _, f := range b.Files[:9] { // what is not there would be refused for the wrong reason
		if _, err := os.Lstat(f); err != nil {
			t.Fatalf("nothing is laid out: %v", err)
		}
	}
	hostname, _ := os.Hostname()

	text, err := json.Marshal(b)
	h.must(err)
	o := start(h, probeEnv+"="+string(text), flags)
	if o.code != 0 {
		t.Fatalf("the probe: exit code %d\n%s%s", o.code, o.out, o.stderr)
	}
	var tried []attempt
	h.must(json.Unmarshal([]byte(o.out), &tried))
	if len(tried) < 200 {
		t.Errorf("only %d attempts were made", len(tried))
	}
	for _, a := range tried {
		if a.Refused == "" && !slices.ContainsFunc(own, func(s string) bool { return strings.Contains(a.Name, s) }) {
			t.Errorf("%s: worked\n%s", a.Name, o.stderr)
		}
		if strings.Contains(a.Refused, "function not implemented") && !strings.Contains("clone3 io_uring memfd_secret", a.Name) {
			t.Errorf("%s: not refused by the cell: %s", a.Name, a.Refused)
		}
	}

	// The host, and the other cell, are as before.
	if got := h.readAt(victim); got != "victim" {
		t.Errorf("the victim is now %q", got)
	}
	if now, _ := os.Hostname(); now != hostname {
		t.Errorf("the host's name is now %q", now)
	}
	if got := h.inCell("other", "cat secret"); got != "other\n" {
		t.Errorf("the other cell's file is now %q", got)
	}
	if v := h.verify(); !v.OK {
		t.Errorf("the ledger does not verify: %+v", v)
	}
	if own == nil {
		setuidStaysInside(h)
	}
}

// setuidStaysInside inspects from the host the set-uid file that the probe made: no other user
// can reach it, and no way out keeps its bits.
func setuidStaysInside(h *host) {
	h.t.Helper()
	found := 0
	filepath.WalkDir(filepath.Join(h.work, ".pando"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if i, err := d.Info(); err == nil && i.Mode().IsRegular() && i.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			found++
			if !private(p) {
				h.t.Errorf("%s is %v, and others can reach it", p, i.Mode())
			}
		}
		return nil
	})
	if found == 0 {
		h.t.Error("the probe made no set-uid file")
	}
	h.pando("cp", "c:suid", filepath.Join(h.work, "copied"))
	h.pando("accept", "c", "--apply")
	for _, p := range []string{filepath.Join(h.work, "copied"), filepath.Join(h.src, "suid")} {
		i, err := os.Lstat(p)
		h.must(err)
		if i.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || int(i.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			h.t.Errorf("%s is %v", p, i.Mode())
		}
	}
}

// private reports whether a directory above p is closed to others.
func private(p string) bool {
	for d := filepath.Dir(p); d != "/"; d = filepath.Dir(d) {
		if i, err := os.Stat(d); err == nil && i.Mode().Perm()&0o077 == 0 && int(i.Sys().(*syscall.Stat_t).Uid) == os.Getuid() {
			return true
		}
	}
	return false
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	must(t, err)
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(dst, src)
	must(t, err)
	must(t, dst.Close())
}

// A program that is named like its starter would be the host's pando itself, with a way to write
// to it: a cell that names it as a program or as an interpreter gets nothing.
func TestEscapeByTheKeepersProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(os.Symlink("/proc/self/exe", filepath.Join(h.src, "link")))
	h.write("script", "#!/proc/self/exe\n")
	h.must(os.Chmod(filepath.Join(h.src, "script"), 0o755))
	h.pando("run", "--cell", "c", "--", "true")
	for _, p := range []string{"./link", "./script", "/proc/self/exe"} {
		for _, args := range [][]string{{"run", "--"}, {"exec", "c", "--"}} {
			// Refused by the kernel, or said not to be there: but never executed.
			if o := h.try(append(args, p, "version")...); o.code != 126 && o.code != 127 || o.out != "" {
				t.Errorf("%s %s: exit code %d\n%s%s", args[0], p, o.code, o.out, o.stderr)
			}
		}
	}
	o := h.try("run", "--", "sh", "-c", "for f in /proc/[0-9]*/exe; do readlink $f; done; cat /proc/1/exe")
	if strings.Contains(o.out, "pando") {
		t.Errorf("a process of the cell runs pando:\n%s", o.out)
	}
}
