package durable_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// A model of what the journal says: records "key=value", the last one counts.
type model map[string]string

func (m model) set(rec string) {
	k, v, _ := strings.Cut(rec, "=")
	m[k] = v
}

func (m model) records() (recs [][]byte) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		recs = append(recs, []byte(k+"="+m[k]))
	}
	return recs
}

// reopen opens the journal on d and returns what it says.
func reopen(d durable.FS) (*durable.Log, model, error) {
	m := model{}
	l, err := durable.OpenLog(d, "log", func(rec []byte) error { m.set(string(rec)); return nil })
	return l, m, err
}

// The power goes, or the process is killed, after every single call of a
// history of appends and compactions. Whatever of the unsynced things
// survives, the journal opens and says either what was acknowledged or that
// and the whole of the batch that was on its way. What it says on opening is
// still said after a second power loss, and it can be written to.
func TestLogSurvivesCrashAtEveryCall(t *testing.T) {
	const seeds = 12
	d := durabletest.New()
	acked, coming := model{}, model{} // coming: as it is when the current operation is done
	checks := 0
	check := func(what string, c *durabletest.Disk) {
		t.Helper()
		checks++
		l, got, err := reopen(c)
		if err != nil {
			t.Fatalf("%s after call %d: %v", what, d.Calls(), err)
		}
		if !maps.Equal(got, acked) && !maps.Equal(got, coming) {
			t.Fatalf("%s after call %d (%s): journal says\n%v, want\n%v or\n%v", what, d.Calls(), d.Trace(d.Calls()-1), got, acked, coming)
		}
		for _, name := range c.Files() {
			if durable.IsPartial(name) {
				t.Fatalf("%s: %s was left", what, name)
			}
		}
		if _, again, err := reopen(c.Crash()); err != nil || !maps.Equal(again, got) {
			t.Fatalf("%s after call %d: what the journal said on opening did not last: %v, %v; want %v", what, d.Calls(), again, err, got)
		}
		if err := l.Append([]byte("after=crash")); err != nil {
			t.Fatal(err)
		}
		got["after"] = "crash"
		if _, again, err := reopen(c.Crash()); err != nil || !maps.Equal(again, got) {
			t.Fatalf("%s after call %d: an append after reopening was lost: %v, %v", what, d.Calls(), again, err)
		}
	}
	d.After = func(durabletest.Call) {
		check("power loss", d.Crash())
		check("kill", d.Kill())
		for seed := range uint64(seeds) {
			check(fmt.Sprintf("power loss %d", seed), d.CrashSome(seed))
		}
	}
	l, _, err := reopen(d)
	must(t, err)
	for i := range 24 {
		var batch [][]byte
		for j := range 1 + i%4 {
			rec := fmt.Sprintf("%d=%d.%s", (i+j)%7, i, strings.Repeat("x", i*j*50))
			batch = append(batch, []byte(rec))
			coming.set(rec)
		}
		must(t, l.Append(batch...))
		acked = maps.Clone(coming)
		if i%6 == 5 {
			must(t, l.Rewrite(slices.Values(acked.records())))
		}
		if i%10 == 9 {
			must(t, l.Close())
			l, _, err = reopen(d)
			must(t, err)
		}
	}
	if checks < 1000 {
		t.Errorf("only %d checks", checks)
	}
}

// A process is killed between a write and its sync; the next one reads the
// record, acts on it, and then the power goes.
func TestReplayedRecordsLast(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append([]byte("a")))
	var killed *durabletest.Disk
	d.After = func(c durabletest.Call) {
		if c.Op == "write" {
			killed = d.Kill()
		}
	}
	must(t, l.Append([]byte("b")))
	if _, recs := open(t, killed); len(recs) != 2 {
		t.Fatalf("%q", recs)
	}
	if _, recs := open(t, killed.Crash()); len(recs) != 2 {
		t.Errorf("after power loss %q", recs)
	}
}
