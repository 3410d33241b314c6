package receipt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// forge is a ledger after an attacker with knowledge of all forms and no key.
type forge struct {
	entries, heads [][]byte
}

func forged(t testing.TB, d durable.FS) *forge {
	return &forge{records(t, d, entriesFile), records(t, d, headsFile)}
}

// recompute makes all hashes fit after the entry with that index was edited:
// what later receipts say of the ledger before them, and the newest head.
func (f *forge) recompute(t testing.TB, from int) {
	for i := from + 1; i < len(f.entries); i++ {
		e, err := parseEnvelope(f.entries[i])
		must(t, err)
		_, b, _, err := parseBinding(e.payload)
		must(t, err)
		f.entries[i] = edit(t, f.entries[i], b.Ledger.Root.String(), rootOf(f.entries[:i]).String())
	}
	last := f.heads[len(f.heads)-1]
	f.heads[len(f.heads)-1] = headWith(last, int64(len(f.entries)), rootOf(f.entries))
}

// F7: what is done to a ledger's files is found with the public key alone, and
// each kind has its own reason.
func TestF7LedgerNamesWhatWasDone(t *testing.T) {
	k, thief := newKey(t), newKey(t)
	newest := func() *Head {
		l := openLedger(t, sample(t, k, 5), k)
		h := l.Head()
		return &h
	}()
	for _, c := range []struct {
		name string
		do   func(t *testing.T, f *forge)
		want []string
		says string
	}{
		{"untouched", func(*testing.T, *forge) {}, nil, ""},
		{"edited", func(t *testing.T, f *forge) { f.entries[2] = edit(t, f.entries[2], `"exit_code":2`, `"exit_code":0`) },
			[]string{"edited 2"}, "the signature of receipt 2 is not right, and does not fit the ledger"},
		{"edited, last", func(t *testing.T, f *forge) { f.entries[4] = edit(t, f.entries[4], `"exit_code":4`, `"exit_code":0`) },
			[]string{"edited 4"}, ""},
		{"two edited", func(t *testing.T, f *forge) {
			f.entries[1] = edit(t, f.entries[1], "governed", "open")
			f.entries[3] = edit(t, f.entries[3], "governed", "open")
		}, []string{"edited 1", "edited 3"}, ""},
		{"index edited", func(t *testing.T, f *forge) { f.entries[2] = edit(t, f.entries[2], `"index":2`, `"index":4`) }, []string{"edited 2"}, ""},
		{"made unreadable", func(t *testing.T, f *forge) { f.entries[2] = []byte("{}") }, []string{"edited 2"}, "receipt 2 is not a receipt any more"},
		{"signature edited", func(t *testing.T, f *forge) {
			i := bytes.Index(f.entries[2], []byte(envelope3)) + len(envelope3)
			f.entries[2] = bytes.Clone(f.entries[2])
			f.entries[2][i] ^= 1
		}, []string{"edited 2"}, ""},
		{"key name edited", func(t *testing.T, f *forge) {
			f.entries[2] = bytes.Replace(f.entries[2], []byte(k.Public().ID()), []byte(thief.Public().ID()), 1)
		}, []string{"edited 2"}, ""},
		{"head edited", func(t *testing.T, f *forge) { f.heads[5] = headWith(f.heads[5], 5, cell.Sum([]byte("x"))) },
			[]string{"edited -1"}, "the head's signature is wrong"},
		{"head made unreadable", func(t *testing.T, f *forge) { f.heads[5] = []byte("x") }, []string{"edited -1"}, ""},
		{"recomputed", func(t *testing.T, f *forge) {
			f.entries[2] = edit(t, f.entries[2], `"exit_code":2`, `"exit_code":0`)
			f.recompute(t, 2)
		}, []string{"recomputed 2", "recomputed 3", "recomputed 4", "recomputed -1"}, "the signature of receipt 2 is not right, though its hash fits the ledger"},
		{"recomputed, last", func(t *testing.T, f *forge) {
			f.entries[4] = edit(t, f.entries[4], `"exit_code":4`, `"exit_code":0`)
			f.recompute(t, 4)
		}, []string{"recomputed 4", "recomputed -1"}, ""},
		{"dropped", func(t *testing.T, f *forge) { f.entries = slices.Delete(f.entries, 2, 3) }, []string{"dropped 2"}, "receipt 2 is missing"},
		{"first dropped", func(t *testing.T, f *forge) { f.entries = slices.Delete(f.entries, 0, 1) }, []string{"dropped 0"}, ""},
		{"two dropped", func(t *testing.T, f *forge) { f.entries = slices.Delete(f.entries, 1, 3) }, []string{"dropped 1", "dropped 2"}, ""},
		{"dropped, head recomputed", func(t *testing.T, f *forge) {
			f.entries = slices.Delete(f.entries, 2, 3)
			f.heads[5] = headWith(f.heads[5], 4, rootOf(f.entries))
		}, []string{"dropped 2", "recomputed -1"}, ""},
		{"swapped", func(t *testing.T, f *forge) { f.entries[1], f.entries[2] = f.entries[2], f.entries[1] },
			[]string{"reordered 1"}, "receipt 1 stands after receipt 2"},
		{"repeated", func(t *testing.T, f *forge) { f.entries = slices.Insert(f.entries, 3, f.entries[2]) }, []string{"repeated 2"}, ""},
		{"end cut off", func(t *testing.T, f *forge) { f.entries = f.entries[:3] }, []string{"truncated 3"}, "the receipts end at 3, the head signs 5"},
		{"all cut off", func(t *testing.T, f *forge) { f.entries = nil }, []string{"truncated 0"}, ""},
		{"dropped and end cut off", func(t *testing.T, f *forge) { f.entries = slices.Delete(f.entries[:4], 1, 2) }, []string{"dropped 1", "truncated 4"}, ""},
		{"end cut off with its heads", func(t *testing.T, f *forge) { f.entries, f.heads = f.entries[:3], f.heads[:4] },
			[]string{"truncated -1"}, "the head has 3 receipts, a head of 5 is known"},
		{"everything cut off", func(t *testing.T, f *forge) { f.entries, f.heads = nil, nil }, []string{"truncated -1"}, "the ledger has no signed head"},
		{"heads cut off", func(t *testing.T, f *forge) { f.heads = nil }, []string{"truncated -1"}, "the ledger has no signed head"},
		{"heads reordered", func(t *testing.T, f *forge) { f.heads = append(f.heads, f.heads[2]) }, []string{"reordered -1"}, "a head of 2 receipts was written after one of 5"},
		{"older head edited", func(t *testing.T, f *forge) { f.heads[2] = headWith(f.heads[2], 2, cell.Sum(nil)) }, []string{"edited -1"}, "an earlier head was changed"},
		{"forged at the end", func(t *testing.T, f *forge) {
			f.entries = append(f.entries, edit(t, f.entries[4], `"index":4,"size":4`, `"index":5,"size":5`))
		}, []string{"added 5"}, "what stands after the last receipt is not one"},
		{"one signed by another key", func(t *testing.T, f *forge) {
			f.entries[2] = records(t, sample(t, thief, 5), entriesFile)[2]
		}, []string{"wrong-key 2"}, "receipt 2 is signed by another key"},
		{"all signed by another key", func(t *testing.T, f *forge) { *f = *forged(t, sample(t, thief, 2)) },
			[]string{"wrong-key -1", "wrong-key -1", "wrong-key 0", "wrong-key 1", "wrong-key -1"}, "an earlier head was changed"},
		{"head signed by another key", func(t *testing.T, f *forge) {
			h, err := signHead(thief, keysOf(thief.Public()), 5, rootOf(f.entries))
			must(t, err)
			f.heads[5] = h.Note
		}, []string{"wrong-key -1"}, "the head is signed by another key, of pando.dev/ledger/"},
		{"head of another history, same size", func(t *testing.T, f *forge) {
			h, err := signHead(k, keysOf(k.Public()), 5, cell.Sum([]byte("another")))
			must(t, err)
			f.heads = append(f.heads, h.Note)
		}, []string{"forked -1", "forked -1", "forked -1"}, "the 5 receipts are genuine, but they are not those that the head signs"},
		{"earlier head of another history", func(t *testing.T, f *forge) {
			h, err := signHead(k, keysOf(k.Public()), 3, cell.Sum([]byte("another")))
			must(t, err)
			f.heads[3] = h.Note
		}, []string{"forked -1"}, "the receipts are not those of an earlier head of 3 receipts"},
		{"rolled back and gone on", func(t *testing.T, f *forge) {
			// As if from a backup of the third receipt, with the key.
			d := rewritten(t, f.entries[:3], f.heads[:4])
			l := openLedger(t, d, k)
			for i := range 2 {
				_, err := l.Append(ctx, request(fmt.Sprintf("other-%d/run", i), map[string]any{}))
				must(t, err)
			}
			*f = *forged(t, d)
		}, []string{"forked -1"}, "there are two signed heads of 5 receipts"},
		{"one receipt of another history", func(t *testing.T, f *forge) {
			d := rewritten(t, f.entries[:3], f.heads[:4])
			l := openLedger(t, d, k)
			e, err := l.Append(ctx, request("other/run", map[string]any{}))
			must(t, err)
			f.entries[3] = e.Envelope
		}, []string{"forked 4"}, "receipt 4 followed other receipts than those that are before it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := forged(t, sample(t, k, 5))
			c.do(t, f)
			r := verifyDisk(t, rewritten(t, f.entries, f.heads), k, newest)
			wantProblems(t, r, c.want...)
			if c.says != "" && (r.OK() || !strings.Contains(r.Problems[0].What, c.says)) {
				t.Errorf("says %v, want %q", r.Problems, c.says)
			}
			// The daemon does not go on from such a ledger, unless only the
			// verifier can know.
			_, err := OpenLedger(rewritten(t, f.entries, f.heads), k)
			hidden := c.name == "end cut off with its heads" || c.name == "everything cut off" || c.name == "heads cut off" || c.name == "rolled back and gone on" || c.want == nil
			if hidden && err != nil || !hidden && cell.KindOf(err) != cell.Corrupt {
				t.Errorf("OpenLedger: %v", err)
			}
		})
	}
}

