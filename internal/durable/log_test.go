package durable_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// open opens "log" and returns what is in it.
func open(t testing.TB, fsys durable.FS) (*durable.Log, []string) {
	t.Helper()
	l, recs, err := tryOpen(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return l, recs
}

func tryOpen(fsys durable.FS) (*durable.Log, []string, error) {
	var recs []string
	l, err := durable.OpenLog(fsys, "log", func(rec []byte) error {
		recs = append(recs, string(rec))
		return nil
	})
	return l, recs, err
}

func bytesOf(recs ...string) (b [][]byte) {
	for _, r := range recs {
		b = append(b, []byte(r))
	}
	return b
}

func TestLogKeepsRecordsInOrder(t *testing.T) {
	fsys := durable.Disk(t.TempDir())
	l, recs := open(t, fsys)
	if len(recs) != 0 {
		t.Fatalf("a new journal has %q", recs)
	}
	must(t, l.Append([]byte("a")), l.Append(bytesOf("b", "", "line\nbreak")...), l.Append())
	size := l.Size()
	must(t, l.Close())
	l, recs = open(t, fsys)
	defer l.Close()
	if want := []string{"a", "b", "", "line\nbreak"}; !slices.Equal(recs, want) {
		t.Errorf("%q, want %q", recs, want)
	}
	if l.Size() != size || l.Cut() != 0 {
		t.Errorf("size %d, cut %d; want %d, 0", l.Size(), l.Cut(), size)
	}
	must(t, l.Append([]byte("c")))
	if _, err := durable.ReadFile(fsys, "log"); err != nil {
		t.Fatal(err)
	}
}

func TestLogIsReadableText(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append(bytesOf(`{"a":1}`, `{"b":2}`)...))
	lines := strings.Split(string(d.Get("log")), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "pando-log 1 ") ||
		!strings.HasSuffix(lines[1], ` 1 1/2 7 {"a":1}`) || !strings.HasSuffix(lines[2], ` 2 2/2 7 {"b":2}`) {
		t.Errorf("%q", lines)
	}
}

func TestLogTrace(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append([]byte("a")), l.Append(bytesOf("b", "c")...), l.Rewrite(slices.Values(bytesOf("c"))), l.Append([]byte("d")), l.Close())
	l, _ = open(t, d)
	must(t, l.Close())
	durabletest.CheckTrace(t, "log", d.Trace(0))
}

func TestReadAt(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	first, err := l.AppendIndexed(bytesOf("a", "bb")...)
	must(t, err)
	second, err := l.AppendIndexed([]byte("ccc"))
	must(t, err, l.Close())
	var places []int64
	l, err = durable.OpenIndexed(d, "log", func(at int64, rec []byte) error { places = append(places, at); return nil })
	must(t, err)
	if want := append(first, second...); !slices.Equal(places, want) {
		t.Fatalf("places %v, want %v", places, want)
	}
	for i, want := range []string{"a", "bb", "ccc"} {
		if rec, err := l.ReadAt(places[i]); err != nil || string(rec) != want {
			t.Errorf("ReadAt = %q, %v", rec, err)
		}
	}
	for _, at := range []int64{0, places[0] + 1, l.Size(), l.Size() + 100} {
		if _, err := l.ReadAt(at); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("ReadAt(%d): %v", at, err)
		}
	}
	must(t, l.Rewrite(slices.Values(bytesOf("x"))))
	at, err := l.AppendIndexed([]byte("yy"))
	must(t, err)
	if rec, err := l.ReadAt(at[0]); err != nil || string(rec) != "yy" {
		t.Errorf("after Rewrite: %q, %v", rec, err)
	}
}

func TestReadAtChecksTheSum(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	at, err := l.AppendIndexed([]byte("aaa"))
	must(t, err)
	changed := d.Get("log")
	changed[len(changed)-3] ^= 1
	d.Put("log", changed)
	if _, err := l.ReadAt(at[0]); cell.KindOf(err) != cell.Corrupt || !strings.Contains(err.Error(), "sum is wrong") {
		t.Errorf("%v", err)
	}
}

func TestReplayErrorEndsOpen(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append([]byte("a")), l.Close())
	want := fmt.Errorf("no")
	if _, err := durable.OpenLog(d, "log", func([]byte) error { return want }); err != want {
		t.Errorf("%v", err)
	}
}

func TestLogAfterClose(t *testing.T) {
	l, _ := open(t, durabletest.New())
	must(t, l.Close(), l.Close())
	if err := l.Append([]byte("a")); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("%v", err)
	}
	if err := l.Rewrite(slices.Values(bytesOf("a"))); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("%v", err)
	}
}

// A write that fails half-way is taken back, and the journal goes on.
func TestF23AppendOnFullDisk(t *testing.T) {
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append([]byte("a")))
	d.Limit(70)
	err := l.Append(bytesOf("b", strings.Repeat("c", 100))...)
	if cell.KindOf(err) != cell.Unavailable || err.Error() != "cannot append to log: no space left on device" {
		t.Fatalf("%v", err)
	}
	must(t, l.Append([]byte("d")))
	if _, recs := open(t, d.Crash()); !slices.Equal(recs, []string{"a", "d"}) {
		t.Errorf("%q", recs)
	}
}

