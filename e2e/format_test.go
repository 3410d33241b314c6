package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// Every file at the top of an installation's directories is on the page about what is on disk.
func TestStateIsOnThePage(t *testing.T) {
	text, err := os.ReadFile("../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	page, _, _ := strings.Cut(string(text), "\n## ")
	h := newHost(t)
	h.write("f", "1\n")
	h.write("pando.policy.yaml", h.pando("policy", "init"))
	h.exec(h.cmd(h.bin, "policy", "allow", filepath.Join(h.src, "pando.policy.yaml")))
	h.exec(h.cmd(h.bin, "run", "--cell", "web", "--from", h.src, "--", "sh", "-c", "echo 2 >> f"))
	h.pando("accept", "web", "--apply")
	h.pando("fork", "web", "--name", "copy")
	h.exec(h.cmd(h.bin, "run", "--disk", "64M", "--allow", "example.com", "--", "true"))
	h.pando("token", "create", "one", "--scope", "run")
	h.pando("upload", h.src)
	for _, dir := range []string{"state", "cache", "run"} {
		list, err := os.ReadDir(filepath.Join(filepath.Dir(h.state()), dir))
		if err != nil || len(list) == 0 {
			t.Errorf("%s has %d entries: %v", dir, len(list), err)
		}
		for _, f := range list {
			if name := f.Name(); !strings.Contains(page, "`"+name+"`") && !(f.IsDir() && strings.Contains(page, "`"+name+"/`")) {
				t.Errorf("docs/format.md does not have %s/%s", dir, name)
			}
		}
	}
}

// A verifier written from docs/format.md alone accepts what pando exports, and has pando's word for what is done to it.
// TestBundleNamesWhatWasDone tries everything that is done to bundles.
func TestVerifierWithoutPando(t *testing.T) {
	python := testenv.Python(t)
	h := newHost(t)
	h.write("f", "1\n")
	for _, command := range []string{"echo 2 >> f; echo said", "echo 3 >> f", "exit 3"} {
		h.exec(h.cmd(h.bin, "run", "--from", h.src, "--", "sh", "-c", command))
	}
	h.pando("accept", "--apply")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("key", h.pando("receipt", "key"))
	h.pando("receipt", "export", "--all", "-o", at("all"))
	h.pando("receipt", "export", "-o", at("one"))
	h.pando("receipt", "export", "--bundle", at("one.tar"))
	h.pando("receipt", "export", "--all", "--bundle", at("all.tar"))
	verifier, err := filepath.Abs("../docs/verify/verify.py")
	if err != nil {
		t.Fatal(err)
	}
	// verify asks both verifiers; kind is what is wrong, "" for nothing.
	verify := func(what, file, kind, says string) {
		t.Helper()
		for name, o := range map[string]outcome{
			"verify.py":            h.exec(h.cmd(python, verifier, at(file), "--key", at("key"))),
			"pando receipt verify": h.exec(h.cmd(h.bin, "receipt", "verify", at(file), "--key", at("key"))),
		} {
			text := o.out + o.stderr
			if (o.code == 0) != (kind == "") || !strings.Contains(text, says) || kind != "" && !strings.HasPrefix(o.out, kind) {
				t.Errorf("%s: %s ends with %d, and not with %q and %q:\n%s", what, name, o.code, kind, says, text)
			}
		}
	}
	verify("all receipts", "all", "", "verified: 4 receipts")
	verify("one receipt", "one", "", "verified: 1 receipt")
	verify("one bundle", "one.tar", "", "verified: 1 receipt")
	verify("the bundle of all", "all.tar", "", "verified: 4 receipts")

	// changed replaces one text in a file, and puts it back afterwards.
	changed := func(name, old, new string, try func()) {
		t.Helper()
		text, err := os.ReadFile(at(name))
		if err != nil || !strings.Contains(string(text), old) {
			t.Errorf("%s has no %q: %v", name, old, err)
			return
		}
		put(name, strings.Replace(string(text), old, new, 1))
		try()
		put(name, string(text))
	}
	export, err := os.ReadFile(at("one"))
	if err != nil {
		t.Fatal(err)
	}
	_, proof, _ := strings.Cut(string(export), `"proof":["sha256:`)
	_, signature, _ := strings.Cut(string(export), `"sig":"`)
	if len(proof) < 64 || len(signature) < 40 {
		t.Fatalf("an export without proof or signature:\n%s", export)
	}
	other := func(s string) string { // a digit of both base64 and hexadecimal in place of another
		if s[0] == 'a' {
			return "b" + s[1:]
		}
		return "a" + s[1:]
	}
	changed("one", proof[:64], other(proof[:64]), func() { verify("a proof", "one", "not-included", "") })
	changed("one", signature[:40], other(signature[:40]), func() { verify("a signature", "one", "edited", "") })
	before, _, _ := strings.Cut(string(export), `"receipts":[`)
	put("none", before+`"receipts":[]}`)
	verify("no receipt", "none", "dropped", "")
	changed("all.tar", "said\n", "sued\n", func() { verify("output", "all.tar", "edited", "/stdout") })
	text, err := os.ReadFile(at("all.tar"))
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndex(text, []byte("echo 3")) // events have the words before
	put("manifest.tar", string(text[:last])+"echo 4"+string(text[last+6:]))
	verify("a manifest", "manifest.tar", "edited", "/manifest.json")
	put("cut.tar", string(text[:len(text)/2]))
	verify("a cut", "cut.tar", "truncated", "contents.json")
	key := []byte(h.pando("receipt", "key"))
	if key[60] == 'A' {
		key[60] = 'B'
	} else {
		key[60] = 'A'
	}
	put("key", string(key))
	verify("another key", "one.tar", "wrong-key", "")
}
