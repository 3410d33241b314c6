package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// evidence is an exported ledger on another machine, which has the public key.
type evidence struct {
	*host
	key string
	n   int
}

func (e *evidence) save(b *receipt.Bundle) string {
	e.t.Helper()
	e.n++
	path := filepath.Join(e.work, fmt.Sprintf("evidence-%d.json", e.n))
	text, err := b.Encode()
	e.must(err)
	e.must(os.WriteFile(path, text, 0o600))
	return path
}

// verified runs receipt verify on the other machine and returns what it says.
func (e *evidence) verified(b *receipt.Bundle, flags ...string) (v api.Verification) {
	e.t.Helper()
	o := e.try(append([]string{"receipt", "verify", e.save(b), "--key", e.key, "--json"}, flags...)...)
	if err := json.Unmarshal([]byte(o.out), &v); err != nil || (o.code == 0) != v.OK || !v.OK && o.code != int(api.ExitVerifyFailure) {
		e.t.Fatalf("receipt verify: exit code %d, ok %v, %v\n%s", o.code, v.OK, err, o.stderr)
	}
	return v
}

// payload is the statement of an envelope.
func payload(t *testing.T, env json.RawMessage) string {
	t.Helper()
	var e struct {
		Payload []byte `json:"payload"`
	}
	must(t, json.Unmarshal(env, &e))
	return string(e.Payload)
}

// edited changes a statement and nothing else of its envelope.
func edited(t *testing.T, env json.RawMessage, old, new string) json.RawMessage {
	t.Helper()
	text := payload(t, env)
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is %d times in %s", old, strings.Count(text, old), text)
	}
	enc := base64.StdEncoding.EncodeToString
	return json.RawMessage(strings.Replace(string(env), enc([]byte(text)), enc([]byte(strings.Replace(text, old, new, 1))), 1))
}

// rootOf is the root of a ledger of these receipts, after RFC 6962.
func rootOf(t *testing.T, receipts []receipt.Proven) cell.Digest {
	t.Helper()
	var stored []tlog.Hash
	read := tlog.HashReaderFunc(func(indexes []int64) (out []tlog.Hash, err error) {
		for _, i := range indexes {
			out = append(out, stored[i])
		}
		return out, nil
	})
	for i, r := range receipts {
		more, err := tlog.StoredHashes(int64(i), r.Envelope, read)
		must(t, err)
		stored = append(stored, more...)
	}
	root, err := tlog.TreeHash(int64(len(receipts)), read)
	must(t, err)
	return cell.Digest(root)
}

func copyOf(b *receipt.Bundle) *receipt.Bundle {
	c := *b
	c.Receipts = append([]receipt.Proven(nil), b.Receipts...)
	return &c
}

func TestF07VerifyNamesWhatWasDone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("f", "old\n")
	var older *receipt.Bundle
	export := func() *receipt.Bundle {
		b, err := receipt.DecodeBundle([]byte(h.pando("receipt", "export", "--all", "-o", "-")))
		h.must(err)
		return b
	}
	for i := range 3 {
		h.exits(i, "run", "--cell", "c", "--on-failure", "pending", "--", "sh", "-c", fmt.Sprintf("echo %d > f; exit %d", i, i))
		if i == 1 {
			older = export()
		}
	}
	all := export()
	there := newHost(t)
	e := &evidence{host: there, key: filepath.Join(there.work, "pando.pub")}
	there.writeAt(e.key, h.pando("receipt", "key"))

	if v := e.verified(all); !v.OK || v.Receipts != 3 || len(v.Unproven) != 1 {
		t.Fatalf("untouched: %+v", v)
	}
	cases := []struct {
		name, want string
		do         func(b *receipt.Bundle)
	}{
		{"edited", "edited", func(b *receipt.Bundle) {
			b.Receipts[1].Envelope = edited(t, b.Receipts[1].Envelope, `"exit_code":1`, `"exit_code":0`)
		}},
		{"recomputed", "recomputed", func(b *receipt.Bundle) {
			before := rootOf(t, b.Receipts[:2])
			b.Receipts[1].Envelope = edited(t, b.Receipts[1].Envelope, `"exit_code":1`, `"exit_code":0`)
			b.Receipts[2].Envelope = edited(t, b.Receipts[2].Envelope, before.String(), rootOf(t, b.Receipts[:2]).String())
			root := rootOf(t, b.Receipts)
			lines := strings.SplitN(b.Head, "\n", 4)
			lines[2] = base64.StdEncoding.EncodeToString(root[:])
			b.Head = strings.Join(lines, "\n")
		}},
		{"the middle one dropped", "dropped", func(b *receipt.Bundle) { b.Receipts = append(b.Receipts[:1:1], b.Receipts[2]) }},
		{"two swapped", "reordered", func(b *receipt.Bundle) { b.Receipts[0], b.Receipts[1] = b.Receipts[1], b.Receipts[0] }},
		{"the end cut off, and an older head put there", "", func(b *receipt.Bundle) { b.Receipts, b.Head = b.Receipts[:2], older.Head }},
	}
	for _, c := range cases {
		b := copyOf(all)
		c.do(b)
		v := e.verified(b)
		if c.want == "" {
			// Without a newer head this can't be detected, and verification says so.
			if !v.OK || len(v.Unproven) == 0 {
				t.Errorf("%s: %+v", c.name, v)
			}
			known := e.save(all)
			if v = e.verified(b, "--known", known); v.OK || v.Problems[0].Reason != "truncated" {
				t.Errorf("%s, with the newest head known: %+v", c.name, v.Problems)
			}
			continue
		}
		if v.OK || v.Problems[0].Reason != c.want {
			t.Errorf("%s: %+v", c.name, v.Problems)
		}
		for _, p := range v.Problems {
			if p.Reason != c.want {
				t.Errorf("%s: also %+v", c.name, p)
			}
		}
	}
	// A ledger that extends the known one is valid.
	if v := e.verified(all, "--known", e.save(older)); !v.OK {
		t.Errorf("a newer ledger than the known one: %+v", v.Problems)
	}
	if _, err := os.Stat(there.socket()); err == nil {
		t.Error("verifying has started a daemon")
	}
	// Another's key verifies nothing.
	stranger := newHost(t)
	stranger.pando("run", "--", "true")
	there.writeAt(e.key, stranger.pando("receipt", "key"))
	if v := e.verified(all); v.OK || v.Problems[0].Reason != "wrong-key" {
		t.Errorf("another's key: %+v", v.Problems)
	}
}
