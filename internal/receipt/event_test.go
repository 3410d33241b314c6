package receipt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/pando-dev/pando/internal/cell"
)

const runID = cell.RunID("r-0123456789abcdef")

func events(t testing.TB, n int) ([]byte, Chain) {
	t.Helper()
	var b bytes.Buffer
	w := NewEventWriter(&b, StartChain(runID))
	for i := range n {
		must(t, w.Emit("exec", map[string]any{"n": i, "text": "a\nb"}))
	}
	must(t, w.Sync())
	return b.Bytes(), w.Digest()
}

func TestEventsReadBack(t *testing.T) {
	b, chain := events(t, 3)
	if chain.Count != 3 || bytes.Count(b, []byte("\n")) != 3 {
		t.Fatalf("%+v", chain)
	}
	var got []string
	var prev = cell.Sum([]byte(runID))
	lines := bytes.SplitAfter(b, []byte("\n"))
	for e, err := range ReadEvents(bytes.NewReader(b), runID) {
		must(t, err)
		if e.Prev != prev || e.Time.IsZero() || e.Time.Location().String() != "UTC" {
			t.Errorf("%+v", e)
		}
		prev = cell.Sum(bytes.TrimSuffix(lines[e.Seq-1], []byte("\n")))
		got = append(got, fmt.Sprint(e.Seq, e.Kind, string(e.Fields)))
	}
	if prev != chain.Last || !slices.Equal(got, []string{`1exec{"n":0,"text":"a\nb"}`, `2exec{"n":1,"text":"a\nb"}`, `3exec{"n":2,"text":"a\nb"}`}) {
		t.Errorf("%q", got)
	}
	p, err := VerifyEvents(bytes.NewReader(b), runID, &chain)
	if err != nil || p != nil {
		t.Errorf("%v, %v", p, err)
	}
	for e, err := range ReadEvents(bytes.NewReader(b), runID) { // leaving early is allowed
		must(t, err)
		if e.Seq == 1 {
			break
		}
	}
}

// F7 for event streams: what was done, and where.
func TestF7EventsNameWhatWasDone(t *testing.T) {
	b, chain := events(t, 5)
	all := bytes.SplitAfter(b, []byte("\n"))[:5]
	edit := func(l []byte) []byte { return bytes.Replace(l, []byte("exec"), []byte("open"), 1) }
	// rechain makes the hashes fit from line i on.
	rechain := func(lines [][]byte, i int) [][]byte {
		for ; i < len(lines); i++ {
			e, err := parseEvent(bytes.TrimSuffix(lines[i], []byte("\n")))
			must(t, err)
			prev := cell.Sum([]byte(runID))
			if i > 0 {
				prev = cell.Sum(bytes.TrimSuffix(lines[i-1], []byte("\n")))
			}
			lines[i] = bytes.Replace(lines[i], []byte(e.Prev.String()), []byte(prev.String()), 1)
		}
		return lines
	}
	other, _ := events(t, 1)
	for _, c := range []struct {
		name string
		do   func(l [][]byte) [][]byte
		run  cell.RunID
		want string // with the digest that the receipt has
		bare string // without
	}{
		{"untouched", func(l [][]byte) [][]byte { return l }, runID, "", ""},
		{"edited", func(l [][]byte) [][]byte { l[2] = edit(l[2]); return l }, runID, "edited 3", "edited 3"},
		{"first edited", func(l [][]byte) [][]byte { l[0] = edit(l[0]); return l }, runID, "edited 1", "edited 1"},
		{"last edited", func(l [][]byte) [][]byte { l[4] = edit(l[4]); return l }, runID, "edited 5", ""},
		{"next to last edited", func(l [][]byte) [][]byte { l[3] = edit(l[3]); return l }, runID, "edited 4", "edited 4"},
		{"prev edited", func(l [][]byte) [][]byte {
			l[2] = bytes.Replace(l[2], []byte(`"prev":"sha256:`), []byte(`"prev":"sha256:0`), 1)
			i := bytes.LastIndex(l[2], []byte(`"}`))
			l[2] = slices.Delete(l[2], i-1, i)
			return l
		}, runID, "edited 3", "edited 3"},
		{"not JSON", func(l [][]byte) [][]byte { l[2] = []byte("hello\n"); return l }, runID, "edited 3", "edited 3"},
		{"recomputed", func(l [][]byte) [][]byte { l[2] = edit(l[2]); return rechain(l, 3) }, runID, "edited 5", ""},
		{"dropped", func(l [][]byte) [][]byte { return slices.Delete(l, 2, 3) }, runID, "dropped 3", "dropped 3"},
		{"first dropped", func(l [][]byte) [][]byte { return l[1:] }, runID, "dropped 1", "dropped 1"},
		{"swapped", func(l [][]byte) [][]byte { l[1], l[2] = l[2], l[1]; return l }, runID, "reordered 2", "reordered 2"},
		{"repeated", func(l [][]byte) [][]byte { return slices.Insert(l, 3, l[2]) }, runID, "repeated 4", "repeated 4"},
		{"truncated", func(l [][]byte) [][]byte { return l[:3] }, runID, "truncated 4", ""},
		{"emptied", func(l [][]byte) [][]byte { return nil }, runID, "truncated 1", ""},
		{"torn", func(l [][]byte) [][]byte { l[4] = l[4][:20]; return l }, runID, "truncated 5", "truncated 5"},
		{"added", func(l [][]byte) [][]byte {
			w := bytes.NewBuffer(nil)
			must(t, NewEventWriter(w, chain).Emit("x", nil))
			return append(l, w.Bytes())
		}, runID, "added 6", ""},
		{"of another run", func(l [][]byte) [][]byte { return l }, "r-ffff", "edited 1", "edited 1"},
		{"line of another stream", func(l [][]byte) [][]byte { l[0] = bytes.Replace(other, []byte("exec"), []byte("made"), 1); return l }, runID, "edited 1", "edited 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := make([][]byte, len(all))
			for i := range all {
				lines[i] = bytes.Clone(all[i])
			}
			b := bytes.Join(c.do(lines), nil)
			for want, chain := range map[string]*Chain{c.want + " ": &chain, c.bare: nil} {
				p, err := VerifyEvents(bytes.NewReader(b), c.run, chain)
				got := ""
				if p != nil {
					got = fmt.Sprintf("%s %d", p.Reason, p.Index)
					if !strings.HasPrefix(p.What, fmt.Sprintf("line %d: ", p.Index)) {
						t.Errorf("says %q", p.What)
					}
				}
				if err != nil || got != strings.TrimSpace(want) {
					t.Errorf("got %v, %v; want %q", p, err, want)
				}
			}
			var failed error
			n := int64(0)
			for e, err := range ReadEvents(bytes.NewReader(b), c.run) {
				if failed = err; err == nil {
					n = e.Seq
				}
			}
			if c.bare == "" && failed != nil || c.bare != "" && cell.KindOf(failed) != cell.Corrupt {
				t.Errorf("ReadEvents after %d: %v", n, failed)
			}
		})
	}
}

