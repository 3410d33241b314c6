package step

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

func newLog(t *testing.T) (*Log, string) {
	dir := t.TempDir()
	return New(func(id cell.ID) string { return filepath.Join(dir, string(id)) }), dir
}

func folder(t *testing.T, dir string, id cell.ID) string {
	at := filepath.Join(dir, string(id))
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestStepsAreKeptAsTheyHappen(t *testing.T) {
	t.Parallel()
	l, dir := newLog(t)
	at := folder(t, dir, "c-1")
	began := time.Now().UTC()
	add := func(s Step) {
		t.Helper()
		if err := l.Add("c-1", s); err != nil {
			t.Fatal(err)
		}
	}
	l.Wrote("c-9") // which has no folder
	if folder(t, dir, "c-3"); l.Any("c-3") || l.Any("c-9") {
		t.Error("there is something of a cell in which nothing was done")
	}
	if l.Wrote("c-3"); !l.Any("c-3") {
		t.Error("nothing is known of a file that was given to a cell")
	}
	if list, err := l.List("c-3"); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	if l.Any("c-1") {
		t.Error("there is something of a cell in which nothing was done")
	}
	add(Step{ID: "e-1", Kind: Command, Number: 1, Text: "make", Began: began})
	add(Step{ID: "e-2", Kind: Command, Number: 2, Text: strings.Repeat("ä", 400), Began: began})
	add(Step{ID: "e-1", Ended: began.Add(time.Second), Exit: 2, Cause: "timeout"})
	add(Step{ID: "e-9", Ended: began}) // of what was never begun: a service
	add(Step{ID: "v-1", Kind: Evaluation, Number: 2, Text: "1+1", Began: began, Ended: began})
	f, err := os.OpenFile(filepath.Join(at, file), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"id":"e-3","kind":"ex`) // the power went away
	f.Close()
	next := New(l.folder)
	if !next.Any("c-1") {
		t.Error("the next daemon knows of no step")
	}
	list, err := next.List("c-1")
	if err != nil || len(list) != 3 {
		t.Fatalf("the steps are %+v, %v", list, err)
	}
	if s := list[0]; s.ID != "e-1" || s.Exit != 2 || s.Cause != "timeout" || !s.Ended.Equal(began.Add(time.Second)) || s.Text != "make" {
		t.Errorf("the first is %+v", s)
	}
	if s := list[1]; !s.Ended.IsZero() || len(s.Text) > textMost+len("…") || !strings.HasSuffix(s.Text, "ä…") {
		t.Errorf("the second is %+v", s)
	}
	if list, err := l.List("c-2"); err != nil || list != nil {
		t.Errorf("of a cell without steps: %v, %v", list, err)
	}
	if err := l.Add("c-2", Step{ID: "e-1"}); err == nil {
		t.Error("a step was kept of a cell without a folder")
	}
}

func TestStepsAreBounded(t *testing.T) {
	t.Parallel()
	l, dir := newLog(t)
	at := folder(t, dir, "c-1")
	text := strings.Repeat("x", 399)
	const n = 4 * fileMost / 500
	for i := range n {
		if err := l.Add("c-1", Step{ID: NewID(), Kind: Evaluation, Number: i + 1, Text: text}); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(filepath.Join(at, file))
	if err != nil || st.Size() > fileMost+1000 {
		t.Errorf("the file has %d bytes, %v", st.Size(), err)
	}
	list, err := l.List("c-1")
	if err != nil || len(list) < n/10 {
		t.Fatalf("%d are left, %v", len(list), err)
	}
	for i := range list {
		if want := n - len(list) + i + 1; list[i].Number != want {
			t.Fatalf("step %d of those left has number %d, not %d", i, list[i].Number, want)
		}
	}
}

func TestEvaluationsShare(t *testing.T) {
	t.Parallel()
	l, dir := newLog(t)
	folder(t, dir, "c-1")
	synctest.Test(t, func(t *testing.T) {
		add := func(kind string, number int) {
			if err := l.Add("c-1", Step{ID: NewID(), Kind: kind, Number: number, Without: "why", Head: "k-1"}); err != nil {
				t.Fatal(err)
			}
		}
		share := func(want int) {
			t.Helper()
			s, ok := l.Shares("c-1", "k-1", time.Second)
			if ok != (want > 0) || ok && (s.Number != want || s.Without != "why") {
				t.Errorf("it shares %+v, %v, not %d", s, ok, want)
			}
			if _, ok := l.Shares("c-1", "k-2", time.Second); ok {
				t.Error("it shares where the cell went to another checkpoint")
			}
		}
		share(0)
		add(Evaluation, 3)
		share(3)
		time.Sleep(2 * time.Second)
		share(0)
		add(Evaluation, 4)
		share(4)
		l.Wrote("c-1")
		share(0)
		add(Evaluation, 5)
		add(Command, 5) // what it changes is not the evaluation's
		share(0)
	})
}
