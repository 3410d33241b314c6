package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// allowedEnv is every variable that a cell may have here: what the test gives
// it, and what a shell adds.
var allowedEnv = regexp.MustCompile(`^(HOME|PATH|USER|LOGNAME|SHELL|TERM|LANG|LC_[A-Z]+|TZ|PANDO|PWD|OLDPWD|SHLVL|_|NO_COLOR|GOFLAGS|GOPROXY|GO[A-Z]*CACHE|PYENV_ROOT|CARGO_HOME|RUSTUP_HOME|CFLAGS|EDITOR|ASKED|NPM_CONFIG_UPDATE_NOTIFIER|NO_UPDATE_NOTIFIER|CARGO_NET_RETRY|PIP_RETRIES|UV_HTTP_RETRIES|npm_config_fetch_retries)$`)

// TestF60NothingOfTheUsersIsThere reads the mounts and the environment of a
// cell from inside. No mount shows the home directory, one above it or a place
// of secrets, under whatever name; no socket of the host can be reached; only
// listed variables pass, and no secret in any.
func TestF60NothingOfTheUsersIsThere(t *testing.T) {
	t.Parallel()
	t.Run("silent", func(t *testing.T) { nothingOfTheUsers(t) })
	t.Run("talking", func(t *testing.T) { nothingOfTheUsers(t, "--allow", "other.example") })
}

