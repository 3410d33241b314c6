package receipt

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

var ctx = context.Background()

func TestAppendAndReadBack(t *testing.T) {
	k := newKey(t)
	fsys := durable.Disk(t.TempDir())
	l := openLedger(t, fsys, k)
	var want []Entry
	for i := range 5 {
		e, err := l.Append(ctx, request(fmt.Sprintf("r-%d/run", i), map[string]any{"n": i, "text": "<&>\u2028"}))
		must(t, err)
		if e.Index != int64(i) || e.Repeated || e.ID != cell.Sum(e.Envelope) {
			t.Errorf("%+v", e)
		}
		want = append(want, e)
	}
	for _, reopen := range []bool{false, true} {
		if reopen {
			must(t, l.Close())
			l = openLedger(t, fsys, k)
		}
		if l.Len() != 5 || l.Head().Size != 5 {
			t.Fatalf("Len %d, head %d", l.Len(), l.Head().Size)
		}
		i := 0
		for e, err := range l.Iterate(0) {
			must(t, err)
			if e.ID != want[i].ID || !bytes.Equal(e.Envelope, want[i].Envelope) || e.Index != int64(i) {
				t.Errorf("entry %d: %+v", i, e)
			}
			byKey, err1 := l.Lookup(fmt.Sprintf("r-%d/run", i))
			byID, err2 := l.Find(e.ID.String())
			byDigits, err3 := l.Find(e.ID.Short())
			odd, err4 := l.Find(e.ID.Short()[:11])
			must(t, err1, err2, err3, err4)
			if byKey.Index != e.Index || byID.Index != e.Index || byDigits.Index != e.Index || odd.Index != e.Index {
				t.Error("found another receipt")
			}
			i++
		}
		if i != 5 {
			t.Errorf("%d entries", i)
		}
		if _, err := l.Entry(5); cell.KindOf(err) != cell.NotFound {
			t.Errorf("%v", err)
		}
		if _, err := l.Lookup("x"); cell.KindOf(err) != cell.NotFound {
			t.Errorf("%v", err)
		}
	}
	must(t, l.Close())
}

func TestFindRefusesWhatIsNoPrefix(t *testing.T) {
	k := newKey(t)
	l := openLedger(t, sample(t, k, 3), k)
	for _, p := range []string{"", "abc", "xyzw", "sha256:", "ABCD", "../a", strings.Repeat("a", 65), "abc\x00", "abcdg"} {
		if _, err := l.Find(p); cell.KindOf(err) != cell.Invalid {
			t.Errorf("Find(%q): %v", p, err)
		}
	}
	if _, err := l.Find("00000000000000"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("%v", err)
	}
	l.ids[0], l.ids[1] = cell.Digest{0xab, 0xcd, 1}, cell.Digest{0xab, 0xcd, 2}
	if _, err := l.Find("abcd"); cell.KindOf(err) != cell.Invalid || !strings.Contains(cell.HintOf(err), "more") {
		t.Errorf("ambiguous: %v", err)
	}
}

