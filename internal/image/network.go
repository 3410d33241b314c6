package image

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
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
const TalkDir = ownDir + "/net"

// ownDir is pando's own directory in a cell.
const ownDir = "/.pando"

// What a cell that talks was refused last is in two files of a folder below
// TalkDir, which the cell cannot write to. Links below DeniedAt lead to them;
// the cell can replace these.
const (
	DenialsFolder = "denied"
	DenialsText   = "list"
	DenialsLines  = "list.jsonl"
	DenialsAt     = TalkDir + "/" + DenialsFolder + "/" + DenialsText
	DeniedAt      = "/run/pando/denied"
)

// whyProgram is the name of the program that tells a cell what it was refused,
// and whyText is the program. Its folder is the last of PATH.
const (
	whyProgram = "pando-why"
	whyText    = `#!/bin/sh
# What this cell was refused last, on the network.
case "$1" in
--json) exec cat ` + TalkDir + `/` + DenialsFolder + `/` + DenialsLines + ` ;;
-*) echo "usage: pando-why [--json | TEXT]: what this cell was refused last, or what of it has TEXT in it" >&2; exit 2 ;;
esac
test -s ` + DenialsAt + ` || { echo "nothing was refused on the network"; exit 0; }
if test -n "$1"; then exec grep -F -e "$1" ` + DenialsAt + `; fi
cat ` + DenialsAt + `
echo "To be allowed more, tell the person you work for what you need and why; they can start the run again with the flag, or write the line into the policy."
`
)

// tellWhy shows a cell what it was refused, and the program that tells it.
func (h *HostPlan) tellWhy() {
	for suffix, name := range map[string]string{"": DenialsText, ".jsonl": DenialsLines} {
		h.Insert(cell.Mount{Kind: cell.Link, Target: DeniedAt + suffix, Source: path.Join(TalkDir, DenialsFolder, name), Why: whyTold})
	}
	if dirs := h.getenv("PATH"); dirs != "" {
		h.setenv("PATH", dirs+":"+TalkDir)
	}
}

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
// authorities: all but one instead of their own list, NODE_EXTRA_CA_CERTS
// besides it.
var trustVars = []string{"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "NIX_SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "HTTPLIB2_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"}

// Talk adds to the plan of a cell with a network the mounts that it needs: resolvers and
// trusted authorities, in all the usual places. WriteTalk writes their content to dir,
// which belongs to the cell. lists are the files of the image that the caller's own
// variables name.
func (h *HostPlan) Talk(dir string) (lists []string) {
	if h.rooted != nil {
		return h.rooted.talk(h, dir)
	}
	p := h.find.now()
	bind := func(target, name string) {
		h.Insert(cell.Mount{Kind: cell.Bind, Target: target, Source: filepath.Join(dir, name), ReadOnly: true, Owned: true, Role: cell.RoleNetwork, Why: whyNetwork})
	}
	bind(TalkDir, "")
	bind("/etc/resolv.conf", resolvFile)
	bind("/etc/nsswitch.conf", nsswitchFile)
	for name, places := range map[string][]string{bundleFile: bundles, storeFile: append(slices.Clone(javaStores), h.javaStore())} {
		for _, at := range places {
			if pl := p.t.resolve(at); at != "" && pl.isFile() && p.shown(pl.path) {
				bind(pl.path, name)
			}
		}
	}
	for _, v := range trustVars {
		if pl := p.t.resolve(h.getenv(v)); pl.isFile() && p.shown(pl.path) && !slices.Contains(lists, pl.path) {
			lists = append(lists, pl.path)
		}
		h.setenv(v, path.Join(TalkDir, bundleFile))
	}
	h.tellWhy()
	return lists
}

// retryVars are the variables by which package managers are told how often to try again.
var retryVars = []string{"CARGO_NET_RETRY", "PIP_RETRIES", "UV_HTTP_RETRIES", "npm_config_fetch_retries"}