func nothingOfTheUsers(t *testing.T, flags ...string) {
	h := newHost(t)
	home := filepath.Join(h.work, "home")
	secrets := []string{".ssh/id_ed25519", ".aws/credentials", ".gnupg/private", ".config/gh/hosts.yml", ".docker/config.json", ".kube/config", ".netrc", ".npmrc", ".pypirc",
		".git-credentials", ".mozilla/firefox/x", ".claude/credentials.json", ".bash_history", ".local/share/keyrings/x", "Documents/letter"}
	for _, s := range secrets {
		h.writeAt(filepath.Join(home, s), "the user's own")
	}
	// Sockets of every agent, in a runtime directory that the environment names.
	run := filepath.Join(h.work, "run-user")
	var sockets []string
	for _, s := range []string{"bus", "docker.sock", "ssh/agent", "gnupg/S.gpg-agent", "wayland-0", "X11/X7", "pulse/native", "podman/podman.sock"} {
		at := filepath.Join(run, s)
		h.must(os.MkdirAll(filepath.Dir(at), 0o700))
		l, err := net.Listen("unix", at)
		h.must(err)
		defer l.Close()
		sockets = append(sockets, at)
	}
	const token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	h.env = append(h.env, "XDG_RUNTIME_DIR=", "SSH_AUTH_SOCK="+sockets[2], "DBUS_SESSION_BUS_ADDRESS=unix:path="+sockets[0], "DOCKER_HOST=unix://"+sockets[1], "DISPLAY=:7",
		"XAUTHORITY="+home+"/.Xauthority", "WAYLAND_DISPLAY=wayland-0", "GPG_AGENT_INFO="+sockets[3], "AWS_SECRET_ACCESS_KEY=aws-secret-value", "GITHUB_TOKEN="+token,
		"ANTHROPIC_API_KEY=sk-ant-0123456789abcdef0123456789", "KUBECONFIG="+home+"/.kube/config", "DATABASE_URL=postgres://u:pw-in-url@h/db", "MY_OWN=mine", "BASH_ENV=/tmp/x", "LD_PRELOAD=",
		"GOPROXY=https://user:pw-in-url@proxy.example.com", "CFLAGS="+token, "PROMPT_COMMAND=x", "EDITOR=vi", "HISTFILE="+home+"/.bash_history", "PANDO_TOKEN=pando-token-value")

	o := h.exits(0, append(append([]string{"run", "--cell", "c", "--env", "ASKED=yes"}, flags...), "--", "sh", "-c", `cat /proc/self/mountinfo; echo ---; tr '\0' '\n' </proc/self/environ; echo ---; while read -r _ _ _ _ at _; do stat -c '%d %i %n' "$at"; done </proc/self/mountinfo; echo ---; find / -xdev -type s 2>/dev/null; find /tmp /run /var "$HOME" -type s 2>/dev/null; echo ---; find "$HOME" | sort`)...)
	parts := strings.Split(o.out, "---\n")
	if len(parts) != 5 {
		t.Fatalf("cannot read what is inside:\n%s%s", o.out, o.stderr)
	}

	// The mounts: by what they are, which no other name or bind mount hides.
	private := map[string]string{}
	for dir := home; ; dir = filepath.Dir(dir) {
		private[identity(t, dir)] = dir
		if dir == "/" {
			break
		}
	}
	for _, s := range secrets {
		for p := filepath.Join(home, s); p != home; p = filepath.Dir(p) {
			private[identity(t, p)] = p
		}
	}
	private[identity(t, run)] = run
	for _, d := range []string{"/etc", "/run", "/var", "/root", "/home", "/sys", "/boot", h.state(), filepath.Join(h.work, ".pando")} {
		if _, err := os.Lstat(d); err == nil {
			private[identity(t, d)] = d
		}
	}
	mounts := 0
	for l := range strings.Lines(parts[2]) {
		f := strings.Fields(l)
		if what, bad := private[f[0]+" "+f[1]]; bad {
			t.Errorf("%s in the cell is %s of the host", f[2], what)
		}
		mounts++
	}
	if mounts < 10 {
		t.Errorf("only %d mounts were looked at:\n%s", mounts, o.out)
	}
	for l := range strings.Lines(parts[0]) {
		if f := strings.Fields(l); slices.Contains([]string{home, "/", filepath.Dir(home)}, f[3]) && strings.Contains(l, " - ext") {
			t.Errorf("a mount of the user's: %s", l)
		}
	}
	if s := strings.TrimSpace(parts[3]); s != "" {
		t.Errorf("sockets in the cell: %s", s)
	}
	for _, s := range secrets {
		if strings.Contains(parts[4], "/"+s) {
			t.Errorf("%s is in the cell", s)
		}
	}

	// The environment.
	for l := range strings.Lines(parts[1]) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), "=")
		if !allowedEnv.MatchString(name) && !(len(flags) > 0 && strings.HasPrefix(value, "/.pando/net/")) {
			t.Errorf("%s is passed on", name)
		}
		for _, bad := range []string{token, "aws-secret", "pw-in-url", "sk-ant", "pando-token", run, "mine"} {
			if strings.Contains(value, bad) {
				t.Errorf("%s has %q in the cell", name, value)
			}
		}
	}
	if !strings.Contains(parts[1], "EDITOR=vi\n") || !strings.Contains(parts[1], "ASKED=yes\n") {
		t.Errorf("what should pass does not:\n%s", parts[1])
	}
	// Nor does pando write any of it down.
	if out := h.sh(`grep -rsl -e "` + token + `" -e aws-secret-value -e pw-in-url -e pando-token-value "$PANDO_HOME" || true`); out != "" {
		t.Errorf("written down in %s", out)
	}
}

func identity(t *testing.T, path string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return fmt.Sprintf("%d %d", st.Dev, st.Ino)
}

