package receipt

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// turned is a ledger of three keys: receipts 0 and 1 are of the first, 2 the change to the second; then 3 and 4, the change to the
// third at 5 and receipt 6.
func turned(t testing.TB, d *durabletest.Disk) (l *Ledger, keys []PublicKey) {
	t.Helper()
	l, err := Open(d, d, Elsewhere{})
	must(t, err)
	for n, at := range []int{2, 5, 0} {
		keys = append(keys, l.Keys().Current())
		if at == 0 {
			fill(t, l, 7)
			break
		}
		fill(t, l, at)
		e, err := l.Rotate(ctx, KeyRequest{Reason: "it is time"})
		must(t, err)
		if int(e.Index) != at || l.Keys().Current().ID() == keys[n].ID() {
			t.Fatalf("receipt %d changed the key to %s", e.Index, l.Keys().Current().ID())
		}
	}
	return l, keys
}

func export(t testing.TB, l *Ledger, from, to int64) *Bundle {
	t.Helper()
	b, err := l.Export(from, to, nil)
	must(t, err)
	text, err := b.Encode()
	must(t, err)
	b, err = DecodeBundle(text)
	must(t, err)
	return b
}

// Each key that a ledger has had verifies all of it, and a key that it never had nothing.
func TestRotatedLedgerVerifies(t *testing.T) {
	d := durabletest.New()
	l, keys := turned(t, d)
	origin := keys[0].Origin()
	for _, key := range append(keys, newKey(t).Public()) {
		want := []string{}
		if !l.Keys().Has(key) {
			want = []string{"wrong-key -1"}
		}
		r, err := VerifyLedger(d.Crash(), key, nil)
		must(t, err)
		wantProblems(t, r, want...)
		for from := int64(0); from < 7; from++ {
			for to := from + 1; to <= 7; to++ {
				wantProblems(t, Verify(export(t, l, from, to), key, nil), want...)
			}
		}
	}
	if head, _, err := readHead(l.Head().Note); err != nil || head != origin || l.Keys().Origin() != origin {
		t.Errorf("the ledger is called %s, was %s", head, origin)
	}
	must(t, l.Close())
	if _, err := readKey(d, nextFile); cell.KindOf(err) != cell.NotFound {
		t.Errorf("the next key is still apart: %v", err)
	}
	l, err := Open(d.Crash(), d, Elsewhere{})
	must(t, err)
	fill(t, l, 9)
	if _, err := OpenLedger(d.Crash(), newKey(t)); cell.KindOf(err) != cell.Denied {
		t.Errorf("opened with another key: %v", err)
	}
}

// A history that was tampered with is named, with the first key pinned and with the newest.
func TestHistoryNamesWhatWasDone(t *testing.T) {
	l, keys := turned(t, durabletest.New())
	foreign, theirs := turned(t, durabletest.New())
	for _, x := range []struct {
		name string
		do   func(b *Bundle)
		want [2]string // with the first, with the newest
	}{
		{"untouched", func(*Bundle) {}, [2]string{"", ""}},
		{"edited", func(b *Bundle) { b.Keys[0].Envelope = edit(t, b.Keys[0].Envelope, "it is time", "it is late") }, [2]string{"edited 2", "edited 2"}},
		{"first dropped", func(b *Bundle) { b.Keys = b.Keys[1:] }, [2]string{"dropped 5", "dropped 5"}},
		{"last dropped", func(b *Bundle) { b.Keys = b.Keys[:1] }, [2]string{"wrong-key", "wrong-key -1"}},
		{"all dropped", func(b *Bundle) { b.Keys = nil }, [2]string{"wrong-key", "wrong-key"}},
		{"swapped", func(b *Bundle) { slices.Reverse(b.Keys) }, [2]string{"dropped 5", "dropped 5"}},
		{"called another", func(b *Bundle) { b.Keys[1].Index = 6 }, [2]string{"reordered 6", "reordered 6"}},
		{"of another ledger", func(b *Bundle) { b.Keys = export(t, foreign, 6, 7).Keys }, [2]string{"wrong-key -1", "wrong-key -1"}},
		{"second of another ledger", func(b *Bundle) { b.Keys[1] = export(t, foreign, 6, 7).Keys[1] }, [2]string{"wrong-key 5", "wrong-key 5"}},
		{"not shown to be there", func(b *Bundle) { b.Keys[0].Proof[0] = cell.Digest{} }, [2]string{"not-included 2", "not-included 2"}},
	} {
		b := export(t, l, 6, 7)
		x.do(b)
		for i, key := range []PublicKey{keys[0], keys[2]} {
			r := Verify(b, key, nil)
			var got []string
			for _, p := range r.Problems {
				got = append(got, fmt.Sprintf("%s %d", p.Reason, p.Index))
			}
			if fmt.Sprint(got) == "[]" && x.want[i] == "" {
				continue
			}
			if len(got) == 0 || x.want[i] == "" || slices.ContainsFunc(got, func(g string) bool { return !strings.HasPrefix(g, x.want[i]) }) {
				t.Errorf("%s, key %d: %v, want %s", x.name, i, r.Problems, x.want[i])
			}
		}
	}
	if Verify(export(t, l, 0, 7), theirs[0], nil).OK() {
		t.Error("it verifies with the key of another ledger")
	}
}

