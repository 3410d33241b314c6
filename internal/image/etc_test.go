package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

func etcFake(t testing.TB) *fake {
	f := newFake(t)
	for at, content := range map[string]string{
		"ld.so.cache": "\x00cache", "ld.so.conf.d/x.conf": "/usr/local/lib", "passwd": canary, "group": canary, "nsswitch.conf": canary, "hosts": canary, "hostname": canary, "machine-id": canary, "resolv.conf": canary,
		"gshadow": canary, "sudoers": canary, "sudoers.d/x": canary, "ssh/ssh_config": canary, "ssl/private/x.key": canary, "ssl/openssl.cnf": "openssl", "ssl/other": canary, "environment": canary, "profile": canary,
		"profile.d/token.sh": canary, "gitconfig": "[url \"https://u:" + canary + "@host/\"]\n\tinsteadOf = gh:\n", "npmrc": "//registry.example/:_authToken=" + canary, "pip.conf": "[global]\nindex-url = https://u:" + canary + "@host/simple\n", "apt/auth.conf.d/x": canary, "skel/x": canary, "krb5.keytab": canary, "NetworkManager/x": canary, "wireguard/wg0.conf": canary,
		"default/locale": "LANG=C", "default/app": "APP_TOKEN=" + canary, "java-17-openjdk/net.properties": "net", "java-17-openjdk/private/x": canary, "maven/settings.xml": "<settings/>", "mime.types": "text/plain txt",
		"php/8.2/cli/conf.d/20-tokenizer.ini": "extension=tokenizer", "pki/tls/private/x": canary, "pki/tls/openssl.cnf": "pki", "bash.bashrc": "PS1=x\n", "perl/x.key": canary, "services": "http 80/tcp",
	} {
		f.file("/etc/"+at, content)
	}
	f.file("/usr/share/ca-certificates/a.crt", "cert a")
	f.link("/etc/ssl/certs/a.pem", "/usr/share/ca-certificates/a.crt")
	f.link("/etc/ssl/certs/0.0", "a.pem")
	f.link("/etc/ssl/certs/bad.pem", "../private/x.key")
	f.link("/etc/ssl/certs/home.pem", h+"/.ssh/id")
	f.file(h+"/.ssh/id", canary)
	f.link("/etc/localtime", "/usr/share/zoneinfo/UTC")
	f.file("/usr/share/zoneinfo/UTC", "TZif")
	f.link("/etc/xml", "/nix/store/x-xml")
	f.file("/nix/store/x-xml/catalog", "catalog")
	f.file("/etc/perl/hidden", canary)
	f.must(os.Chmod(f.root+"/etc/perl/hidden", 0o640))
	f.file("/etc/R/hidden/x", canary)
	f.must(os.Chmod(f.root+"/etc/R/hidden", 0o750))
	f.socket("/etc/fonts/sock")
	f.file("/etc/fonts/fonts.conf", "fonts")
	return f
}

