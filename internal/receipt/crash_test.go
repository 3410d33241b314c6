package receipt

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

func TestLedgerTrace(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	fill(t, l, 2)
	must(t, l.Close())
	l = openLedger(t, d, k)
	must(t, l.Close())
	durabletest.CheckTrace(t, "ledger", d.Trace(0))

	d = sample(t, k, 255)
	calls := d.Calls()
	l = openLedger(t, d, k)
	fill(t, l, 256)
	durabletest.CheckTrace(t, "tile", d.Trace(calls))
}

// The power goes, or the process is killed, after every single call. Whatever
// survives: the ledger opens, has every receipt that was handed out, verifies
// with the public key even before it is opened again, and goes on.
func TestLedgerSurvivesCrashAtEveryCall(t *testing.T) {
	t.Run("new ledger", func(t *testing.T) { crashEverywhere(t, 0, 5, 10) })
	t.Run("a tile gets complete", func(t *testing.T) { crashEverywhere(t, 255, 256, 1) })
}

func crashEverywhere(t *testing.T, from, to, seeds int) {
	k := newKey(t)
	d := durabletest.New()
	if from > 0 {
		d = sample(t, k, from).Crash()
	}
	var acked []Entry
	var knownHead *Head
	check := func(what string, c *durabletest.Disk) {
		t.Helper()
		what = fmt.Sprintf("%s after call %d (%s)", what, d.Calls(), strings.TrimSpace(d.Trace(d.Calls()-1)))
		r, err := VerifyLedger(c, k.Public(), knownHead)
		if err != nil || !r.OK() {
			t.Fatalf("%s: %v, %+v", what, err, r)
		}
		l, err := OpenLedger(c, k)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, e := range acked {
			got, err := l.Entry(e.Index)
			if err != nil || got.ID != e.ID {
				t.Fatalf("%s: receipt %d was handed out and is lost: %v", what, e.Index, err)
			}
		}
		if n := int64(from + len(acked)); l.Len() != n && l.Len() != n+1 {
			t.Fatalf("%s: %d receipts", what, l.Len())
		}
		fill(t, l, to)
		must(t, l.Close())
		if r := verifyDisk(t, c, k, knownHead); !r.OK() || len(r.Problems) > 0 || r.Head.Size != int64(to) {
			t.Fatalf("%s, gone on: %+v", what, r)
		}
		if to >= 256 && c.Get("tile/0/000") == nil {
			t.Fatalf("%s: no tile was written", what)
		}
	}
	d.After = func(c durabletest.Call) {
		if c.Op == "open" || c.Op == "list" {
			return
		}
		check("power loss", d.Crash())
		check("kill", d.Kill())
		for seed := range seeds {
			check(fmt.Sprintf("power loss %d", seed), d.CrashSome(uint64(seed)))
		}
	}
	l := openLedger(t, d, k)
	for i := from; i < to; i++ {
		e, err := l.Append(ctx, request(fmt.Sprintf("r-%d/run", i), outcome{"governed", "measured", "accepted", i}))
		must(t, err)
		acked = append(acked, e)
		h := l.Head()
		knownHead = &h
	}
	must(t, l.Close())
}

// F11: whatever call fails, Append says so; asking again with the same key
// gives one receipt, and nothing that was handed out is lost.
func TestF11SealingFailuresAreVisible(t *testing.T) {
	k := newKey(t)
	base := sample(t, k, 255) // the next completes a tile
	for n := 1; ; n++ {
		d := base.Crash()
		l := openLedger(t, d, k)
		calls, failed := d.Calls(), ""
		d.Before = func(c durabletest.Call) error {
			if c.N == calls+n && c.Op != "close" {
				failed = c.String()
				return syscall.EIO
			}
			return nil
		}
		req := request("r-255/run", map[string]int{"a": 1})
		e, err := l.Append(ctx, req)
		if d.Calls() < calls+n {
			break
		}
		if failed == "" {
			continue
		}
		if err == nil || cell.KindOf(err) != cell.Unavailable || e.Envelope != nil || !strings.HasPrefix(err.Error(), "cannot complete receipt r-255/run") {
			t.Errorf("failed %s: %v, %+v", failed, err, e)
		}
		d.Before = nil
		e, err = l.Append(ctx, req)
		if err != nil {
			// Whether the disk has what was replaced is not sure; a restart helps.
			l, err = OpenLedger(d, k)
			must(t, err)
			e, err = l.Append(ctx, req)
		}
		if err != nil || e.Index != 255 {
			t.Errorf("failed %s: again %+v, %v", failed, e, err)
		}
		c := d.Crash()
		wantProblems(t, verifyDisk(t, c, k, nil))
		l = openLedger(t, c, k)
		if got, err := l.Lookup("r-255/run"); err != nil || got.ID != e.ID || l.Len() != 256 {
			t.Errorf("failed %s: after power loss %+v, %v", failed, got, err)
		}
	}
}

func TestF11FullDisk(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	fill(t, l, 3)
	d.Limit(100)
	_, err := l.Append(ctx, request("r-3/run", map[string]int{}))
	if cell.KindOf(err) != cell.Unavailable || !strings.Contains(err.Error(), "no space left") || cell.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	// What is there already is still handed out, and a conflict is one.
	if e, err := l.Append(ctx, request("r-1/run", outcome{"governed", "measured", "accepted", 1})); err != nil || e.Index != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := l.Append(ctx, request("r-1/run", map[string]int{})); cell.KindOf(err) != cell.Conflict {
		t.Errorf("%v", err)
	}
	d.Limit(-1)
	fill(t, l, 5)
	wantProblems(t, verifyDisk(t, d.Crash(), k, nil))
}

// A signer that fails takes no index.
type moody struct {
	*Key
	fail bool
}

func (m *moody) Sign(b []byte) ([]byte, error) {
	if m.fail {
		return nil, fmt.Errorf("the key service is away")
	}
	return m.Key.Sign(b)
}

func TestF11SignerFails(t *testing.T) {
	m := &moody{Key: newKey(t)}
	d := durabletest.New()
	l := openLedger(t, d, m)
	fill(t, l, 1)
	m.fail = true
	if _, err := l.Append(ctx, request("r-1/run", map[string]int{})); err == nil || !strings.Contains(err.Error(), "key service") {
		t.Errorf("%v", err)
	}
	m.fail = false
	fill(t, l, 3)
	wantProblems(t, verifyDisk(t, d, m.Key, nil))
}

// Heads are many; the old ones go, the newest never.
func TestHeadsAreCompacted(t *testing.T) {
	k := newKey(t)
	d := durabletest.New()
	l := openLedger(t, d, k)
	fill(t, l, 10)
	for l.heads.Size() <= headsLimit {
		must(t, l.heads.Append(l.head.Note))
	}
	fill(t, l, 11)
	if heads := records(t, d.Crash(), headsFile); len(heads) != 1 || !bytes.Equal(heads[0], l.Head().Note) {
		t.Errorf("%d heads are left", len(heads))
	}
	fill(t, l, 12)
	if l.heads.Size() > 2000 {
		t.Errorf("%d bytes of heads", l.heads.Size())
	}
	wantProblems(t, verifyDisk(t, d.Crash(), k, nil))
	if l := openLedger(t, d.Crash(), k); l.Head().Size != 12 {
		t.Errorf("head of %d", l.Head().Size)
	}
}
