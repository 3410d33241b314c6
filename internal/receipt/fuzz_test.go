package receipt

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// fixedKey is the same in every run, so that inputs found before mean the
// same again. It signs nothing but tests.
func fixedKey(t testing.TB) *Key {
	d := durabletest.New()
	d.Put(KeyFile, []byte("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n"))
	k, err := OpenKey(d)
	must(t, err)
	return k
}

// A bundle that verifies is one that was exported: its receipts are those of
// the ledger, byte for byte.
func FuzzBundle(f *testing.F) {
	k := fixedKey(f)
	l := openLedger(f, sample(f, k, 5), k)
	genuine := map[string]bool{}
	for e, err := range l.Iterate(0) {
		must(f, err)
		genuine[string(e.Envelope)] = true
	}
	known := l.Head()
	for _, r := range [][2]int64{{0, 5}, {2, 3}, {1, 4}} {
		b, err := l.Export(r[0], r[1], &Head{Size: 2, Root: rootOf(records(f, sample(f, k, 2), entriesFile))})
		if err != nil {
			b, err = l.Export(r[0], r[1], nil)
		}
		must(f, err)
		text, err := b.Encode()
		must(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		boundtest.Allocates(t, len(text), func() {
			b, err := DecodeBundle(text)
			if err != nil {
				if cell.KindOf(err) != cell.Invalid {
					t.Fatal(err)
				}
				return
			}
			r := Verify(b, k.Public(), &known)
			if !r.OK() {
				return
			}
			for _, p := range b.Receipts {
				if !genuine[string(p.Envelope)] {
					t.Fatalf("verified, but never written: %s", p.Envelope)
				}
			}
		})
	})
}

// What can be read of a statement in a hurry is what a whole parse sees.
func FuzzStatement(f *testing.F) {
	b := Binding{Key: "r-1/run", Ledger: Position{1, 1, cell.Sum(nil)}, Incomplete: true, Completes: cell.Sum([]byte("x"))}
	f.Add(encodeStatement(PredicateRun, b, []byte(`"a":{"key":"x"}`), []byte(`[{"name":"a","digest":{"sha256":"`+strings.Repeat("0", 64)+`"}}]`)))
	f.Add(encodeStatement(PredicateVerdict, Binding{Key: "k", Ledger: Position{0, 0, cell.Sum(nil)}}, nil, []byte("[]")))
	one := string(encodeStatement(PredicateVerdict, Binding{Key: "k", Ledger: Position{1, 1, cell.Sum(nil)}}, nil, []byte("[]")))
	f.Add([]byte(strings.Replace(one, cell.Sum(nil).String()[7:], strings.ToUpper(cell.Sum(nil).String()[7:]), 1))) // has another digest, to the letter
	f.Add([]byte(strings.Replace(one, "},\"subject\"", ",\"Completes\":{}},\"subject\"", 1)))
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, err := parseStatement(payload)
		if err != nil {
			return
		}
		var whole, predicate map[string]json.RawMessage // names that differ in case alone are others, as they are not to fields
		if err := errors.Join(json.Unmarshal(payload, &whole), json.Unmarshal(whole["predicate"], &predicate)); err != nil {
			t.Fatal(err)
		}
		if again := encodeStatement(s.PredicateType, s.Binding, nil, nil); !bytes.HasPrefix(payload, again[:len(again)-len(part7)-1]) {
			t.Fatalf("%s\nreads as %+v", payload, s.Binding)
		}
	})
}

// An envelope has one form; what is read is what was written.
func FuzzEnvelope(f *testing.F) {
	k := fixedKey(f)
	env, err := seal(k, []byte("payload"))
	must(f, err)
	f.Add(env)
	f.Add([]byte(envelope1 + envelope2 + envelope3 + envelope4))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEnvelope(b)
		if err != nil {
			return
		}
		again := envelope1 + base64.StdEncoding.EncodeToString(e.payload) + envelope2 + e.keyid + envelope3 + base64.StdEncoding.EncodeToString(e.sig) + envelope4
		if again != string(b) {
			t.Fatalf("%q reads as %q", b, again)
		}
		check(b, keysOf(k.Public()), new([]byte))
	})
}

// A head that is trusted is one that was signed.
func FuzzHead(f *testing.F) {
	k := fixedKey(f)
	h, err := signHead(k, keysOf(k.Public()), 7, cell.Sum([]byte("x")))
	must(f, err)
	f.Add(h.Note)
	f.Add(headWith(h.Note, 8, h.Root))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseHead(b, keysOf(k.Public()))
		if err != nil {
			return
		}
		if got.Size != 7 || got.Root != h.Root {
			t.Fatalf("%q is trusted as %+v", b, got)
		}
	})
}

// Whatever the bytes are, reading ends, and both ways to read agree.
func FuzzEvents(f *testing.F) {
	b, chain := events(f, 4)
	f.Add(b)
	f.Add(b[:len(b)-5])
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		bare, err := VerifyEvents(bytes.NewReader(b), runID, nil)
		must(t, err)
		var failed error
		n := int64(0)
		for e, err := range ReadEvents(bytes.NewReader(b), runID) {
			if failed = err; err == nil {
				n++
				if e.Seq != n {
					t.Fatalf("event %d has the number %d", n, e.Seq)
				}
			}
		}
		if (bare == nil) != (failed == nil) {
			t.Fatalf("VerifyEvents %v, ReadEvents %v", bare, failed)
		}
		if p, _ := VerifyEvents(bytes.NewReader(b), runID, &chain); p == nil && n != chain.Count {
			t.Fatal("another stream has the same digest")
		}
	})
}

// After redaction nothing known can be read any more, in any way that the
// Redactor reads; and redacting never fails.
func FuzzRedactor(f *testing.F) {
	f.Add("hunter2-hunter2", "a hunter2-hunter2 b", uint8(0))
	f.Add("hunter2-hunter2", `x "aHVudGVyMi1odW50ZXIy" \u0068unter2-hunter2 h%75nter2-hunter2`, uint8(9))
	f.Add("pass word", "pass+word pa\x1b[1mss word ghp_0123456789012345678901234567890123456", uint8(3))
	f.Add("abcdabcd", "abcdabcdabcdabcd\nabcd\r\nabcd", uint8(200))
	f.Fuzz(func(t *testing.T, value, text string, at uint8) {
		r := new(Redactor)
		if r.Add(value) != nil {
			return
		}
		trimmed := strings.TrimSpace(value)
		i := min(int(at), len(text))
		for _, s := range []string{text, text[:i] + value + text[i:], text[:i] + base64.StdEncoding.EncodeToString([]byte(text[i:]+value)) + text[i:]} {
			got := r.String(s)
			if strings.ContainsAny(value, "[]") || strings.Contains(Redacted, trimmed) {
				continue // the mark itself may be part of such a value
			}
			if strings.Contains(got, trimmed) {
				t.Fatalf("%q is in %q", trimmed, got)
			}
		}
	})
}
