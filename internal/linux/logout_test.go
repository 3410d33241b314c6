package linux

import (
	"os"
	"path/filepath"
	"testing"
)

// What a logout ends is told by the cgroup of the process, by whether its user lingers, and by the
// settings of logind.
func TestLogoutOf(t *testing.T) {
	const (
		service = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/pando.scope\n"
		session = "0::/user.slice/user-1000.slice/session-3.scope\n"
		booted  = "run/systemd/system/x"
		conf    = "etc/systemd/logind.conf"
		lingers = "var/lib/systemd/linger/ada"
	)
	for _, x := range []struct {
		name, cgroup string
		files        map[string]string
		want         AtLogout
	}{
		{"no systemd", service, nil, AtLogout{}},
		{"a service of the host's", "0::/system.slice/pando.service\n", map[string]string{booted: ""}, AtLogout{}},
		{"the user's systemd", service, map[string]string{booted: ""}, AtLogout{UID: "1000"}},
		{"the same with cgroup v1", "3:cpu:/x\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service/init.scope\n", map[string]string{booted: ""}, AtLogout{UID: "1000"}},
		{"a controller of cgroup v1", "3:cpu:/user.slice/user-1000.slice/user@1000.service\n1:name=systemd:/\n", map[string]string{booted: ""}, AtLogout{}},
		{"a user that lingers", service, map[string]string{booted: "", lingers: ""}, AtLogout{}},
		{"a user without a name", "0::/user.slice/user-7.slice/user@7.service\n", map[string]string{booted: ""}, AtLogout{}},
		{"a login", session, map[string]string{booted: "", conf: "[Login]\n#KillUserProcesses=no\n"}, AtLogout{}},
		{"a login of which nothing is known", session, map[string]string{booted: ""}, AtLogout{}},
		{"a login that takes all along", session, map[string]string{booted: "", conf: "#KillUserProcesses=no\nKillUserProcesses=yes\n"}, AtLogout{UID: "1000", Session: true}},
		{"the same by default", session, map[string]string{booted: "", conf: "#KillUserProcesses=yes\n", lingers: ""}, AtLogout{UID: "1000", Session: true}},
		{"a later setting", session, map[string]string{booted: "", conf: "KillUserProcesses=yes\n", conf + ".d/a.conf": "KillUserProcesses=no\n#KillUserProcesses=yes\n"}, AtLogout{}},
	} {
		root := t.TempDir()
		write := func(path, text string) {
			at := filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/7/cgroup", x.cgroup)
		for path, text := range x.files {
			write(path, text)
		}
		name := func(uid string) string { return map[string]string{"1000": "ada"}[uid] }
		if got := LogoutOf(root, "7", name); got != x.want {
			t.Errorf("%s: %+v, not %+v", x.name, got, x.want)
		}
	}
}