// F7 with an editor: the lines of the file are changed and their sums are not.
func TestF7LedgerFileEditedByHand(t *testing.T) {
	k := newKey(t)
	for _, c := range []struct {
		name string
		do   func(lines [][]byte) [][]byte
		want []string
	}{
		{"line edited", func(l [][]byte) [][]byte {
			l[3] = bytes.Replace(l[3], []byte(`"payload":"ey`), []byte(`"payload":"eY`), 1)
			return l
		}, []string{"edited 2"}},
		{"last line edited", func(l [][]byte) [][]byte {
			l[5] = bytes.Replace(l[5], []byte(`"payload":"ey`), []byte(`"payload":"eY`), 1)
			return l
		}, []string{"edited 4"}},
		{"line removed", func(l [][]byte) [][]byte { return slices.Delete(l, 3, 4) }, []string{"dropped 2"}},
		{"lines swapped", func(l [][]byte) [][]byte { l[2], l[3] = l[3], l[2]; return l }, []string{"reordered 1"}},
		{"last line removed", func(l [][]byte) [][]byte { return l[:5] }, []string{"truncated 4"}},
		{"last line cut", func(l [][]byte) [][]byte { l[5] = l[5][:30]; return l }, []string{"edited 4"}},
		{"sum edited", func(l [][]byte) [][]byte { copy(l[3], "00000000"); return l }, []string{"damaged 2"}},
		{"first line edited", func(l [][]byte) [][]byte { l[0][15] ^= 1; return l }, []string{"damaged 0", "damaged 1", "damaged 2", "damaged 3", "damaged 4"}},
		{"something put in", func(l [][]byte) [][]byte { return slices.Insert(l, 3, []byte("hello\n")) }, []string{"edited 2", "repeated 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := sample(t, k, 5)
			d.Put(entriesFile, bytes.Join(c.do(bytes.SplitAfter(d.Get(entriesFile), []byte("\n"))), nil))
			wantProblems(t, verifyDisk(t, d, k, nil), c.want...)
			if _, err := OpenLedger(d, k); cell.KindOf(err) != cell.Corrupt {
				t.Errorf("OpenLedger: %v", err)
			}
		})
	}
}

