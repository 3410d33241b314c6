package signer

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/receipt"
)

// TestMain is the signing program, too: it signs with a key of zeros.
func TestMain(m *testing.M) {
	kind := ""
	if len(os.Args) > 1 {
		kind, _ = strings.CutPrefix(os.Args[1], "signs=")
	}
	if kind == "" {
		os.Exit(m.Run())
	}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	if os.Args[len(os.Args)-1] == "public" {
		fmt.Println("ed25519:" + base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey)))
		return
	}
	in, err := os.ReadFile("/dev/stdin")
	if err != nil {
		panic(err)
	}
	sig := ed25519.Sign(key, in)
	switch kind {
	case "raw":
		os.Stdout.Write(sig)
	case "base64":
		fmt.Println(base64.StdEncoding.EncodeToString(sig))
	case "wrong":
		os.Stdout.Write(ed25519.Sign(key, append(in, 'x')))
	case "short":
		os.Stdout.Write(sig[:63])
	case "fails":
		fmt.Fprintln(os.Stderr, "the token is not there")
		os.Exit(3)
	}
}

func open(t *testing.T, kind string) receipt.Signer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var s Settings
	s.Signer.Command = []string{self, "signs=" + kind}
	e, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	return e.Signs
}

// A program signs a ledger; what it answers counts only if it is a signature by its key, and its failure is the receipt's.
func TestProgram(t *testing.T) {
	for kind, want := range map[string]string{"raw": "", "base64": "", "wrong": "no signature", "short": "no signature", "fails": "the token is not there"} {
		s := open(t, kind)
		d := durabletest.New()
		l, err := receipt.Open(d, d, receipt.Elsewhere{Signs: s})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Append(t.Context(), receipt.Request{Key: "r-1/run", Type: receipt.PredicateRun, Predicate: map[string]any{}, Subjects: []receipt.Subject{{Name: "x", Digest: cell.Sum(nil)}}})
		what, tried := Try(s)
		if want == "" {
			rep, verr := receipt.VerifyLedger(d.Crash(), s.Public(), nil)
			if err != nil || tried != nil || !strings.HasPrefix(what, "the program ") || verr != nil || !rep.OK() || rep.Receipts != 1 {
				t.Errorf("%s: %v, %v %q, %+v", kind, err, tried, what, rep)
			}
			if _, err := d.Open(receipt.KeyFile); err == nil {
				t.Errorf("%s: a key was made beside it", kind)
			}
			continue
		}
		if cell.KindOf(err) != cell.Unavailable || !strings.Contains(err.Error(), want) || tried == nil || l.Len() != 0 {
			t.Errorf("%s: %v, %v", kind, err, tried)
		}
	}
}

func TestSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signer.yaml")
	if s, err := Read(path); err != nil || s.Signer.Command != nil {
		t.Errorf("without a file: %+v, %v", s, err)
	}
	for text, kind := range map[string]cell.Kind{
		"signer: {command: [/bin/kms, -k, a]}":     "",
		"signer: {command: [kms]}":                 cell.Invalid,
		"signer: {previous: [kms]}":                cell.Invalid,
		"signer: {program: [/bin/kms]}":            cell.Invalid,
		"signer: {command: [/bin/kms]}\nother: {}": cell.Invalid,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); kind == "" && err != nil || kind != "" && cell.KindOf(err) != kind {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := os.Chmod(path, 0o622); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); cell.KindOf(err) != cell.Denied {
		t.Errorf("a file that others write to: %v", err)
	}
}
