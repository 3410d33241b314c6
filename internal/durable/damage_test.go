package durable_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// sample returns a journal with the groups a, (b, c), d, (e, f).
func sample(t testing.TB) []byte {
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append([]byte("a")), l.Append(bytesOf("b", "c")...), l.Append([]byte("d")), l.Append(bytesOf("e", "f")...), l.Close())
	return d.Get("log")
}

func openBytes(b []byte) ([]string, error) {
	d := durabletest.New()
	d.Put("log", b)
	l, recs, err := tryOpen(d)
	if err == nil {
		l.Close()
	}
	if err != nil && !bytes.Equal(d.Get("log"), b) {
		panic("a damaged journal was changed")
	}
	return recs, err
}

// Cut anywhere, the journal has the groups that are complete.
func TestTornTailIsCut(t *testing.T) {
	whole := sample(t)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	at := func(n int) int { return len(bytes.Join(lines[:n], nil)) }
	for size := at(1); size <= len(whole); size++ {
		var want []string
		for _, g := range []struct {
			end  int
			recs []string
		}{{at(2), []string{"a"}}, {at(4), []string{"b", "c"}}, {at(5), []string{"d"}}, {at(7), []string{"e", "f"}}} {
			if size >= g.end {
				want = append(want, g.recs...)
			}
		}
		recs, err := openBytes(whole[:size])
		if err != nil || !slices.Equal(recs, want) {
			t.Errorf("%d bytes: %q, %v; want %q", size, recs, err, want)
		}
	}
}

// Every bit of every line but those of the last group: a change is reported
// with the place, never passed over.
func TestDamageInTheMiddleIsReported(t *testing.T) {
	whole := sample(t)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	last := len(whole) - len(lines[5]) - len(lines[6])
	for i := range last {
		for bit := range 8 {
			b := slices.Clone(whole)
			b[i] ^= 1 << bit
			recs, err := openBytes(b)
			if cell.KindOf(err) != cell.Corrupt || !strings.Contains(err.Error(), "damaged at offset") || cell.HintOf(err) == "" {
				t.Fatalf("byte %d, bit %d: %q, %v", i, bit, recs, err)
			}
		}
	}
}