// A write that power loss tore apart is not a problem of the ledger.
func TestTornTailIsNoProblem(t *testing.T) {
	k := newKey(t)
	d := sample(t, k, 3)
	for _, name := range []string{entriesFile, headsFile} {
		b := d.Get(name)
		d.Put(name, append(b, b[len(b)-300:len(b)-20]...))
	}
	r := verifyDisk(t, d, k, nil)
	wantProblems(t, r)
	if !strings.Contains(strings.Join(r.Unproven, "\n"), "no complete receipt") {
		t.Errorf("%q", r.Unproven)
	}
	l := openLedger(t, d, k)
	fill(t, l, 4)
	wantProblems(t, verifyDisk(t, d, k, nil))
}

func TestF7Tiles(t *testing.T) {
	k := newKey(t)
	d := sample(t, k, 300)
	if r := verifyDisk(t, d, k, nil); !r.OK() || len(r.Unproven) != 1 {
		t.Fatalf("%+v", r)
	}
	name := "tile/0/000"
	b := d.Get(name)
	if len(b) != 8192 {
		t.Fatalf("%s has %d bytes", name, len(b))
	}
	b[5] ^= 1
	d.Put(name, b)
	r := verifyDisk(t, d, k, nil)
	wantProblems(t, r, "edited -1")
	if r.Problems[0].What != "tile/0/000 does not fit the receipts" {
		t.Error(r.Problems)
	}
	if _, err := OpenLedger(d, k); cell.KindOf(err) != cell.Corrupt || !strings.Contains(err.Error(), name) {
		t.Errorf("%v", err)
	}
	must(t, d.Remove(name))
	r = verifyDisk(t, d, k, nil)
	if !r.OK() || !strings.Contains(strings.Join(r.Unproven, "\n"), name) {
		t.Errorf("%+v", r)
	}
	openLedger(t, d, k)
	if len(d.Get(name)) != 8192 {
		t.Error("the missing tile was not made again")
	}
	wantProblems(t, verifyDisk(t, d, k, nil))
}