// A key that was replaced signs no more: not receipts, not heads, not another change.
func TestReplacedKeySignsNoMore(t *testing.T) {
	d := durabletest.New()
	first, err := OpenKey(d)
	must(t, err)
	l, keys := turned(t, d)
	r, at := records(t, d.Crash(), entriesFile), Position{Index: 7, Size: 7, Root: l.Head().Root}
	forged, err := seal(first, encodeStatement(PredicateRun, Binding{Key: "r-7/run", Ledger: at}, nil, []byte("[]")))
	must(t, err)
	r = append(r, forged)
	head, err := signHead(first, l.Keys(), 8, rootOf(r))
	must(t, err)
	heads := append(records(t, d.Crash(), headsFile), head.Note)
	for _, key := range []PublicKey{keys[0], keys[2]} {
		rep, err := VerifyLedger(rewritten(t, r, heads), key, nil)
		must(t, err)
		if reasons := fmt.Sprint(rep.Problems); rep.OK() || !strings.Contains(reasons, "wrong-key 7") || !strings.Contains(reasons, "wrong-key -1") {
			t.Errorf("%v", rep.Problems)
		}
	}
	if _, err := OpenLedger(rewritten(t, r, heads[:len(heads)-1]), first); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("opened: %v", err)
	}

	// It can begin another ledger from where it signed, for verifiers that know no newer key: with the newest one they see it.
	c := sample(t, first, 2)
	other := openLedger(t, c, first)
	_, err = other.ChangeKey(ctx, KeyRequest{Next: newKey(t)})
	must(t, err)
	b := export(t, other, 1, 2)
	wantProblems(t, Verify(b, keys[0], nil))
	wantProblems(t, Verify(b, keys[2], nil), "wrong-key -1")
	b.Keys = export(t, l, 6, 7).Keys
	for _, key := range keys {
		if Verify(b, key, nil).OK() {
			t.Error("a history with the true keys and another root is believed")
		}
	}
	old := openLedger(t, sample(t, first, 2), first)
	b = export(t, old, 0, 1)
	b.Keys = export(t, l, 6, 7).Keys[:1] // a true change of keys, which this head does not know of
	wantProblems(t, Verify(b, keys[1], nil), "wrong-key -1")
}