func TestF60EtcIsFiltered(t *testing.T) {
	f := etcFake(t)
	p := f.plan()
	m, _ := mountAt(p, "/etc")
	if m.Kind != cell.Bind || !m.ReadOnly || m.Owned || filepath.Dir(m.Source) != f.etc {
		t.Errorf("mount = %+v", m)
	}
	v := f.view(p)
	for at, want := range map[string]string{
		"ld.so.cache": "\x00cache", "ld.so.conf.d/x.conf": "/usr/local/lib", "ssl/openssl.cnf": "openssl", "default/locale": "LANG=C", "ssl/certs/a.pem": "cert a", "ssl/certs/0.0": "cert a", "localtime": "TZif",
		"java-17-openjdk/net.properties": "net", "php/8.2/cli/conf.d/20-tokenizer.ini": "extension=tokenizer", "xml/catalog": "catalog", "pki/tls/openssl.cnf": "pki", "bash.bashrc": "PS1=x\n",
		"machine-id": "", "resolv.conf": silentResolv, "hostname": "", "environment": "", "hosts": "127.0.0.1 localhost\n::1 localhost\n", "profile.d": "/", "os-release": "ID=fake\n",
	} {
		if got, ok := v.read("/etc/" + at); !ok || got != want {
			t.Errorf("/etc/%s = %q, %v; want %q", at, got, ok, want)
		}
	}
	for _, at := range []string{"shadow", "gshadow", "sudoers", "ssh", "ssl/private", "profile.d/token.sh", "gitconfig", "npmrc", "pip.conf", "apt/auth.conf.d", "skel", "ssl/certs/bad.pem", "ssl/certs/home.pem", "default/app", "perl/x.key", "perl/hidden", "fonts/sock"} {
		if got, ok := v.read("/etc/" + at); ok {
			t.Errorf("/etc/%s is there: %q", at, got)
		}
	}
	passwd, _ := v.read("/etc/passwd")
	group, _ := v.read("/etc/group")
	if !strings.HasPrefix(passwd, "u:x:1000:1000::/home/u:/bin/bash\n") || !strings.Contains(passwd, "\nroot:x:0:0:") || !strings.Contains(passwd, "\nnobody:x:65534:65534:") || !strings.HasPrefix(group, "u:x:1000:\n") {
		t.Errorf("passwd %q, group %q", passwd, group)
	}
	if nss, _ := v.read("/etc/nsswitch.conf"); !strings.Contains(nss, "hosts: files dns files\n") {
		t.Errorf("nsswitch.conf %q", nss)
	}
	checkF60(f, p)
	// Readable by whatever id the cell's user has.
	f.must(filepath.WalkDir(m.Source, func(at string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if i, err := d.Info(); err == nil && d.Type() != os.ModeSymlink && i.Mode().Perm()&0o004 == 0 {
			t.Errorf("%s has mode %o", at, i.Mode().Perm())
		}
		return nil
	}))
}

func TestEtcForRoot(t *testing.T) {
	f := newFake(t)
	f.req.User = cell.User{Name: "root", Home: "/root:x"}
	f.req.Home = "/root"
	v := f.view(f.plan())
	if passwd := v["/etc/passwd"]; !strings.HasPrefix(passwd, "root:x:0:0::/rootx:/bin/bash\ndaemon:") || strings.Count(passwd, "root:x:") != 1 {
		t.Errorf("passwd %q", passwd)
	}
}

func TestEtcFilesWithSecretsAreLeftOutAndNamed(t *testing.T) {
	f := newFake(t)
	f.file("/etc/bash.bashrc", "export NPM_TOKEN="+canary+"\n")
	f.file("/etc/maven/settings.xml", "<url>https://u:"+canary+"@repo</url>")
	p := f.plan()
	wantsNote(t, p, "/etc/bash.bashrc", "left out")
	wantsNote(t, p, "/etc/maven/settings.xml", "left out")
	checkF60(f, p)
	wantsNote(t, f.plan(), "/etc/bash.bashrc", "left out") // also from the cache
}

func TestEtcLargeDirectoriesAreMounted(t *testing.T) {
	f := newFake(t)
	for i := range shareFrom {
		f.link(fmt.Sprintf("/etc/alternatives/a%d", i), "/usr/bin/env")
		f.link(fmt.Sprintf("/etc/ssl/certs/a%d", i), "/usr/share/x")
		f.file(fmt.Sprintf("/etc/fonts/conf.d/a%d", i), "font")
	}
	f.file("/etc/ssl/private/key", canary)
	f.file("/etc/fonts/conf.d/hidden", canary)
	f.must(os.Chmod(f.root+"/etc/fonts/conf.d/hidden", 0o600))
	p := f.plan()
	for _, at := range []string{"/etc/alternatives", "/etc/ssl/certs"} {
		if m, ok := mountAt(p, at); !ok || m.Source != f.root+at || !m.ReadOnly {
			t.Errorf("%s: %+v", at, m)
		}
	}
	f.wantsNone(p, "/etc/fonts", "/etc/fonts/conf.d", "/etc/ssl")
	checkF60(f, p)
	if v := f.view(p); v["/etc/fonts/conf.d/a1"] != "font" || v["/etc/ssl/certs/a1"] != "→/usr/share/x" {
		t.Error("what is not mounted is not copied")
	}
}