// F7 for what is handed to others: one receipt, some, all.
func TestF7BundleNamesWhatWasDone(t *testing.T) {
	k, thief := newKey(t), newKey(t)
	l := openLedger(t, sample(t, k, 7), k)
	newest := l.Head()
	type mod func(t *testing.T, b *Bundle)
	env := func(i int, old, new string) mod {
		return func(t *testing.T, b *Bundle) { b.Receipts[i].Envelope = edit(t, b.Receipts[i].Envelope, old, new) }
	}
	none := func(*testing.T, *Bundle) {}
	for _, c := range []struct {
		name     string
		from, to int64
		do       mod
		known    *Head
		want     []string
	}{
		{"one, untouched", 3, 4, none, &newest, nil},
		{"some, untouched", 2, 5, none, &newest, nil},
		{"all, untouched", 0, 7, none, &newest, nil},
		{"one, edited", 3, 4, env(0, `"exit_code":3`, `"exit_code":0`), nil, []string{"edited 3"}},
		{"some, edited", 2, 5, env(1, `"exit_code":3`, `"exit_code":0`), nil, []string{"edited 3"}},
		{"all, edited", 0, 7, env(3, `"exit_code":3`, `"exit_code":0`), nil, []string{"edited 3"}},
		{"one, recomputed", 0, 1, func(t *testing.T, b *Bundle) {
			env(0, `"exit_code":0`, `"exit_code":9`)(t, b)
			// The only proof with an easily computed root: a tree of one.
			b.Receipts[0].Proof = nil
			b.Head = string(headWith([]byte(b.Head), 1, cell.Digest(leafHash(b.Receipts[0].Envelope))))
		}, nil, []string{"recomputed 0", "recomputed -1"}},
		{"all, recomputed", 0, 7, func(t *testing.T, b *Bundle) {
			f := &forge{heads: [][]byte{[]byte(b.Head)}}
			for _, p := range b.Receipts {
				f.entries = append(f.entries, p.Envelope)
			}
			f.entries[5] = edit(t, f.entries[5], `"exit_code":5`, `"exit_code":0`)
			f.recompute(t, 5)
			for i, e := range f.entries {
				b.Receipts[i].Envelope = e
			}
			b.Head = string(f.heads[0])
		}, nil, []string{"recomputed 5", "recomputed 6", "recomputed -1"}},
		{"one, dropped", 3, 4, func(_ *testing.T, b *Bundle) { b.Receipts = nil }, nil, []string{"dropped -1"}},
		{"some, middle dropped", 2, 5, func(_ *testing.T, b *Bundle) { b.Receipts = slices.Delete(b.Receipts, 1, 2) }, nil, []string{"dropped 3"}},
		{"all, middle dropped", 0, 7, func(_ *testing.T, b *Bundle) { b.Receipts = slices.Delete(b.Receipts, 3, 4) }, nil, []string{"dropped 3"}},
		{"all, last dropped", 0, 7, func(_ *testing.T, b *Bundle) { b.Receipts = b.Receipts[:6] }, nil, []string{"truncated 6"}},
		{"all, all dropped", 0, 7, func(_ *testing.T, b *Bundle) { b.Receipts = nil }, nil, []string{"truncated 0"}},
		{"some, swapped", 2, 5, func(_ *testing.T, b *Bundle) {
			b.Receipts[0], b.Receipts[1] = b.Receipts[1], b.Receipts[0]
		}, nil, []string{"reordered 2"}},
		{"some, envelopes swapped", 2, 5, func(_ *testing.T, b *Bundle) {
			b.Receipts[0].Envelope, b.Receipts[1].Envelope = b.Receipts[1].Envelope, b.Receipts[0].Envelope
		}, nil, []string{"reordered 2", "reordered 3"}},
		{"all, swapped", 0, 7, func(_ *testing.T, b *Bundle) {
			b.Receipts[1], b.Receipts[2] = b.Receipts[2], b.Receipts[1]
		}, nil, []string{"reordered 1"}},
		{"all, called otherwise", 0, 7, func(_ *testing.T, b *Bundle) { b.Receipts[1].Index = 5 }, nil, []string{"reordered 1"}},
		{"some, repeated", 2, 5, func(_ *testing.T, b *Bundle) { b.Receipts = append(b.Receipts, b.Receipts[2]) }, nil, []string{"repeated 4"}},
		{"one, truncated", 3, 4, none, &Head{Size: 9, Root: cell.Sum(nil)}, []string{"truncated -1"}},
		{"all, truncated", 0, 7, none, &Head{Size: 9, Root: cell.Sum(nil)}, []string{"truncated -1"}},
		{"one, under an older head", 5, 6, func(t *testing.T, b *Bundle) {
			h, err := signHead(k, keysOf(k.Public()), 3, rootOf(records(t, sample(t, k, 3), entriesFile)))
			must(t, err)
			b.Head = string(h.Note)
		}, nil, []string{"truncated 5"}},
		{"one, wrong key", 3, 4, func(t *testing.T, b *Bundle) {
			x, err := openLedger(t, sample(t, thief, 7), thief).Export(3, 4, nil)
			must(t, err)
			*b = *x
		}, nil, []string{"wrong-key 3", "wrong-key -1"}},
		{"one, forked", 3, 4, none, &Head{Size: 7, Root: cell.Sum(nil)}, []string{"forked -1"}},
		{"all, forked", 0, 7, none, &Head{Size: 7, Root: cell.Sum(nil)}, []string{"forked -1"}},
		{"all, edited and forked", 0, 7, env(3, `"exit_code":3`, `"exit_code":0`), &Head{Size: 7, Root: cell.Sum(nil)}, []string{"edited 3", "forked -1"}},
		{"all, forked earlier", 0, 7, none, &Head{Size: 4, Root: cell.Sum(nil)}, []string{"forked -1"}},
		{"one, extends something else", 3, 4, func(t *testing.T, b *Bundle) {
			b.Extends = &Extension{Size: 4, Proof: []cell.Digest{cell.Sum(nil)}}
		}, &Head{Size: 4, Root: cell.Sum([]byte("x"))}, []string{"forked -1"}},
		{"one, proof edited", 3, 4, func(_ *testing.T, b *Bundle) { b.Receipts[0].Proof[1][0] ^= 1 }, nil, []string{"not-included 3"}},
		{"one, without proof", 3, 4, func(_ *testing.T, b *Bundle) { b.Receipts[0].Proof = nil }, nil, []string{"not-included 3"}},
		{"one, head edited", 3, 4, func(_ *testing.T, b *Bundle) {
			b.Head = string(headWith([]byte(b.Head), 7, cell.Sum(nil)))
		}, nil, []string{"edited -1"}},
		{"one, no head", 3, 4, func(_ *testing.T, b *Bundle) { b.Head = "" }, nil, []string{"edited -1"}},
		{"one, said to be all", 3, 4, func(_ *testing.T, b *Bundle) { b.All = true }, nil, []string{"dropped 0", "dropped 1", "dropped 2", "truncated 4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := l.Export(c.from, c.to, nil)
			must(t, err)
			text, err := b.Encode()
			must(t, err)
			b, err = DecodeBundle(text)
			must(t, err)
			c.do(t, b)
			wantProblems(t, Verify(b, k.Public(), c.known), c.want...)
		})
	}
	if _, err := l.Export(3, 8, nil); cell.KindOf(err) != cell.NotFound {
		t.Errorf("%v", err)
	}
}