func TestEventsGoOn(t *testing.T) {
	b, chain := events(t, 2)
	w := bytes.NewBuffer(b)
	ew := NewEventWriter(w, chain)
	must(t, ew.Emit("end", nil))
	chain = ew.Digest()
	p, err := VerifyEvents(bytes.NewReader(w.Bytes()), runID, &chain)
	if err != nil || p != nil || chain.Count != 3 {
		t.Errorf("%v, %v", p, err)
	}
}

type failing struct {
	bytes.Buffer
	writes, syncs int
}

func (f *failing) Write(b []byte) (int, error) {
	if f.writes--; f.writes < 0 {
		f.Buffer.Write(b[:len(b)/2])
		return len(b) / 2, errors.New("disk full")
	}
	return f.Buffer.Write(b)
}

func (f *failing) Sync() error {
	if f.syncs--; f.syncs < 0 {
		return errors.New("no sync")
	}
	return nil
}

// F11: after a line that may be there in part nothing can follow, and the end
// of the stream says so.
func TestF11EventFailuresStay(t *testing.T) {
	f := &failing{writes: 2, syncs: 1}
	w := NewEventWriter(f, StartChain(runID))
	must(t, w.Emit("a", nil), w.Emit("b", nil), w.Sync())
	f.writes = 0
	if err := w.Emit("c", nil); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("%v", err)
	}
	f.writes, f.syncs = 9, 9
	if err := w.Emit("d", nil); err == nil {
		t.Error("an event followed a broken line")
	}
	if err := w.Sync(); err == nil {
		t.Error("Sync of a broken stream")
	}
	if w.Digest().Count != 2 {
		t.Errorf("%+v", w.Digest())
	}
	w = NewEventWriter(&failing{writes: 9}, StartChain(runID))
	must(t, w.Emit("a", nil))
	//lint:ignore SA4000 the second call must fail as well
	if w.Sync() == nil || w.Sync() == nil {
		t.Error("a failed sync was forgotten")
	}
}

