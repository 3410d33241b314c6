package image

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// authority makes a certificate, PEM.
func authority(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestTalkPutsTrustInTheUsualPlaces(t *testing.T) {
	f := newFake(t)
	theirs := authority(t, "the host's")
	f.file("/usr/share/ca/bundle.crt", theirs)
	f.link("/etc/ssl/certs/ca-certificates.crt", "/usr/share/ca/bundle.crt")
	f.file("/etc/ssl/cert.pem", theirs)
	f.file("/etc/pki/java/cacerts", "old")
	f.env("SSL_CERT_FILE", "/etc/ssl/cert.pem")
	corp := authority(t, "the company's")
	f.file("/etc/ssl/certs/corp.pem", corp)
	f.env("NODE_EXTRA_CA_CERTS", "/etc/ssl/certs/corp.pem")
	plan, err := Host(f.req)
	f.must(err)
	ours := authority(t, "the cell's")
	dir := filepath.Join(t.TempDir(), "net")
	lists := plan.Talk(dir)
	f.must(WriteTalk(f.root, dir, plan.Mounts, lists, []netip.Addr{netip.MustParseAddr("198.18.0.1")}, ours))

	at := map[string]cell.Mount{}
	for _, m := range plan.Mounts {
		at[m.Target] = m
	}
	for target, name := range map[string]string{
		TalkDir: "", "/etc/resolv.conf": "resolv.conf", "/etc/nsswitch.conf": "nsswitch.conf", "/usr/share/ca/bundle.crt": "bundle.pem", "/etc/ssl/cert.pem": "bundle.pem", "/etc/pki/java/cacerts": "cacerts",
	} {
		if m := at[target]; m.Source != filepath.Join(dir, name) || !m.ReadOnly || m.Kind != cell.Bind {
			t.Errorf("%s shows %+v", target, m)
		}
	}
	if !slices.IsSortedFunc(plan.Mounts, func(a, b cell.Mount) int { return compareTargets(a.Target, b.Target) }) {
		t.Error("a mount lies before what it is in")
	}
	list, _ := os.ReadFile(filepath.Join(dir, "bundle.pem"))
	if string(list) != theirs+corp+theirs+ours {
		t.Errorf("the list is %s", list)
	}
	for _, kv := range []string{"SSL_CERT_FILE=" + TalkDir + "/bundle.pem", "NODE_EXTRA_CA_CERTS=" + TalkDir + "/bundle.pem", "REQUESTS_CA_BUNDLE=" + TalkDir + "/bundle.pem", "GIT_SSL_CAINFO=" + TalkDir + "/bundle.pem"} {
		if !slices.Contains(plan.Env, kv) {
			t.Errorf("%s is not in %q", kv, plan.Env)
		}
	}
	if !slices.IsSorted(plan.Env) {
		t.Errorf("not sorted: %q", plan.Env)
	}
	resolv, _ := os.ReadFile(filepath.Join(dir, "resolv.conf"))
	if !strings.HasPrefix(string(resolv), "nameserver 198.18.0.1\n") {
		t.Errorf("resolv.conf is %q", resolv)
	}
}

// In a cell without a network package managers try nothing again, but where the caller says so.
func TestSilent(t *testing.T) {
	h := &HostPlan{Env: []string{"A=1", "PIP_RETRIES=3", "Z=2"}}
	h.Silent()
	want := []string{"A=1", "CARGO_NET_RETRY=0", "PIP_RETRIES=3", "UV_HTTP_RETRIES=0", "Z=2", "npm_config_fetch_retries=0"}
	if !slices.Equal(h.Env, want) {
		t.Errorf("the environment is %q, want %q", h.Env, want)
	}
}

// A host without any list of authorities still trusts the cell's own.
func TestTalkWithoutAList(t *testing.T) {
	f := newFake(t)
	plan, err := Host(f.req)
	f.must(err)
	ours := authority(t, "the cell's")
	dir := filepath.Join(t.TempDir(), "net")
	plan.Talk(dir)
	f.must(WriteTalk(f.root, dir, plan.Mounts, nil, nil, ours))
	if list, _ := os.ReadFile(filepath.Join(dir, "bundle.pem")); string(list) != ours {
		t.Errorf("the list is %q", list)
	}
	if WriteTalk(f.root, dir, plan.Mounts, nil, nil, "rubbish") == nil {
		t.Error("took rubbish for an authority")
	}
}

// Java itself reads the store.
func TestJavaReadsTheStore(t *testing.T) {
	keytool := testenv.Program(t, "keytool")
	at := filepath.Join(t.TempDir(), "cacerts")
	if err := os.WriteFile(at, javaStore([]byte(authority(t, "one")+authority(t, "two"))), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(keytool, "-list", "-v", "-keystore", at, "-storepass", "changeit").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "CN=one") || !strings.Contains(string(out), "CN=two") {
		t.Errorf("keytool: %v\n%s", err, out)
	}
}
