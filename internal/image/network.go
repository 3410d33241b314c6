package image

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/pando-dev/pando/internal/cell"
)

// TalkDir is where a cell that talks finds what it has to trust, as its
// variables name it.
const TalkDir = "/run/pando-net"

// bundles are the files that programs read the trusted authorities from, on
// one distribution or another. The first that is there is the host's list.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// javaStores are the same for Java, without what JAVA_HOME names.
var javaStores = []string{"/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts", "/etc/pki/java/cacerts"}

// trustVars are the variables by which programs are told of a list of
// authorities: the first that take the whole list, then those that add to one
// of their own.
var (
	trustVars = []string{"SSL_CERT_FILE", "NIX_SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"}
	addVars   = []string{"NODE_EXTRA_CA_CERTS"}
)

// Talk gives the cell of the plan what one that talks needs: who answers names,
// and the authority of its lineage among those that it trusts, in all the usual
// places. The files are written to dir, which belongs to the cell.
func (h *HostPlan) Talk(dir string, resolvers []netip.Addr, authority string) error {
	p := h.find.now()
	fail := func(err error) error {
		return cell.Errorf(cell.Internal, "image.Talk", "", "cannot prepare the cell's network files: %w", err)
	}
	block, _ := pem.Decode([]byte(authority))
	if block == nil {
		return fail(fmt.Errorf("the authority is no certificate"))
	}
	var list []byte
	var over []string // where the list, ours included, is seen
	for _, at := range bundles {
		pl := p.t.resolve(at)
		if !pl.isFile() || !p.shown(pl.path) {
			continue
		}
		if list == nil {
			list = p.t.read(pl.path, maxEtcFile)
		}
		if !slices.Contains(over, pl.path) {
			over = append(over, pl.path)
		}
	}
	var stores []string
	for _, at := range append(slices.Clone(javaStores), h.javaStore()) {
		if pl := p.t.resolve(at); at != "" && pl.isFile() && p.shown(pl.path) && !slices.Contains(stores, pl.path) {
			stores = append(stores, pl.path)
		}
	}
	var resolv strings.Builder
	for _, r := range resolvers {
		fmt.Fprintf(&resolv, "nameserver %s\n", r)
	}
	resolv.WriteString("options timeout:5 attempts:2\n")
	if n := len(list); n > 0 && list[n-1] != '\n' {
		list = append(list, '\n')
	}
	list = append(list, authority...)

	if err := os.RemoveAll(dir); err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fail(err)
	}
	files := map[string][]byte{"resolv.conf": []byte(resolv.String()), "ca.pem": []byte(authority), "bundle.pem": list}
	if len(stores) > 0 {
		files["cacerts"] = javaStore(list)
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(dir, name), text, 0o644, 0); err != nil {
			return fail(err)
		}
	}
	bind := func(target, name string) {
		h.Insert(cell.Mount{Kind: cell.Bind, Target: target, Source: filepath.Join(dir, name), ReadOnly: true, Owned: true, Why: "network"})
	}
	bind(TalkDir, "")
	bind("/etc/resolv.conf", "resolv.conf")
	for _, at := range over {
		bind(at, "bundle.pem")
	}
	for _, at := range stores {
		bind(at, "cacerts")
	}
	for _, v := range trustVars {
		h.setenv(v, path.Join(TalkDir, "bundle.pem"))
	}
	for _, v := range addVars {
		h.setenv(v, path.Join(TalkDir, "ca.pem"))
	}
	return nil
}

// javaStore is where the Java of JAVA_HOME keeps its authorities.
func (h *HostPlan) javaStore() string {
	for _, kv := range h.Env {
		if home, ok := strings.CutPrefix(kv, "JAVA_HOME="); ok {
			return path.Join(home, "lib/security/cacerts")
		}
	}
	return ""
}

func (h *HostPlan) setenv(name, value string) {
	i, there := slices.BinarySearchFunc(h.Env, name+"=", func(kv, prefix string) int {
		k, _, _ := strings.Cut(kv, "=")
		return strings.Compare(k+"=", prefix)
	})
	if there {
		h.Env[i] = name + "=" + value
	} else {
		h.Env = slices.Insert(h.Env, i, name+"="+value)
	}
}

// javaStore writes certificates (PEM) as a key store that every Java reads: the
// JKS format, as sun.security.provider.JavaKeyStore documents it in its own
// source, with the password that all of them have.
func javaStore(list []byte) []byte {
	var b bytes.Buffer
	var certs [][]byte
	for {
		var p *pem.Block
		if p, list = pem.Decode(list); p == nil {
			break
		}
		if p.Type == "CERTIFICATE" {
			certs = append(certs, p.Bytes)
		}
	}
	u32 := func(n int) { binary.Write(&b, binary.BigEndian, uint32(n)) }
	text := func(s string) {
		binary.Write(&b, binary.BigEndian, uint16(len(s)))
		b.WriteString(s)
	}
	u32(0xfeedfeed)
	u32(2) // version
	u32(len(certs))
	for i, c := range certs {
		u32(2) // a trusted certificate
		text(fmt.Sprintf("ca-%d", i))
		binary.Write(&b, binary.BigEndian, uint64(time.Unix(0, 0).UnixMilli()))
		text("X.509")
		u32(len(c))
		b.Write(c)
	}
	sum := sha1.New()
	for _, c := range utf16.Encode([]rune("changeit")) {
		sum.Write([]byte{byte(c >> 8), byte(c)})
	}
	sum.Write([]byte("Mighty Aphrodite"))
	sum.Write(b.Bytes())
	return sum.Sum(b.Bytes())
}
