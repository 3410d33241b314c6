package diff

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/aymanbagabas/go-udiff/lcs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"

	"github.com/pando-dev/pando/internal/testenv"
)

// Whatever the lines are, the edits turn one side into the other and leave a
// common line between two of them.
func TestLineEditsAreRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SampledFrom([]string{"a\n", "b\n", "\n", "  c\n", "\td\n", "e\n", "f\n", "g\n"})
		side := rapid.SliceOfN(words, 0, 60)
		a, b := side.Draw(t, "a"), side.Draw(t, "b")
		if msg := wrongEdits(a, b, diffLines(a, b)); msg != "" {
			t.Fatal(msg)
		}
	})
	// Long ones, in which the library gives up.
	r := rand.New(rand.NewSource(1))
	for range 30 {
		a, b := make([]string, r.Intn(3000)), make([]string, r.Intn(3000))
		for _, s := range [][]string{a, b} {
			for i := range s {
				s[i] = fmt.Sprintln(r.Intn(1 + r.Intn(500)))
			}
		}
		if msg := wrongEdits(a, b, diffLines(a, b)); msg != "" {
			t.Fatal(msg)
		}
	}
}

func wrongEdits(a, b []string, edits []edit) string {
	pa, pb := 0, 0
	for i, e := range edits {
		if e.a0-pa != e.b0-pb || e.a0 < pa || (i > 0 && e.a0 == pa) || strings.Join(a[pa:e.a0], "") != strings.Join(b[pb:e.b0], "") {
			return fmt.Sprintf("edit %d of %v is wrong", i, edits)
		}
		if e.a1 < e.a0 || e.b1 < e.b0 || (e.a0 == e.a1 && e.b0 == e.b1) {
			return fmt.Sprintf("edit %d of %v is empty", i, edits)
		}
		pa, pb = e.a1, e.b1
	}
	if strings.Join(a[pa:], "") != strings.Join(b[pb:], "") {
		return fmt.Sprintf("%v leave a different end", edits)
	}
	return ""
}

// A thousand changes in a long file stay a thousand small hunks, and take no
// time: with the library alone they are one.
func TestManyEditsStaySmall(t *testing.T) {
	var a, b []string
	for i := range 100_000 {
		a = append(a, fmt.Sprintln("line", i))
		b = append(b, a[i])
		if i%100 == 50 {
			b[i] = fmt.Sprintln("other", i)
		}
	}
	start := time.Now()
	edits := diffLines(a, b)
	if len(edits) != 1000 {
		t.Errorf("%d edits, want 1000", len(edits))
	}
	if d := time.Since(start); d > testenv.Patience() {
		t.Errorf("took %v", d)
	}
}

// The same without a line that occurs only once.
func TestManyEditsWithoutAnchors(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	var a, b []string
	for i := range 20_000 {
		a = append(a, fmt.Sprintln(r.Intn(50)))
		if i%50 != 25 {
			b = append(b, a[i])
		}
	}
	edits := diffLines(a, b)
	lines := 0
	for _, e := range edits {
		lines += e.a1 - e.a0 + e.b1 - e.b0
	}
	if msg := wrongEdits(a, b, edits); msg != "" || lines > 1000 {
		t.Errorf("%d lines in %d edits for 400 lines %s", lines, len(edits), msg)
	}
}

// Should the library ever be wrong, the edits are coarse, not wrong.
func TestWrongLibraryDiffsAreReplaced(t *testing.T) {
	x, y := []rune{1, 2, 3, 4}, []rune{1, 3, 4, 5}
	whole := []lcs.Diff{{End: 4, ReplEnd: 4}}
	right := []lcs.Diff{{Start: 1, End: 2, ReplStart: 1, ReplEnd: 1}, {Start: 4, End: 4, ReplStart: 3, ReplEnd: 4}}
	if got := checked(right, x, y); len(got) != 2 {
		t.Errorf("%v", got)
	}
	for _, wrong := range [][]lcs.Diff{
		nil, right[:1], right[1:], {right[1], right[0]},
		{{Start: 1, End: 9, ReplStart: 1, ReplEnd: 9}}, {{Start: 2, End: 1, ReplStart: 2, ReplEnd: 1}}, {{Start: 2, End: 4, ReplStart: 2, ReplEnd: 4}},
	} {
		if diff := cmp.Diff(whole, checked(wrong, x, y)); diff != "" {
			t.Errorf("%v: %s", wrong, diff)
		}
	}
}

// Text made to be slow is compared in bounded time.
func TestLineDiffIsNotQuadratic(t *testing.T) {
	const n = 300_000
	r := rand.New(rand.NewSource(1))
	for _, kinds := range []int{2, 3, 1000, n / 2} {
		a, b := make([]string, n), make([]string, n)
		for i := range a {
			a[i], b[i] = fmt.Sprintln(r.Intn(kinds)), fmt.Sprintln(r.Intn(kinds))
		}
		start := time.Now()
		if msg := wrongEdits(a, b, diffLines(a, b)); msg != "" {
			t.Fatal(msg)
		}
		if d := time.Since(start); d > testenv.Patience() {
			t.Errorf("%d kinds of lines: %v", kinds, d)
		}
	}
}

// A block that was added begins where a reader would begin it.
func TestBlocksSlide(t *testing.T) {
	a := splitLines("func a() {\n\tx\n}\n\nfunc c() {\n\tz\n}\n")
	b := splitLines("func a() {\n\tx\n}\n\nfunc b() {\n\tz\n}\n\nfunc c() {\n\tz\n}\n")
	e := diffLines(a, b)
	if len(e) != 1 || b[e[0].b0] != "func b() {\n" {
		t.Errorf("%v", e)
	}
	a = splitLines("{\n\tif x {\n\t\tb()\n\t}\n}\n")
	b = splitLines("{\n\tif x {\n\t\ta()\n\t}\n\tif x {\n\t\tb()\n\t}\n}\n")
	if e := diffLines(a, b); len(e) != 1 || b[e[0].b0] != "\tif x {\n" {
		t.Errorf("%v", e)
	}
}

func BenchmarkFiveMegabytesOfText(b *testing.B) {
	var one, two strings.Builder
	for i := range 100_000 {
		l := fmt.Sprintf("line %d with some text that makes it as long as usual\n", i)
		one.WriteString(l)
		if i%200 != 0 {
			two.WriteString(l)
		}
	}
	x, y := wt.Model{"f": wt.Plain(one.String())}.Side(b, nil), wt.Model{"f": wt.Plain(two.String())}.Side(b, nil)
	b.SetBytes(int64(one.Len()))
	b.ResetTimer()
	for b.Loop() {
		patchOf(b, mustCompare(b, x, y, Options{}))
	}
}
