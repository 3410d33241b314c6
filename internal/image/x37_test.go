package image

import (
	"crypto/md5"
	"fmt"
	"os"
	"testing"
)

// Files of /etc that all users may read and that are no secrets are in a cell. The host's
// files decide that, and no list of programs.
func TestX37EtcIsWhatEverybodyMayRead(t *testing.T) {
	f := newFake(t)
	shown := map[string]string{
		"chromium.d/default-flags": "export CHROMIUM_FLAGS", "matplotlibrc": "backend: agg", "gtk-3.0/settings.ini": "[Settings]", "wgetrc": "#http_proxy = x\n# passwd = \n", "pip.conf": "[global]\ntimeout = 60\n",
		"gitconfig": "[user]\n\tname = x\n", "npmrc": "fund=false\n", "apt/sources.list": "deb http://deb.debian.org/debian bookworm main\n", "apt/apt.conf.d/01x": "APT::X no;", "X11/rgb.txt": "rgb", "mke2fs.conf": "[defaults]",
		"debconf.conf": "Name: config\nAccept-Type: password\n", "unknown-program/x.conf": "colour = blue\n", "default/useradd": "SHELL=/bin/sh\n", "manpath.config": "MANPATH_MAP /bin /usr/share/man\n",
		"app.d/a.conf": "password_file = /run/secrets/x\ntoken = ${TOKEN}\nsecret: none\nmax_token=4096\n", "app.d/tokenizer.json": "{}", "redis.conf": "port 6379\n", "login.defs": "PASS_MAX_DAYS 99999\n",
	}
	for at, text := range shown {
		f.file("/etc/"+at, text)
	}
	v := f.view(f.plan())
	for at, text := range shown {
		if got, ok := v.read("/etc/" + at); !ok || got != text {
			t.Errorf("/etc/%s is %q, %v", at, got, ok)
		}
	}
}

// Content of a package is on every host and no secret, until it is changed here.
func TestX37PackagedFilesAreNoSecrets(t *testing.T) {
	f := newFake(t)
	keys, changed := "export GOOGLE_API_KEY=AIza0123456789012345678901234567890123456\n", "export GOOGLE_API_KEY="+canary+"\n"
	f.file("/etc/chromium.d/apikeys", keys)
	f.file("/etc/chromium.d/other", changed)
	f.file("/var/lib/dpkg/status", fmt.Sprintf("Package: chromium\nConffiles:\n /etc/chromium.d/apikeys %x\n /etc/chromium.d/other %x\n", md5.Sum([]byte(keys)), md5.Sum([]byte("#"+changed))))
	p := f.plan()
	v := f.view(p)
	if got, ok := v.read("/etc/chromium.d/apikeys"); !ok || got != keys {
		t.Errorf("as the package brought it: %q, %v", got, ok)
	}
	if got, ok := v.read("/etc/chromium.d/other"); ok {
		t.Errorf("as it was changed here: %q", got)
	}
	wantsNote(t, p, "/etc/chromium.d/other", "left out")
}

// A file with a secret in it is left out and named, even if all users may read it. So is
// everything about the host itself: its users, its networks, its disks, its services.
func TestX37SecretsOfEtcAreLeftOutAndNamed(t *testing.T) {
	f := newFake(t)
	secret := map[string]string{
		"apt/sources.list":        "deb https://u:" + canary + "@repo.example/debian bookworm main\n",
		"pip.conf":                "[global]\nindex-url = https://u:" + canary + "@pypi.example/simple\n",
		"npmrc":                   "//registry.example/:_authToken=" + canary + "\n",
		"gitconfig":               "[url \"https://u:" + canary + "@git.example/\"]\n\tinsteadOf = x:\n",
		"app/config.ini":          "db_password = " + canary + "\n",
		"app/config.yaml":         "  secret_key: \"" + canary + "\"\n",
		"app/env":                 "export SERVICE_TOKEN=" + canary + "\n",
		"redis.conf":              "requirepass x\nmasterauth y\nuser_password " + canary + "1\n",
		"app/old.conf":            "#api_key=" + canary + "\n",
		"maven/settings-x.xml":    "<url>https://u:" + canary + "@repo</url>",
		"app/server.pem":          "-----BEGIN PRIVATE KEY-----\n" + canary,
		"java-17/management/x.cf": "ghp_012345678901234567890123456789" + canary,
	}
	for at, text := range secret {
		f.file("/etc/"+at, text)
	}
	host := []string{
		"fstab", "crypttab", "passwd-", "shadow-", "subuid", "sudoers", "sudoers.d/x", "doas.conf", "ssh/ssh_host_ed25519_key", "ssh/sshd_config", "wireguard/wg0.conf", "NetworkManager/system-connections/home.nmconnection", "netplan/01.yaml",
		"docker/daemon.json", "kubernetes/admin.conf", "rancher/k3s/k3s.yaml", "letsencrypt/cli.ini", "apt/auth.conf", "apt/auth.conf.d/x.conf", "netrc", ".pgpass", "app/tls.key", "app/htpasswd", "app/id_rsa", "app/store.jks", "app/x.kdbx",
		"krb5.conf", "krb5.keytab", "samba/smb.conf", "exports", "wpa_supplicant.conf", "openvpn/client.ovpn", "systemd/system/x.service", "cron.d/x", "ld.so.preload", "profile.d/x.sh", "environment.d/x.conf", "skel/.bashrc", "app/kubeconfig",
		"postfix/sasl_passwd", "app/my-credentials.json", "app/.git/config", "app.conf~", "motd", "mailname", "cloud/cloud.cfg",
	}
	for _, at := range host {
		f.file("/etc/"+at, canary)
	}
	f.file("/etc/app/hidden", canary)
	f.must(os.Chmod(f.root+"/etc/app/hidden", 0o640))
	f.file("/etc/other/x", canary)
	if os.Geteuid() == 0 {
		f.must(os.Chown(f.root+"/etc/other/x", 1234, 0))
	} else {
		f.must(os.Remove(f.root + "/etc/other/x"))
	}
	p := f.plan()
	v := f.view(p)
	for at := range secret {
		if got, ok := v.read("/etc/" + at); ok {
			t.Errorf("/etc/%s is there: %q", at, got)
		}
		wantsNote(t, p, "/etc/"+at, "left out")
	}
	for _, at := range append(host, "app/hidden", "other/x") {
		if got, ok := v.read("/etc/" + at); ok && got != "" {
			t.Errorf("/etc/%s is there: %q", at, got)
		}
	}
	checkF60(f, p)
}