// TestF60RefusedMounts requests forbidden mounts, by every name of them.
func TestF60RefusedMounts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	home := filepath.Join(h.work, "home")
	for _, s := range []string{".ssh/id", ".aws/credentials", ".config/gh/hosts.yml", ".gnupg/x", ".docker/config.json", ".kube/config", ".mozilla/x", ".netrc", "plain/file", ".SSH2/x", "withenv/.env", "sock/dir/file"} {
		h.writeAt(filepath.Join(home, s), "x")
	}
	for _, at := range []string{filepath.Join(home, "agent.sock"), filepath.Join(home, "sock", "s")} {
		l, err := net.Listen("unix", at)
		h.must(err)
		defer l.Close()
	}
	h.must(syscall.Mkfifo(filepath.Join(home, "pipe"), 0o600))
	for link, to := range map[string]string{"to-home": home, "to-ssh": filepath.Join(home, ".ssh"), "to-root": "/", "to-proc": "/proc/self/root", "chain": filepath.Join(h.work, "to-home")} {
		h.must(os.Symlink(to, filepath.Join(h.work, link)))
	}
	for _, src := range []string{
		home, home + "/", home + "/.", home + "/plain/..", filepath.Dir(home), "/", "//", "/tmp", "/home", "/root", "/etc", "/etc/passwd", "/run", "/var/run", "/var", "/var/lib", "/proc", "/proc/self/root", "/proc/1", "/sys", "/dev", "/dev/null", "/dev/shm",
		"/var/run/docker.sock", "~/.ssh", home + "/.ssh", home + "/.ssh/id", home + "/.aws", home + "/.config/gh", home + "/.config", home + "/.gnupg", home + "/.docker", home + "/.docker/config.json", home + "/.kube/config", home + "/.mozilla", home + "/.netrc",
		home + "/agent.sock", home + "/sock", home + "/pipe", home + "/withenv/.env", h.work + "/to-home", h.work + "/to-ssh", h.work + "/to-root", h.work + "/to-proc", h.work + "/to-proc" + home, h.work + "/chain", h.work + "/to-home/.ssh",
		h.work, h.work + "/.pando", h.state("keys"), h.state("cells"), h.socket(), "/proc/self/cwd", "/proc/self/fd/0",
	} {
		o := h.try("run", "--mount", src+":/mnt/x", "--", "true")
		if o.code != 125 || !strings.Contains(o.stderr, "cannot mount") {
			if _, err := os.Lstat(src); err != nil && o.code == 125 {
				continue // this host has none: it is refused as missing
			}
			t.Errorf("--mount %s: exit code %d\n%s", src, o.code, o.stderr)
		}
	}
	for _, dst := range []string{"/", "/etc", "/etc/x", "/usr", "/usr/bin", "/bin/sh", "/proc", "/proc/self", "/dev", "/sys", "/run", "/tmp", "/oldroot", "/run/pando", "/run/pando/x", home, filepath.Dir(home), h.src, "/lib/x", "relative", "/mnt/../etc"} {
		o := h.try("run", "--mount", home+"/plain:"+dst, "--", "true")
		if o.code != 125 || !strings.Contains(o.stderr, "cannot mount at") {
			t.Errorf("--mount …:%s: exit code %d\n%s", dst, o.code, o.stderr)
		}
	}
	for _, from := range []string{"/", home, filepath.Dir(home), "/etc", "/usr", "/proc/self/cwd", "/dev", home + "/.ssh", h.work + "/to-home", h.state()} {
		o := h.try("run", "--from", from, "--", "true")
		if o.code != 125 || !strings.Contains(o.stderr, "cannot use") {
			t.Errorf("--from %s: exit code %d\n%s", from, o.code, o.stderr)
		}
	}
	// What may be had is had, read-only unless asked otherwise, which is said.
	h.exits(3, "run", "--mount", home+"/plain:/mnt/x", "--", "sh", "-c", "cat /mnt/x/file >/dev/null && { (echo y > /mnt/x/file) 2>/dev/null || exit 3; }")
	out := h.pando("run", "--json", "--mount", home+"/plain:/mnt/x:rw", "--", "sh", "-c", "echo y > /mnt/x/new")
	if !strings.Contains(out, `"writable mount /mnt/x is outside rollback"`) {
		t.Errorf("the downgrade is not named: %s", out)
	}
	if h.readAt(home+"/plain/file") != "x" || h.readAt(home+"/plain/new") != "y\n" {
		t.Error("the mounted directory is not as it must be")
	}
}
