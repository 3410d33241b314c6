package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imageregistry "github.com/google/go-containerregistry/pkg/registry"

	"github.com/pando-dev/pando/internal/testenv"
)

// A template build by E2B's routes installs a Debian package with apt-get, from a repository on
// loopback into an image of this host's apt and dpkg: as apt's own user fetches it, dpkg unpacks
// it and runs its scripts. A sandbox of the template has the package, and no network.
func TestE2BTemplateInstallsAPackage(t *testing.T) {
	testenv.Root(t) // what apt needs: more than one user id
	rootfs := aptTree(t)
	t.Parallel()
	h := newHost(t)
	u, err := startUpstream(h.work, http.FileServer(http.Dir(debianRepository(t))))
	must(t, err)
	t.Cleanup(u.Close)
	h.env = append(h.env, u.Env()...)
	source := fmt.Sprintf("deb [trusted=yes] http://a.test:%d ./\n", u.Ports["http"])
	must(t, os.WriteFile(filepath.Join(rootfs, "etc/apt/sources.list"), []byte(source), 0o644))
	images := httptest.NewServer(imageregistry.New(imageregistry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(images.Close)
	registry := strings.TrimPrefix(images.URL, "http://")
	must(t, pushTo(registry, treeImage(t, rootfs, "PATH=/usr/sbin:/usr/bin"), "team/debian", "1"))

	s := serving(t, h, "--build-image", registry+"/team/*", "--build-allow", fmt.Sprintf("a.test:%d,127.0.0.1:%[1]d", u.Ports["http"]))
	key := secret(t, h, "run")
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Patience())
	defer cancel()
	ask := asksE2B(ctx, t, s.URLs[0], key)
	builtByE2B(t, ask, "greeting", "fromImage", registry+"/team/debian:1", 10*time.Millisecond, "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y greeting") // as aptInstall of E2B's packages
	builtByE2B(t, ask, "again", "fromTemplate", "greeting", 10*time.Millisecond, "apt-get update -o APT::Update::Error-Mode=any && greet")

	var box e2bBox
	ask("POST", "/v2/sandboxes", map[string]any{"templateID": "again", "timeout": 300}, &box)
	said := saidInE2B(ctx, t, s.URLs[0], box, "greet; dpkg-query -W greeting; cat /var/lib/greeting; ls -n /var/lib/greeting; apt-get update -o Acquire::Retries=0 2>&1")
	for _, want := range []string{"hello from the package\n", "greeting\t1.0\n", "configured by 0\n", " 42 42 ", "W: Failed to fetch http://a.test:"} {
		if !strings.Contains(said, want) {
			t.Errorf("the sandbox says\n%s\nwithout %q", said, want)
		}
	}
	ask("DELETE", "/sandboxes/"+box.SandboxID, nil, nil)
}

// debianRepository is a directory that is a Debian repository of one package.
func debianRepository(t *testing.T) string {
	t.Helper()
	build := testenv.Program(t, "dpkg-deb")
	repo, tree := t.TempDir(), t.TempDir()
	control := "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: none <none@example.test>\nDescription: says hello\n"
	for name, text := range map[string]string{
		"DEBIAN/control":  control,
		"DEBIAN/postinst": "#!/bin/sh\nset -e\necho \"configured by $(id -u)\" > /var/lib/greeting\nchown 42:42 /var/lib/greeting\nmkdir /run/greeting\n: >/run/lock/greeting\n",
		"usr/bin/greet":   "#!/bin/sh\necho hello from the package\n",
	} {
		must(t, os.MkdirAll(filepath.Join(tree, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(tree, name), []byte(text), 0o755))
	}
	deb := filepath.Join(repo, "greeting.deb")
	if out, err := exec.Command(build, "--root-owner-group", "-Zgzip", "--build", tree, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(deb)
	must(t, err)
	packages := fmt.Sprintf("%sFilename: ./greeting.deb\nSize: %d\nSHA256: %x\n", control, len(b), sha256.Sum256(b))
	must(t, os.WriteFile(filepath.Join(repo, "Packages"), []byte(packages), 0o644))
	release := fmt.Sprintf("Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %x %d Packages\n", sha256.Sum256([]byte(packages)), len(packages))
	must(t, os.WriteFile(filepath.Join(repo, "Release"), []byte(release), 0o644))
	return repo
}

// aptTree is a root file system with this host's apt, dpkg and what they need.
func aptTree(t *testing.T) string {
	t.Helper()
	testenv.Program(t, "ldd")
	root := t.TempDir()
	var files []string
	for _, p := range []string{"apt-get", "dpkg", "dpkg-deb", "dpkg-query", "dpkg-split", "start-stop-daemon", "ldconfig",
		"bash", "sh", "cat", "chown", "diff", "id", "ls", "mkdir", "rm", "tar", "gzip"} {
		files = append(files, testenv.Program(t, p))
	}
	for _, m := range []string{"http", "store", "copy", "file", "gpgv"} {
		files = append(files, "/usr/lib/apt/methods/"+m)
	}
	needed := map[string]bool{"/usr/share/dpkg/cputable": true, "/usr/share/dpkg/ostable": true, "/usr/share/dpkg/tupletable": true}
	for _, f := range files {
		needed[f] = true
		out, err := exec.Command("ldd", f).Output()
		if err != nil {
			continue // a script
		}
		for _, word := range strings.Fields(string(out)) {
			if strings.HasPrefix(word, "/") {
				needed[word] = true
			}
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		must(t, os.MkdirAll(filepath.Join(root, "usr", d), 0o755))
		must(t, os.Symlink("usr/"+d, filepath.Join(root, d)))
	}
	for f := range needed {
		b, err := os.ReadFile(f)
		must(t, err)
		to := filepath.Join(root, f)
		must(t, os.MkdirAll(filepath.Dir(to), 0o755))
		must(t, os.WriteFile(to, b, 0o755))
	}
	for _, d := range []string{"etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/dpkg", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt"} {
		must(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n_apt:x:42:65534::/nonexistent:/bin/false\n", "etc/group": "root:x:0:\nnogroup:x:65534:\n",
		"etc/nsswitch.conf": "hosts: files dns\n", "var/lib/dpkg/status": "",
	} {
		must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	return root
}