// What others can read: DSSE, in-toto, a C2SP checkpoint.
func TestFormats(t *testing.T) {
	k := newKey(t)
	l := openLedger(t, durabletest.New(), k)
	fill(t, l, 2)
	e, err := l.Append(ctx, Request{
		Key: "r-2/run", Type: PredicateRun, Predicate: outcome{"governed", "measured", "accepted", 0},
		Subjects: []Subject{{"a \"b\"", cell.Sum([]byte("a"))}, {"c", cell.Sum([]byte("c"))}},
	})
	must(t, err)
	var env struct {
		Payload     []byte
		PayloadType string
		Signatures  []struct {
			KeyID string
			Sig   []byte
		}
	}
	must(t, json.Unmarshal(e.Envelope, &env))
	signed := fmt.Sprintf("DSSEv1 28 application/vnd.in-toto+json %d %s", len(env.Payload), env.Payload)
	if env.PayloadType != "application/vnd.in-toto+json" || len(env.Signatures) != 1 || env.Signatures[0].KeyID != k.Public().ID() ||
		!k.Public().Verify([]byte(signed), env.Signatures[0].Sig) {
		t.Errorf("%s", e.Envelope)
	}
	var two []byte
	for _, e := range []int64{0, 1} {
		x, err := l.Entry(e)
		must(t, err)
		two = append(two, x.Envelope...)
		_ = two
	}
	var st map[string]any
	must(t, json.Unmarshal(env.Payload, &st))
	a, c := cell.Sum([]byte("a")), cell.Sum([]byte("c"))
	e0, _ := l.Entry(0)
	e1, _ := l.Entry(1)
	root := tlog.NodeHash(leafHash(e0.Envelope), leafHash(e1.Envelope))
	want := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","predicate":{"assurance":"measured","exit_code":0,"key":"r-2/run","ledger":{"index":2,"root":"%s","size":2},"mode":"governed","verdict":"accepted"},"predicateType":"https://pando.dev/run/v1","subject":[{"digest":{"sha256":"%s"},"name":"a \"b\""},{"digest":{"sha256":"%s"},"name":"c"}]}`,
		cell.Digest(root), a.String()[7:], c.String()[7:])
	if got, _ := json.Marshal(st); string(got) != want {
		t.Errorf("statement\n%s\nwant\n%s", got, want)
	}
	s, err := e.Statement()
	must(t, err)
	if s.Binding.Ledger.Index != 2 || len(s.Subject) != 2 || s.Subject[0].Name != `a "b"` || string(s.own) != `"mode":"governed","assurance":"measured","verdict":"accepted","exit_code":0` {
		t.Errorf("%+v, own %s", s, s.own)
	}

	v, err := noteVerifier(k.Public().Origin(), k.Public())
	must(t, err)
	n, err := note.Open(l.Head().Note, note.VerifierList(v))
	must(t, err)
	h := l.Head()
	wantNote := fmt.Sprintf("pando.dev/ledger/%s\n3\n%s\n", k.Public().ID()[7:23], base64.StdEncoding.EncodeToString(h.Root[:]))
	if n.Text != wantNote {
		t.Errorf("head %q, want %q", n.Text, wantNote)
	}
	if got, err := ParseHead(h.Note, keysOf(k.Public())); err != nil || got.Size != 3 || got.Root != h.Root {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAppendTwiceIsOneReceipt(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	req := request("r-x/run", map[string]any{"a": 1, "b": map[string]any{"c": []int{2}}})
	first, err := l.Append(ctx, req)
	must(t, err)
	fill(t, l, 3)
	for _, reopen := range []bool{false, true} {
		if reopen {
			must(t, l.Close())
			l = openLedger(t, d, k)
		}
		// The same in another order and spelling.
		req.Predicate = json.RawMessage(` {"b": {"c":[2]}, "\u0061":1} `)
		again, err := l.Append(ctx, req)
		if err != nil || again.Index != first.Index || again.ID != first.ID || !again.Repeated || !bytes.Equal(again.Envelope, first.Envelope) {
			t.Errorf("%+v, %v", again, err)
		}
		for name, change := range map[string]func(*Request){
			"predicate":  func(r *Request) { r.Predicate = map[string]any{"a": 1, "b": map[string]any{"c": []int{3}}} },
			"member":     func(r *Request) { r.Predicate = map[string]any{"a": 1} },
			"type":       func(r *Request) { r.Type = PredicateVerdict },
			"subject":    func(r *Request) { r.Subjects = []Subject{{"tree", cell.Sum([]byte("x"))}} },
			"incomplete": func(r *Request) { r.Incomplete = true },
		} {
			other := req
			change(&other)
			if _, err := l.Append(ctx, other); cell.KindOf(err) != cell.Conflict {
				t.Errorf("another %s under the same key: %v", name, err)
			}
		}
	}
	if l.Len() != 3 {
		t.Errorf("%d receipts", l.Len())
	}
}

func TestAppendRefuses(t *testing.T) {
	k := newKey(t)
	l := openLedger(t, durabletest.New(), k)
	for name, change := range map[string]func(*Request){
		"no key":             func(r *Request) { r.Key = "" },
		"key with quote":     func(r *Request) { r.Key = `a"b` },
		"key with newline":   func(r *Request) { r.Key = "a\nb" },
		"long key":           func(r *Request) { r.Key = strings.Repeat("a", 201) },
		"no type":            func(r *Request) { r.Type = "" },
		"type with quote":    func(r *Request) { r.Type = `https://x/"` },
		"no subject":         func(r *Request) { r.Subjects = nil },
		"subject, no digest": func(r *Request) { r.Subjects = []Subject{{Name: "a"}} },
		"array":              func(r *Request) { r.Predicate = []int{1} },
		"null":               func(r *Request) { r.Predicate = nil },
		"not JSON":           func(r *Request) { r.Predicate = make(chan int) },
		"member ledger":      func(r *Request) { r.Predicate = map[string]int{"ledger": 1} },
		"member Key":         func(r *Request) { r.Predicate = map[string]int{"Key": 1} },
		"member completes":   func(r *Request) { r.Predicate = map[string]int{"completes": 1} },
		"member incomplete":  func(r *Request) { r.Predicate = json.RawMessage(`{"incompl\u0065te":1}`) },
	} {
		req := request("r-1/run", map[string]int{})
		change(&req)
		if _, err := l.Append(ctx, req); cell.KindOf(err) != cell.Invalid || !strings.HasPrefix(err.Error(), "cannot") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, fine := range []any{
		map[string]any{}, map[string]any{"a": "key", "b": []string{"ledger"}, "c": map[string]int{"key": 1}, "d": `","key":"`, "e\"": `\`, "f": "completes"},
		json.RawMessage(" { \"a\" : { \"key\" : 1 } } "),
	} {
		if _, err := encodePredicate(fine); err != nil {
			t.Errorf("%v: %v", fine, err)
		}
	}
	gone, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("the user pressed Ctrl-C"))
	if _, err := l.Append(gone, request("r-1/run", map[string]int{})); cell.KindOf(err) != cell.Interrupted || !strings.Contains(err.Error(), "Ctrl-C") {
		t.Errorf("%v", err)
	}
	if l.Len() != 0 {
		t.Errorf("%d receipts", l.Len())
	}
	if _, err := l.Append(ctx, request("r-1/run", map[string]int{})); err != nil {
		t.Errorf("an empty predicate: %v", err)
	}
}

// A receipt that was written before all events had arrived says so, and
// another completes it, once.
func TestF8IncompleteReceiptIsCompletedByALinkedOne(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	part := request("r-1/run", map[string]any{"events": Chain{Count: 10, Last: cell.Sum(nil)}})
	part.Incomplete = true
	first, err := l.Append(ctx, part)
	must(t, err)
	if s, _ := first.Statement(); !s.Binding.Incomplete || !strings.Contains(string(s.Predicate), `"incomplete":true`) {
		t.Error("the receipt does not say that it is incomplete")
	}
	if r := verifyDisk(t, d, k, nil); !r.OK() || len(r.Open) != 1 || r.Open[0] != 0 {
		t.Errorf("%+v", r)
	}
	whole := func(key string, completes cell.Digest) Request {
		r := request(key, map[string]any{"events": Chain{Count: 12, Last: cell.Sum(nil)}})
		r.Completes = completes
		return r
	}
	if _, err := l.Append(ctx, whole("r-1/rest", cell.Sum([]byte("nothing")))); cell.KindOf(err) != cell.NotFound {
		t.Errorf("completing what is not there: %v", err)
	}
	must(t, l.Close())
	l = openLedger(t, d, k)
	second, err := l.Append(ctx, whole("r-1/rest", first.ID))
	must(t, err)
	if s, _ := second.Statement(); s.Binding.Completes != first.ID {
		t.Error("the receipt does not name the one that it completes")
	}
	if again, err := l.Append(ctx, whole("r-1/rest", first.ID)); err != nil || again.Index != second.Index {
		t.Errorf("asking again: %v", err)
	}
	for _, reopen := range []bool{false, true} {
		if reopen {
			must(t, l.Close())
			l = openLedger(t, d, k)
		}
		if _, err := l.Append(ctx, whole("r-1/rest2", first.ID)); cell.KindOf(err) != cell.Conflict {
			t.Errorf("completing twice: %v", err)
		}
		if _, err := l.Append(ctx, whole("r-1/rest2", second.ID)); cell.KindOf(err) != cell.Conflict {
			t.Errorf("completing a complete one: %v", err)
		}
	}
	if r := verifyDisk(t, d, k, nil); !r.OK() || len(r.Open) != 0 {
		t.Errorf("%+v", r)
	}

	// A ledger that broke the rule when it wrote.
	l.incomplete[second.ID] = true
	_, err = l.Append(ctx, whole("r-1/rest3", second.ID))
	must(t, err)
	wantProblems(t, verifyDisk(t, d, k, nil), "unlinked 2")
}

// Receipts that are asked for while others are written share a sync, and each
// is one of a chain.
func TestAppendConcurrently(t *testing.T) {
	k := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		d := durabletest.New()
		l := openLedger(t, d, k)
		syncs := 0
		d.Before = func(c durabletest.Call) error {
			if c.Op == "syncdata" {
				syncs++
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				// Each key three times; the third says something else.
				_, err := l.Append(ctx, request(fmt.Sprintf("r-%d/run", i/3), map[string]any{"x": i % 3 / 2}))
				if cell.KindOf(err) == cell.Conflict {
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if syncs != 4 {
			t.Errorf("%d syncs for 60 concurrent requests, want 4", syncs)
		}
		if l.Len() != 20 {
			t.Errorf("%d receipts, want 20", l.Len())
		}
		wantProblems(t, verifyDisk(t, d.Crash(), k, nil))
		must(t, l.Close())
	})
}

func TestAppendFromManyGoroutinesOnDisk(t *testing.T) {
	k := newKey(t)
	fsys := durable.Disk(t.TempDir())
	l := openLedger(t, fsys, k)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 40 {
				e, err := l.Append(ctx, request(fmt.Sprintf("r-%d.%d/run", i, j), map[string]any{"i": i}))
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := l.Find(e.ID.String()); err != nil || got.Index != e.Index {
					t.Error(got, err)
				}
				if j%10 == 0 {
					if b, err := l.Export(e.Index, e.Index+1, nil); err != nil || !Verify(b, k.Public(), nil).OK() {
						t.Error(err)
					}
					if _, err := VerifyLedger(fsys, k.Public(), nil); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	must(t, l.Close())
	r := verifyDisk(t, fsys, k, nil)
	wantProblems(t, r)
	if r.Receipts != 320 || r.Head.Size != 320 {
		t.Errorf("%+v", r)
	}
}

// The verifier can look while the daemon writes; it must not see truncation
// where there is only growth.
func TestVerifyWhileWriting(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	for i := range 20 {
		var wg sync.WaitGroup
		wg.Go(func() {
			for j := range 15 {
				if _, err := l.Append(ctx, request(fmt.Sprintf("r-%d.%d/run", i, j), map[string]any{})); err != nil {
					t.Error(err)
				}
			}
		})
		wantProblems(t, verifyDisk(t, d, k, nil))
		wg.Wait()
	}
}