// Everything in a bundle matters: no byte can be changed unseen, but for
// white space and what is said to be no evidence.
func TestF7NoByteOfABundleIsUnchecked(t *testing.T) {
	k := newKey(t)
	l := openLedger(t, sample(t, k, 5), k)
	for _, c := range []struct{ from, to int64 }{{2, 3}, {0, 5}} {
		b, err := l.Export(c.from, c.to, nil)
		must(t, err)
		text, err := b.Encode()
		must(t, err)
		id := bytes.Index(text, []byte(b.KeyID))
		for i := range text {
			if i >= id && i < id+len(b.KeyID) || text[i] == '\n' {
				continue
			}
			changed := bytes.Clone(text)
			changed[i] ^= 1
			if b, err := DecodeBundle(changed); err == nil && Verify(b, k.Public(), nil).OK() {
				t.Errorf("byte %d (%q of …%s…) can be changed", i, text[i], text[max(0, i-20):min(len(text), i+20)])
			}
		}
	}
}

// Base64 has bits that mean nothing; they must not make two notes of one.
func TestHeadHasOneSpelling(t *testing.T) {
	k := newKey(t)
	h, err := signHead(k, keysOf(k.Public()), 1, cell.Sum(nil))
	must(t, err)
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	n := 0
	for i := range h.Note {
		if i+1 == len(h.Note) || h.Note[i+1] != '=' || h.Note[i] == '=' {
			continue
		}
		changed := bytes.Clone(h.Note)
		changed[i] = alphabet[strings.IndexByte(alphabet, changed[i])+1]
		if _, err := ParseHead(changed, keysOf(k.Public())); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("%q is accepted: %v", changed, err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("tried %d", n)
	}
}

func TestBundleSurvivesPrettyPrinting(t *testing.T) {
	k := newKey(t)
	l := openLedger(t, sample(t, k, 5), k)
	b, err := l.Export(1, 3, nil)
	must(t, err)
	text, err := json.MarshalIndent(b, "", "\t")
	must(t, err)
	b, err = DecodeBundle(text)
	must(t, err)
	wantProblems(t, Verify(b, k.Public(), nil))
	if bytes.Contains(text, []byte("PUBLIC KEY")) {
		t.Error("a bundle brings its own key")
	}
}

func TestDecodeBundleRefuses(t *testing.T) {
	for _, text := range []string{"", "null", "[]", "{}", `{"format":"pando receipts 2"}`, `{"format":"pando receipts 1","x":1}`,
		`{"format":"pando receipts 1","receipts":[{"index":1}]}`, `{"format":"pando receipts 1"} x`, `{"format":"pando receipts 1","receipts":[{"index":"1"}]}`} {
		if _, err := DecodeBundle([]byte(text)); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A verifier that remembers a head is shown that the ledger goes on from it.
func TestExportExtendsKnownHead(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	fill(t, l, 300)
	known := l.Head()
	fill(t, l, 700)
	b, err := l.Export(10, 12, &known)
	must(t, err)
	r := Verify(b, k.Public(), &known)
	wantProblems(t, r)
	if len(r.Unproven) != 0 {
		t.Errorf("%q", r.Unproven)
	}
	b.Extends.Proof[0][0] ^= 1
	wantProblems(t, Verify(b, k.Public(), &known), "forked -1")
	b.Extends = nil
	if r := Verify(b, k.Public(), &known); !r.OK() || len(r.Unproven) != 1 || !strings.Contains(r.Unproven[0], "no proof of it") {
		t.Errorf("%+v", r)
	}
	if r := Verify(b, k.Public(), nil); !r.OK() || len(r.Unproven) != 1 {
		t.Errorf("%+v", r)
	}
	other := Head{Size: 300, Root: cell.Sum(nil)}
	if _, err := l.Export(10, 12, &other); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("%v", err)
	}
}

// F12: the seal covers each field of the record, not only that there is one.
func TestF12RecordFieldsAreSealed(t *testing.T) {
	k := newKey(t)
	for _, c := range [][2]string{
		{`"mode":"governed"`, `"mode":"ungoverned"`},
		{`"assurance":"measured"`, `"assurance":"claimed"`},
		{`"verdict":"accepted"`, `"verdict":"restored"`},
		{`"exit_code":1`, `"exit_code":0`},
		{`"key":"r-1/run"`, `"key":"r-9/run"`},
		{`"predicateType":"https://pando.dev/run/v1"`, `"predicateType":"https://pando.dev/verdict/v1"`},
		{`"name":"tree"`, `"name":"free"`},
	} {
		f := forged(t, sample(t, k, 3))
		f.entries[1] = edit(t, f.entries[1], c[0], c[1])
		wantProblems(t, verifyDisk(t, rewritten(t, f.entries, f.heads), k, nil), "edited 1")
	}
}