// Whatever single call of an Append fails: what it reports as done survives
// power loss, what it reports as failed does not come back, and after a
// failure that could not be undone nothing more is accepted.
func TestAppendNeverAcknowledgesWhatIsLost(t *testing.T) {
	for _, ops := range [][]string{{"write"}, {"syncdata"}, {"write", "truncate"}, {"syncdata", "truncate"}, {"write", "syncdata"}, {"syncdata", "syncdata"}} {
		t.Run(strings.Join(ops, " then "), func(t *testing.T) {
			d := durabletest.New()
			l, _ := open(t, d)
			must(t, l.Append([]byte("a")))
			left := ops
			d.Before = func(c durabletest.Call) error {
				if len(left) > 0 && c.Op == left[0] {
					left = left[1:]
					return syscall.EIO
				}
				return nil
			}
			if err := l.Append([]byte("b")); err == nil {
				t.Fatal("a failure was not reported")
			}
			want := []string{"a", "c"}
			err := l.Append([]byte("c"))
			if len(ops) > 1 {
				want = []string{"a"}
				if cell.KindOf(err) != cell.Unavailable || !strings.Contains(err.Error(), "could not be taken back") || cell.HintOf(err) == "" {
					t.Errorf("after a failure that could not be undone: %v", err)
				}
			} else if err != nil {
				t.Errorf("the journal can't be used further: %v", err)
			}
			if len(left) > 0 {
				t.Fatalf("%v was never called", left)
			}
			if _, recs := open(t, d.Crash()); !slices.Equal(recs, want) {
				t.Errorf("after power loss %q, want %q", recs, want)
			}
		})
	}
}

func TestRewriteFailures(t *testing.T) {
	for _, op := range []string{"create", "write", "sync", "rename", "syncdir"} {
		t.Run(op, func(t *testing.T) {
			d := durabletest.New()
			l, _ := open(t, d)
			must(t, l.Append(bytesOf("a", "b")...))
			d.Before = func(c durabletest.Call) error {
				if c.Op == op {
					return syscall.EIO
				}
				return nil
			}
			if err := l.Rewrite(slices.Values(bytesOf("b"))); cell.KindOf(err) != cell.Unavailable {
				t.Fatalf("%v", err)
			}
			d.Before = nil
			err := l.Append([]byte("c"))
			if op == "syncdir" { // which file will be there is not sure
				if cell.KindOf(err) != cell.Unavailable {
					t.Errorf("Append after a replacement that may not last: %v", err)
				}
				return
			}
			must(t, err)
			c := d.Crash()
			if _, recs := open(t, c); !slices.Equal(recs, []string{"a", "b", "c"}) {
				t.Errorf("%q", recs)
			}
			if f := c.Files(); len(f) != 1 {
				t.Errorf("left %v", f)
			}
		})
	}
}

// Appends that come while a sync runs share the next one.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := durabletest.New()
		l, _ := open(t, d)
		syncs := 0
		d.Before = func(c durabletest.Call) error {
			if c.Op == "syncdata" {
				syncs++
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if err := l.Append(bytesOf(fmt.Sprint(i, " one"), fmt.Sprint(i, " two"))...); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if syncs != 2 {
			t.Errorf("%d syncs for 50 concurrent appends, want 2", syncs)
		}
		_, recs := open(t, d.Crash())
		if len(recs) != 100 {
			t.Fatalf("%d records", len(recs))
		}
		for i := 0; i < 100; i += 2 {
			if strings.TrimSuffix(recs[i], " one") != strings.TrimSuffix(recs[i+1], " two") {
				t.Errorf("batch torn apart: %q, %q", recs[i], recs[i+1])
			}
		}
	})
}

func TestConcurrentAppendReadRewrite(t *testing.T) {
	fsys := durable.Disk(t.TempDir())
	l, _ := open(t, fsys)
	var whole sync.RWMutex // as Rewrite asks for
	var mu sync.Mutex
	var all []string
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 40 {
				rec := fmt.Sprintf("%d.%d", i, j)
				whole.RLock()
				at, err := l.AppendIndexed([]byte(rec))
				if err != nil {
					t.Error(err)
				} else if got, err := l.ReadAt(at[0]); err != nil || string(got) != rec {
					t.Errorf("ReadAt = %q, %v", got, err)
				}
				mu.Lock()
				all = append(all, rec)
				mu.Unlock()
				whole.RUnlock()
				_ = l.Size()
				if j%10 == 0 {
					whole.Lock()
					if err := l.Rewrite(slices.Values(bytesOf(all...))); err != nil {
						t.Error(err)
					}
					whole.Unlock()
				}
			}
		})
	}
	wg.Wait()
	must(t, l.Close())
	l, recs := open(t, fsys)
	defer l.Close()
	slices.Sort(recs)
	slices.Sort(all)
	if !slices.Equal(recs, all) {
		t.Errorf("%d records, want the %d that were appended", len(recs), len(all))
	}
}
