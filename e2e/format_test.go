package e2e

import (
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

// A verifier written from docs/format.md alone accepts pando's evidence, and rejects every
// change of it.
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
	if err := os.CopyFS(at("state"), os.DirFS(h.state())); err != nil {
		t.Fatal(err)
	}
	verifier, err := filepath.Abs("../examples/verify/verify.py")
	if err != nil {
		t.Fatal(err)
	}
	verify := func(what string, ok bool, want string, args ...string) {
		t.Helper()
		o := h.exec(h.cmd(python, append([]string{verifier, at("key")}, args...)...))
		if (o.code == 0) != ok || !strings.Contains(o.out+o.stderr, want) {
			t.Errorf("%s: it ends with %d, without %q:\n%s%s", what, o.code, want, o.out, o.stderr)
		}
	}
	ledger, runs := at("state/ledger"), at("state/runs")
	verify("all receipts", true, "4 receipts are genuine", at("all"))
	verify("one receipt", true, "1 receipts are genuine", at("one"))
	verify("the ledger", true, "4 receipts are genuine", ledger, "--runs", runs)

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
	bundle, err := os.ReadFile(at("one"))
	if err != nil {
		t.Fatal(err)
	}
	_, proof, _ := strings.Cut(string(bundle), `"proof":["sha256:`)
	_, signature, _ := strings.Cut(string(bundle), `"sig":"`)
	if len(proof) < 64 || len(signature) < 40 {
		t.Fatalf("an export without proof or signature:\n%s", bundle)
	}
	other := func(s string) string { // a digit of both base64 and hexadecimal in place of another
		if s[0] == 'a' {
			return "b" + s[1:]
		}
		return "a" + s[1:]
	}
	changed("one", proof[:64], other(proof[:64]), func() { verify("a proof", false, "not shown to be in the ledger", at("one")) })
	changed("one", signature[:40], other(signature[:40]), func() { verify("a signature", false, "its signature is not right", at("one")) })
	changed("all", `"index":1,`, `"index":2,`, func() { verify("an order", false, "in another's place", at("all")) })
	changed("state/ledger/entries", `"sig":"`, `"sig":"A`, func() { verify("an entry", false, "record 1 was changed", ledger) })
	id := strings.TrimSpace(h.sh(`cd "` + runs + `" && grep -l echo */manifest.json | head -1 | cut -d/ -f1`))
	changed("state/runs/"+id+"/manifest.json", "echo", "exho", func() { verify("a manifest", false, "manifest.json was changed", ledger, "--runs", runs) })
	text, err := os.ReadFile(filepath.Join(ledger, "entries"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	put("state/ledger/entries", strings.Join(lines[:len(lines)-2], ""))
	verify("a cut", false, "there are 3 receipts, and the head signs 4", ledger)
	key := []byte(h.pando("receipt", "key"))
	if key[60] == 'A' {
		key[60] = 'B'
	} else {
		key[60] = 'A'
	}
	put("key", string(key))
	verify("another key", false, "the head is not one of this ledger", at("one"))
}