// What a revoked key signed from the receipt on that its revocation names is refused; what is before stays good.
func TestRevokedKey(t *testing.T) {
	for _, x := range []struct {
		name    string
		revoke  int // of the keys; the third is the one that signs
		since   int64
		refused []string
	}{
		{"the first, from its last receipt on", 0, 1, []string{"revoked 1"}},
		{"the first, all of it", 0, 0, []string{"revoked 0", "revoked 1"}},
		{"the second", 1, 4, []string{"revoked 4"}},
		{"the second, after it was replaced", 1, 5, nil},
		{"the first, from now on", 0, -1, nil},
		{"the one that signs, from now on", 2, -1, nil},
		{"the one that signs, from before", 2, 6, []string{"revoked 6"}},
		{"the one that signs, from before its time", 2, 1, []string{"revoked 6"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			d := durabletest.New()
			l, keys := turned(t, d)
			e, err := l.Rotate(ctx, KeyRequest{Revoke: keys[x.revoke].ID(), Since: x.since, Reason: "lost <laptop>"})
			must(t, err)
			if changed := l.Keys().Current().ID() != keys[2].ID(); changed != (x.revoke == 2) {
				t.Errorf("another key signs: %v", changed)
			}
			fill(t, l, 9)
			for _, key := range append(keys, l.Keys().Current()) {
				r, err := VerifyLedger(d.Crash(), key, nil)
				must(t, err)
				wantProblems(t, r, x.refused...)
				wantProblems(t, Verify(export(t, l, 0, 9), key, nil), x.refused...)
				wantProblems(t, Verify(export(t, l, 0, 8), key, nil), x.refused...)
				wantProblems(t, Verify(export(t, l, e.Index, 9), key, nil))

				b := export(t, l, 6, 7) // without the revocation it can't be believed
				b.Keys = b.Keys[:2]
				if r := Verify(b, key, nil); r.OK() || x.revoke != 2 && r.Problems[0].Reason != Dropped {
					t.Errorf("%v", r.Problems)
				}
			}
			must(t, l.Close())
			l, err = Open(d.Crash(), d, Elsewhere{})
			must(t, err)
			fill(t, l, 10)
		})
	}
	l, keys := turned(t, durabletest.New())
	for _, req := range []KeyRequest{
		{Revoke: newKey(t).Public().ID(), Since: -1},
		{Revoke: keys[0].ID(), Since: 8},
		{Revoke: keys[0].ID(), Since: -1, Next: newKey(t)},
	} {
		if _, err := l.Rotate(ctx, req); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if _, err := l.ChangeKey(ctx, KeyRequest{Revoke: keys[2].ID(), Since: -1}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("no key signs any more: %v", err)
	}
	if _, err := l.Append(ctx, Request{Key: "x", Type: PredicateKey, Subjects: []Subject{{"x", cell.Sum(nil)}}, Predicate: KeyChange{}}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a change of keys is appended: %v", err)
	}
	if _, err := l.Attest(PredicateKey, nil, KeyChange{}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a change of keys is signed outside the ledger: %v", err)
	}
}

// The next key has to state that it goes on: a key can't be named as the next one without its private half.
func TestNextKeyHasToState(t *testing.T) {
	k, other := newKey(t), newKey(t)
	d := sample(t, k, 1)
	l := openLedger(t, d, k)
	at := Position{Index: 1, Size: 1, Root: l.Head().Root}
	c, _, err := l.newChange(KeyRequest{Next: other}, at)
	must(t, err)
	elsewhere, err := other.Sign(goesOn(k.Public().Origin(), Position{Index: 1, Root: cell.Sum(nil)}, k.Public(), other.Public()))
	must(t, err)
	right := c.Next.Proof
	for what, proof := range map[string][]byte{"right": nil, "none": {}, "of another place": elsewhere} {
		c.Next.Proof = right
		if proof != nil {
			c.Next.Proof = base64.StdEncoding.EncodeToString(proof)
		}
		members, err := encodePredicate(c)
		must(t, err)
		sealed := func(members []byte) []byte {
			env, err := seal(k, encodeStatement(PredicateKey, Binding{Key: "key/1", Ledger: at}, members, []byte("[]")))
			must(t, err)
			return env
		}
		if reason, _ := keysOf(k.Public()).extend(1, sealed(members)); (reason == "") != (proof == nil) {
			t.Errorf("%s: %q", what, reason)
		}
		if proof == nil { // two readers of one change must not read two things
			twice := bytes.Replace(members, []byte(`"act":`), []byte(`"Act":"revoke","act":`), 1)
			if reason, _ := keysOf(k.Public()).extend(1, sealed(twice)); reason != Edited {
				t.Errorf("written otherwise: %q", reason)
			}
		}
	}
}

// The power goes, or the process is killed, after every single call of a rotation: the ledger opens with the key before or the
// one after, verifies with both, and goes on; the private half of the one before is gone when the other signs.
func TestRotationSurvivesCrashAtEveryCall(t *testing.T) {
	d := durabletest.New()
	l, err := Open(d, d, Elsewhere{})
	must(t, err)
	fill(t, l, 2)
	old := l.Keys().Current()
	check := func(what string, c *durabletest.Disk) {
		t.Helper()
		what = fmt.Sprintf("%s after call %d (%s)", what, d.Calls(), strings.TrimSpace(d.Trace(d.Calls()-1)))
		if r, err := VerifyLedger(c, old, nil); err != nil || !r.OK() {
			t.Fatalf("%s: %v, %+v", what, err, r)
		}
		l, err := Open(c, c, Elsewhere{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		current := l.Keys().Current()
		public, err := LoadPublicKey(c)
		must(t, err)
		own, err := readKey(c, KeyFile)
		must(t, err)
		if public.ID() != current.ID() || own.Public().ID() != current.ID() {
			t.Fatalf("%s: the files are of another key", what)
		}
		if rotated := l.Len() == 3; rotated != (current.ID() != old.ID()) {
			t.Fatalf("%s: %d receipts, key %s", what, l.Len(), current.ID())
		}
		_, err = l.Rotate(ctx, KeyRequest{})
		must(t, err)
		fill(t, l, 6)
		must(t, l.Close())
		for _, key := range []PublicKey{old, l.Keys().Current()} {
			if r, err := VerifyLedger(c, key, nil); err != nil || !r.OK() || r.Receipts != 6 {
				t.Fatalf("%s, gone on: %v, %+v", what, err, r)
			}
		}
	}
	d.After = func(c durabletest.Call) {
		if c.Op == "open" || c.Op == "list" {
			return
		}
		check("power loss", d.Crash())
		check("kill", d.Kill())
		for seed := range 5 {
			check(fmt.Sprintf("power loss %d", seed), d.CrashSome(uint64(seed)))
		}
	}
	_, err = l.Rotate(ctx, KeyRequest{})
	must(t, err)
	must(t, l.Close())
}

// A signer elsewhere begins a ledger, takes one over, and gives it back.
func TestSignerElsewhere(t *testing.T) {
	d, away := durabletest.New(), newKey(t)
	l, err := Open(d, d, Elsewhere{})
	must(t, err)
	fill(t, l, 1)
	must(t, l.Close())
	l, err = Open(d, d, Elsewhere{Signs: away})
	must(t, err)
	fill(t, l, 2) // by the file still
	_, err = l.Rotate(ctx, KeyRequest{})
	must(t, err)
	fill(t, l, 4)
	if l.Signer() != Signer(away) {
		t.Error("another one signs")
	}
	if _, err := l.Rotate(ctx, KeyRequest{}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("a second change to the same signer: %v", err)
	}
	must(t, l.Close())
	if _, err := readKey(d, KeyFile); cell.KindOf(err) != cell.NotFound {
		t.Errorf("the file of the key is still there: %v", err)
	}
	if _, err := Open(d, d, Elsewhere{}); err == nil {
		t.Error("it opens without its signer")
	}
	l, err = Open(d, d, Elsewhere{Before: away})
	must(t, err)
	_, err = l.Rotate(ctx, KeyRequest{})
	must(t, err)
	fill(t, l, 6)
	r, err := VerifyLedger(d, away.Public(), nil)
	must(t, err)
	wantProblems(t, r)
}