// Silent adds to the plan of a cell without a network that package managers don't try again, and
// that no name is there: what they can't reach now they can't reach in a minute.
func (h *HostPlan) Silent() {
	if h.rooted != nil {
		h.rooted.hosts(h, false)
	}
	for _, name := range retryVars {
		if h.getenv(name) == "" {
			h.setenv(name, "0")
		}
	}
}

// Why a cell that talks has its mounts, and the links to what it is told.
const (
	whyNetwork = "network"
	whyTold    = "network refusals"
)

// The files that WriteTalk writes.
const (
	resolvFile    = "resolv.conf"
	nsswitchFile  = "nsswitch.conf"
	authorityFile = "ca.pem"
	bundleFile    = "bundle.pem"
	storeFile     = "cacerts"
)

// WriteTalk writes to dir what a cell with a network sees: the authorities of root's own
// list, of the image, of other lists and of the cell's lineage (PEM). Every cell trusts the
// host's authorities: where a proxy opens all connections, nothing works without its
// authority. Beside them it writes the same for Java, where a mount shows it, and the
// resolvers.
func WriteTalk(root, dir string, mounts []cell.Mount, lists []string, resolvers []netip.Addr, authority string) error {
	fail := func(err error) error {
		return cell.Errorf(cell.Internal, "image.WriteTalk", "", "cannot prepare the cell's network files: %w", err)
	}
	if block, _ := pem.Decode([]byte(authority)); block == nil {
		return fail(fmt.Errorf("the authority is no certificate"))
	}
	t := newTree(root)
	var list []byte
	add := func(text []byte) {
		if n := len(list); n > 0 && list[n-1] != '\n' {
			list = append(list, '\n')
		}
		list = append(list, text...)
	}
	own := t.bundle()
	add(t.read(own, maxEtcFile))
	if image := RootOf(mounts); image != "/" {
		t = newTree(image)
		own = t.bundle()
		if text := t.read(own, maxEtcFile); !bytes.Equal(text, list) {
			add(text)
		}
	}
	for _, at := range lists {
		if at != own {
			add(t.read(at, maxEtcFile))
		}
	}
	add([]byte(authority))
	var resolv strings.Builder
	for _, r := range resolvers {
		fmt.Fprintf(&resolv, "nameserver %s\n", r)
	}
	resolv.WriteString("options timeout:5 attempts:2\n")
	files := map[string][]byte{resolvFile: []byte(resolv.String()), nsswitchFile: []byte(nsswitch("files dns")), authorityFile: []byte(authority), bundleFile: list}
	if slices.ContainsFunc(mounts, func(m cell.Mount) bool { return m.Role == cell.RoleNetwork && path.Base(m.Source) == storeFile }) {
		files[storeFile] = javaStore(list)
	}
	old, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	for _, o := range old {
		if o.Name() == DenialsFolder {
			continue // what it was refused, it can read later too
		}
		if err := os.RemoveAll(filepath.Join(dir, o.Name())); err != nil {
			return fail(err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fail(err)
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(dir, name), text, 0o644, 0); err != nil {
			return fail(err)
		}
	}
	if err := writeFile(filepath.Join(dir, whyProgram), []byte(whyText), 0o755, 0); err != nil {
		return fail(err)
	}
	return nil
}

// bundle is where a tree's list of authorities is; "" if there is none.
func (t *tree) bundle() string {
	for _, at := range bundles {
		if pl := t.resolve(at); pl.isFile() {
			return pl.path
		}
	}
	return ""
}

// javaStore is where the Java of JAVA_HOME keeps its authorities.
func (h *HostPlan) javaStore() string {
	if home := h.getenv("JAVA_HOME"); home != "" {
		return path.Join(home, "lib/security/cacerts")
	}
	return ""
}

func (h *HostPlan) getenv(name string) string {
	for _, kv := range h.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
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