func TestEventsThatCannotBe(t *testing.T) {
	var b bytes.Buffer
	w := NewEventWriter(&b, StartChain(runID))
	if err := w.Emit("a", make(chan int)); cell.KindOf(err) != cell.Invalid {
		t.Errorf("%v", err)
	}
	if err := w.Emit("a", strings.Repeat("x", MaxEvent)); cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("%v", err)
	}
	must(t, w.Emit("a", strings.Repeat("x", MaxEvent-200)))
	chain := w.Digest()
	if p, err := VerifyEvents(&b, runID, &chain); p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
	long := strings.NewReader(strings.Repeat("x", 3*MaxEvent))
	if p, err := VerifyEvents(long, runID, nil); err != nil || p == nil || p.Index != 1 {
		t.Errorf("%v, %v", p, err)
	}
	broken := io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errors.New("gone")))
	if _, err := VerifyEvents(broken, runID, nil); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("%v", err)
	}
	for _, err := range ReadEvents(iotest.ErrReader(errors.New("gone")), runID) {
		if cell.KindOf(err) != cell.Unavailable {
			t.Errorf("%v", err)
		}
	}
}

// newlines are that many, of which it says how many were read.
type newlines struct{ left, read int64 }

func (n *newlines) Read(p []byte) (int, error) {
	if n.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), n.left)]
	for i := range p {
		p[i] = '\n'
	}
	n.left, n.read = n.left-int64(len(p)), n.read+int64(len(p))
	return len(p), nil
}

// What is no stream of events is not read to its end, also behind an event that others could be missing before.
func TestEventsOfNewlines(t *testing.T) {
	all, _ := events(t, 4)
	third := bytes.SplitAfter(all, []byte("\n"))[2]
	for want, before := range map[string][]byte{"edited 1": nil, "dropped 1": third} {
		n := &newlines{left: 1 << 32}
		p, err := VerifyEvents(io.MultiReader(bytes.NewReader(before), n), runID, nil)
		if err != nil || p == nil || fmt.Sprintf("%s %d", p.Reason, p.Index) != want || n.read > 4*MaxEvent {
			t.Errorf("%v, %v after %d lines; want %s", p, err, n.read, want)
		}
	}
}

func TestEventsConcurrently(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "events"))
	must(t, err)
	defer f.Close()
	w := NewEventWriter(f, StartChain(runID))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for j := range 100 {
				if err := w.Emit("x", map[string]int{"j": j}); err != nil {
					t.Error(err)
				}
				w.Digest()
			}
		})
	}
	wg.Wait()
	must(t, w.Sync())
	chain := w.Digest()
	r, err := os.Open(f.Name())
	must(t, err)
	defer r.Close()
	if p, err := VerifyEvents(r, runID, &chain); p != nil || err != nil || chain.Count != 800 {
		t.Errorf("%v, %v", p, err)
	}
}

// F12: the files of a run's folder are bound by the receipt.
func TestF12FilesThatDifferAreNamed(t *testing.T) {
	dir := t.TempDir()
	digests := map[string]cell.Digest{}
	for _, name := range []string{"manifest", "events", "stdout", "stderr", "patch"} {
		content := []byte("content of " + name)
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		digests[name] = cell.Sum(content)
	}
	closed := 0
	open := func(name string) (io.Reader, error) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		return counted{f, &closed}, nil
	}
	if p := VerifyFiles(digests, open); len(p) != 0 || closed != 5 {
		t.Errorf("%v, %d closed", p, closed)
	}
	must(t, os.WriteFile(filepath.Join(dir, "manifest"), []byte("content of manifesT"), 0o600), os.Remove(filepath.Join(dir, "patch")), os.WriteFile(filepath.Join(dir, "more"), nil, 0o600))
	var got []string
	for _, p := range VerifyFiles(digests, open) {
		got = append(got, fmt.Sprintf("%s %s: %s", p.Reason, p.File, p.What))
	}
	want := []string{
		fmt.Sprintf("edited manifest: manifest has the digest %s, the receipt says %s", cell.Sum([]byte("content of manifesT")).Short(), digests["manifest"].Short()),
		"missing patch: patch is not there",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	broken := func(string) (io.Reader, error) { return iotest.ErrReader(errors.New("gone")), nil }
	if p := VerifyFiles(map[string]cell.Digest{"a": {}}, broken); len(p) != 1 || p[0].Reason != Missing || !strings.Contains(p[0].What, "gone") {
		t.Errorf("%v", p)
	}
}

type counted struct {
	*os.File
	closed *int
}

func (c counted) Close() error { *c.closed++; return c.File.Close() }