func TestDamageNamesTheOffset(t *testing.T) {
	whole := sample(t)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	join := func(order ...int) (b []byte) {
		for _, i := range order {
			b = append(b, lines[i]...)
		}
		return b
	}
	start := func(n int) int { return len(join([]int{0, 1, 2, 3, 4, 5, 6}[:n]...)) }
	edited := slices.Clone(whole)
	edited[start(3)-2] = 'X' // record b
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty file", nil, "damaged at offset 0: its first line is missing or damaged"},
		{"no first line", join(1, 2), "damaged at offset 0: its first line is missing or damaged"},
		{"record edited", edited, fmt.Sprintf("damaged at offset %d: record 4 is intact at offset %d", start(2), start(4))},
		{"line removed", join(0, 1, 3, 4), fmt.Sprintf("damaged at offset %d: record 3 stands where record 2 belongs", start(2))},
		{"last line of a group removed", join(0, 1, 2, 4), fmt.Sprintf("damaged at offset %d: record 4 stands where record 3 belongs", start(3))},
		{"group removed", join(0, 1, 4, 5, 6), fmt.Sprintf("damaged at offset %d: record 4 stands where record 2 belongs", start(2))},
		{"lines swapped", join(0, 1, 3, 2, 4, 5, 6), fmt.Sprintf("damaged at offset %d: record 3 stands where record 2 belongs", start(2))},
		{"line repeated at the end", join(0, 1, 2, 3, 4, 5, 6, 1), fmt.Sprintf("damaged at offset %d: record 1 stands where record 7 belongs", len(whole))},
		{"line put in", append(join(0, 1), append([]byte("hello\n"), join(2, 3, 4)...)...), fmt.Sprintf("damaged at offset %d: record 4 is intact at offset %d", start(2), start(4)+6)},
		{"part zeroed", append(append(join(0, 1), make([]byte, len(lines[2])+len(lines[3]))...), append(join(4), lines[5]...)...), fmt.Sprintf("damaged at offset %d: record 5 is intact at offset %d", start(2), start(5))},
	} {
		_, err := openBytes(c.b)
		if cell.KindOf(err) != cell.Corrupt || err.Error() != "cannot read log: "+c.want {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

// After power loss in the middle of a write its end may be there without its
// beginning. That is a torn tail, not damage.
func TestTornTailWithItsEndIntact(t *testing.T) {
	whole := sample(t)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	b := slices.Clone(whole)
	clear(b[len(b)-len(lines[5])-len(lines[6]) : len(b)-len(lines[6])-1])
	recs, err := openBytes(b)
	if err != nil || !slices.Equal(recs, []string{"a", "b", "c", "d"}) {
		t.Errorf("%q, %v", recs, err)
	}
}

// A journal may quote the lines of another; torn, they must not be taken for
// proof of damage.
func TestQuotedLinesOfAnotherJournalAreNotEvidence(t *testing.T) {
	other := sample(t)
	d := durabletest.New()
	l, _ := open(t, d)
	must(t, l.Append([]byte("a")))
	size := l.Size()
	must(t, l.Append(other), l.Close())
	b := d.Get("log")
	b[size] ^= 1
	recs, err := openBytes(b)
	if err != nil || !slices.Equal(recs, []string{"a"}) {
		t.Errorf("%q, %v", recs, err)
	}
}

func TestScanFindsEverything(t *testing.T) {
	whole := sample(t)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	b := slices.Concat(lines[0], lines[3], []byte("junk\n"), lines[1], bytes.Replace(lines[4], []byte("d\n"), []byte("D\n"), 1), lines[5][:5])
	d := durabletest.New()
	d.Put("log", b)
	var got []string
	must(t, durable.Scan(d, "log", func(f durable.Found) error {
		got = append(got, fmt.Sprintf("%d %v %v %d %s", f.At, f.Intact, f.Whole, f.Seq, f.Rec))
		return nil
	}))
	p := len(lines[0])
	want := []string{
		fmt.Sprintf("%d true true 3 c", p),
		fmt.Sprintf("%d false false 0 junk", p+len(lines[3])),
		fmt.Sprintf("%d true true 1 a", p+len(lines[3])+5),
		fmt.Sprintf("%d false true 4 D", p+len(lines[3])+5+len(lines[1])),
		fmt.Sprintf("%d false false 0 %s", p+len(lines[3])+5+len(lines[1])+len(lines[4]), lines[5][:5]),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Whatever the bytes are: opening ends, what it says lasts, appending works,
// and Scan sees at least what replay saw.
func FuzzLog(f *testing.F) {
	whole := sample(f)
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	head, _, _ := bytes.Cut(whole, []byte("\n"))
	f.Add(append(head, "\n00000000 1 1/1 4 abcd\n"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := durabletest.New()
		d.Put("log", b)
		intact := 0
		must(t, durable.Scan(d, "log", func(f durable.Found) error {
			if f.Intact {
				intact++
			}
			return nil
		}))
		l, recs, err := tryOpen(d)
		if err != nil {
			if cell.KindOf(err) != cell.Corrupt || !bytes.Equal(d.Get("log"), b) {
				t.Fatalf("%v", err)
			}
			return
		}
		if intact < len(recs) {
			t.Fatalf("Scan found %d records, replay %d", intact, len(recs))
		}
		must(t, l.Append([]byte("new")))
		if _, again := open(t, d.Crash()); !slices.Equal(again, append(recs, "new")) {
			t.Fatalf("%q, want %q and one more", again, recs)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	rec := bytes.Repeat([]byte("x"), 2000)
	for _, appenders := range []int{1, 16} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			l, _ := open(b, durable.Disk(b.TempDir()))
			defer l.Close()
			b.SetParallelism(appenders)
			if appenders == 1 {
				for b.Loop() {
					must(b, l.Append(rec))
				}
				return
			}
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					must(b, l.Append(rec))
				}
			})
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	fsys := durable.Disk(b.TempDir())
	l, _ := open(b, fsys)
	recs := make([][]byte, 10_000)
	for i := range recs {
		recs[i] = bytes.Repeat([]byte("x"), 2000)
	}
	must(b, l.Append(recs...), l.Close())
	b.SetBytes(10_000 * 2000)
	for b.Loop() {
		l, err := durable.OpenLog(fsys, "log", func([]byte) error { return nil })
		must(b, err, l.Close())
	}
}
