//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
)

// The key of the certificate is read from its owner's own file, at the start and at each reload.
// The certificate is public, and may be anywhere.
func TestX13KeyOfTheCertificate(t *testing.T) {
	dir := t.TempDir()
	key, cert := filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")
	b, err := makeCertificate()
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{key: 0o600, cert: 0o644} {
		if err := os.WriteFile(name, b, mode); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Symlink("key.pem", at("good-link")), os.Symlink("world", at("link")), os.Symlink("cert.pem", at("cert-link")), syscall.Mkfifo(at("pipe"), 0o600), os.Mkdir(at("directory"), 0o700),
		os.WriteFile(at("group"), b, 0o600), os.Chmod(at("group"), 0o640), os.WriteFile(at("world"), b, 0o600), os.Chmod(at("world"), 0o604),
		os.WriteFile(at("writable"), b, 0o600), os.Chmod(at("writable"), 0o620), os.WriteFile(at("other"), b, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &serving{Cert: at("cert-link"), Key: key}
	good, _, err := s.certificate(paths.Home{})
	if err != nil {
		t.Fatalf("a key that its owner alone can read: %v", err)
	}
	s.now.Store(&good)
	s.Key = at("good-link")
	if _, _, err := s.certificate(paths.Home{}); err != nil {
		t.Errorf("a link to a key that its owner alone can read: %v", err)
	}
	bad := map[string]string{
		"link": "has mode 0604", "pipe": "is not a regular file", "directory": "is not a regular file",
		"group": "has mode 0640", "world": "has mode 0604", "writable": "has mode 0620",
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(at("other"), 12345, 0); err != nil {
			t.Fatal(err)
		}
		bad["other"] = "belongs to another user (uid 12345)"
	}
	for name, rule := range bad {
		s.Key = at(name)
		_, _, err := s.certificate(paths.Home{})
		if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), rule) || name != "link" && !strings.Contains(err.Error(), s.Key) || cell.HintOf(err) == "" {
			t.Errorf("%s: %v (hint %q)", name, err, cell.HintOf(err))
		}
		if changed, err := s.reload(paths.Home{}); changed || err == nil || s.now.Load() == nil {
			t.Errorf("%s, at a reload: %v, %v", name, changed, err)
		}
	}
}