func TestEtcIsPreparedOnce(t *testing.T) {
	f := etcFake(t)
	source := func() string {
		m, _ := mountAt(f.plan(), "/etc")
		return m.Source
	}
	first := source()
	if again := source(); again != first {
		t.Error("prepared again without a reason")
	}
	for what, change := range map[string]func(){
		"content":           func() { f.file("/etc/ssl/openssl.cnf", "OPENSSL") },
		"a new file":        func() { f.file("/etc/inputrc", "x") },
		"a new nested file": func() { f.file("/etc/java-17-openjdk/new", "x") },
		"a removed file":    func() { f.must(os.Remove(f.root + "/etc/services")) },
		"a mode":            func() { f.must(os.Chmod(f.root+"/etc/mime.types", 0o600)) },
		"the user":          func() { f.req.User.Name = "v" },
		"the copy is gone":  func() { f.must(os.RemoveAll(first)) },
		"the note is torn": func() {
			notes, _ := filepath.Glob(f.etc + "/*.json")
			for _, n := range notes {
				f.must(os.WriteFile(n, []byte("{"), 0o600))
			}
			f.must(os.RemoveAll(first))
		},
	} {
		before := source()
		if what == "the copy is gone" || what == "the note is torn" {
			first = before
		}
		change()
		after := source()
		if _, err := os.Stat(filepath.Join(after, "os-release")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if after == before && !strings.HasPrefix(what, "the ") {
			t.Errorf("%s was not noticed", what)
		}
		if after == before && what == "the user" {
			t.Error("two users share an /etc")
		}
		if again := source(); again != after {
			t.Errorf("%s: prepared again without a reason", what)
		}
	}
	if left, _ := filepath.Glob(f.etc + "/*.partial"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	checkF60(f, f.plan())
}

// A file that is rewritten with its old size and time of modification is
// another file.
func TestF17EtcDoesNotRestOnMtime(t *testing.T) {
	f := etcFake(t)
	f.plan()
	at := f.root + "/etc/ssl/openssl.cnf"
	st, err := os.Stat(at)
	f.must(err)
	f.must(os.WriteFile(at, []byte("OPENSSL"), 0o644))
	f.must(os.Chtimes(at, st.ModTime(), st.ModTime()))
	if got := f.view(f.plan())["/etc/ssl/openssl.cnf"]; got != "OPENSSL" {
		t.Errorf("openssl.cnf = %q", got)
	}
}

func TestEtcIsPreparedByManyAtOnce(t *testing.T) {
	f := etcFake(t)
	done := make(chan error)
	for range 8 {
		go func() {
			_, err := Host(f.req)
			done <- err
		}()
	}
	for range 8 {
		f.must(<-done)
	}
	if dirs, _ := filepath.Glob(f.etc + "/etc-*"); len(dirs) != 2 {
		t.Errorf("there are %v, want one directory and its note", dirs)
	}
}

func TestEtcFailureLeavesNothing(t *testing.T) {
	f := etcFake(t)
	blocked := filepath.Join(f.etc, "file")
	f.must(os.WriteFile(blocked, nil, 0o600))
	f.req.EtcDir = filepath.Join(blocked, "below")
	f.fails(cell.Internal)
	f.req.EtcDir = "relative"
	f.fails(cell.Internal)
}

func TestPruneEtc(t *testing.T) {
	f := etcFake(t)
	f.plan()
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"etc-used", "etc-unused", "etc-1.partial", "etc-young", "other"} {
		f.must(os.Mkdir(filepath.Join(f.etc, name), 0o755))
		if name != "etc-young" {
			f.must(os.Chtimes(filepath.Join(f.etc, name), old, old))
		}
	}
	m, _ := mountAt(f.plan(), "/etc")
	f.must(os.Chtimes(m.Source, old, old))
	for _, dry := range []bool{true, false} {
		removed, err := PruneEtc(f.etc, []string{filepath.Join(f.etc, "etc-used")}, dry)
		f.must(err)
		if len(removed) != 2 || filepath.Base(removed[0]) != "etc-1.partial" || filepath.Base(removed[1]) != "etc-unused" {
			t.Errorf("removed %v", removed)
		}
	}
	if left, _ := os.ReadDir(f.etc); len(left) != 5 {
		t.Errorf("left %v", left)
	}
	if removed, err := PruneEtc(filepath.Join(f.etc, "none"), nil, false); err != nil || removed != nil {
		t.Error(removed, err)
	}
}
