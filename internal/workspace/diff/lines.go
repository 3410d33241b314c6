package diff

import (
	"sort"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

// slide moves blocks that were only added or only deleted to where a reader expects them, as
// git's indent heuristic does: an added function begins at its first line, not at the closing
// brace of the one before.
func slide(edits []edit, a, b []string) {
	for i := range edits {
		e := &edits[i]
		low, high := 0, len(a)
		if i > 0 {
			low = edits[i-1].a1 + 1
		}
		if i+1 < len(edits) {
			high = edits[i+1].a0 - 1
		}
		switch {
		case e.a0 == e.a1:
			n := bestShift(b, e.b0, e.b1, e.a0-low, high-e.a1)
			*e = edit{e.a0 + n, e.a1 + n, e.b0 + n, e.b1 + n}
		case e.b0 == e.b1:
			n := bestShift(a, e.a0, e.a1, e.a0-low, high-e.a1)
			*e = edit{e.a0 + n, e.a1 + n, e.b0 + n, e.b1 + n}
		}
	}
}

// maxShift bounds the distance of a move.
const maxShift = 100

// bestShift returns how far lines[from:to] should move; it may go up by up lines or down by down
// lines, as long as the removed text stays the same.
func bestShift(lines []string, from, to, up, down int) int {
	first, last := 0, 0
	for -first < min(up, maxShift) && from+first > 0 && lines[from+first-1] == lines[to+first-1] {
		first--
	}
	for last < min(down, maxShift) && to+last < len(lines) && lines[from+last] == lines[to+last] {
		last++
	}
	best, cost := last, -1
	for n := last; n >= first; n-- {
		c := startCost(lines, from+n, to+n)
		if cost < 0 || c < cost {
			best, cost = n, c
		}
	}
	return best
}

// startCost is the penalty of lines[from:to] as a block.
func startCost(lines []string, from, to int) int {
	cost := 0
	if from > 0 && strings.TrimSpace(lines[from-1]) != "" {
		cost += 2
	}
	if strings.TrimSpace(lines[from]) == "" {
		cost++
	}
	for i := from; i < min(to, from+maxShift); i++ {
		if strings.TrimSpace(lines[i]) != "" {
			return cost + 4*indentOf(lines[i])
		}
	}
	return cost
}

func indentOf(line string) int {
	n := 0
	for i := 0; i < len(line) && n < 200; i++ {
		switch line[i] {
		case ' ':
			n++
		case '\t':
			n += 8 - n%8
		default:
			return n
		}
	}
	return n
}

// edit replaces lines a[a0:a1] by lines b[b0:b1].
type edit struct{ a0, a1, b0, b1 int }

// splitLines cuts text after each newline. The last line may have none.
func splitLines(text string) []string {
	lines := make([]string, 0, strings.Count(text, "\n")+1)
	for text != "" {
		i := strings.IndexByte(text, '\n') + 1
		if i == 0 {
			i = len(text)
		}
		lines = append(lines, text[:i])
		text = text[i:]
	}
	return lines
}

// diffLines returns the edits that turn a into b, in order, with at least one
// common line between two of them.
//
// go-udiff's algorithm gives up after 50 differences from each end and calls
// the rest one block: never slow (measured: 15 ms for a million lines), but
// coarse. So we first fix the lines that occur once on each side and are in
// the same order (patience diff, n log n), and ask it only about the gaps.
func diffLines(a, b []string) []edit {
	pre, suf := common(a, b)
	x, y, n := intern(a[pre:len(a)-suf], b[pre:len(b)-suf])
	d := differ{count: make([]seenLine, n)}
	d.gap(x, y, pre, pre, 0)
	slide(d.out, a, b)
	return d.out
}

// common returns how many elements a and b share at the start and, after
// these, at the end.
func common[T comparable](a, b []T) (pre, suf int) {
	n := min(len(a), len(b))
	for pre < n && a[pre] == b[pre] {
		pre++
	}
	for suf < n-pre && a[len(a)-1-suf] == b[len(b)-1-suf] {
		suf++
	}
	return pre, suf
}

// intern gives each distinct line a number below n.
func intern(a, b []string) (x, y []rune, n int) {
	ids := make(map[string]rune, len(a))
	number := func(lines []string) []rune {
		out := make([]rune, len(lines))
		for i, l := range lines {
			id, ok := ids[l]
			if !ok {
				id = rune(len(ids))
				ids[l] = id
			}
			out[i] = id
		}
		return out
	}
	x, y = number(a), number(b)
	return x, y, len(ids)
}

// maxGapDepth bounds the work on adversarial text; ordinary text needs two or three levels.
const maxGapDepth = 16

type differ struct {
	count []seenLine // by line number; zero between calls
	out   []edit
}

// seenLine counts the occurrences of a line on each side, with their positions.
type seenLine struct{ nx, ny, px, py int32 }

// gap compares x, which starts at line ax, with y, which starts at ay.
func (d *differ) gap(x, y []rune, ax, ay, depth int) {
	pre, suf := common(x, y)
	x, y, ax, ay = x[pre:len(x)-suf], y[pre:len(y)-suf], ax+pre, ay+pre
	if len(x) == 0 || len(y) == 0 || depth > maxGapDepth {
		d.add(edit{ax, ax + len(x), ay, ay + len(y)})
		return
	}
	if anchors := d.anchors(x, y); len(anchors) > 0 {
		px, py := 0, 0
		for _, p := range anchors {
			d.gap(x[px:p.x], y[py:p.y], ax+px, ay+py, depth+1)
			px, py = p.x+1, p.y+1
		}
		d.gap(x[px:], y[py:], ax+px, ay+py, depth+1)
		return
	}
	for _, p := range checked(lcs.DiffRunes(x, y), x, y) {
		// A long block is where the algorithm gave up: it is compared again.
		if n := p.End - p.Start + p.ReplEnd - p.ReplStart; n > 100 && n < len(x)+len(y) && p.End > p.Start && p.ReplEnd > p.ReplStart {
			d.gap(x[p.Start:p.End], y[p.ReplStart:p.ReplEnd], ax+p.Start, ay+p.ReplStart, depth+1)
			continue
		}
		d.add(edit{ax + p.Start, ax + p.End, ay + p.ReplStart, ay + p.ReplEnd})
	}
}

// checked returns parts if they turn x into y, else one part that replaces everything: a patch
// must be right despite bugs of the library.
func checked(parts []lcs.Diff, x, y []rune) []lcs.Diff {
	px, py := 0, 0
	same := func(tox, toy int) bool {
		if tox < px || toy < py || tox > len(x) || toy > len(y) || tox-px != toy-py {
			return false
		}
		for i := range tox - px {
			if x[px+i] != y[py+i] {
				return false
			}
		}
		return true
	}
	for _, p := range parts {
		if !same(p.Start, p.ReplStart) || p.End < p.Start || p.ReplEnd < p.ReplStart {
			return []lcs.Diff{{End: len(x), ReplEnd: len(y)}}
		}
		px, py = p.End, p.ReplEnd
	}
	if !same(len(x), len(y)) {
		return []lcs.Diff{{End: len(x), ReplEnd: len(y)}}
	}
	return parts
}

// add appends e, joined to the edit before when nothing lies between them.
func (d *differ) add(e edit) {
	if e.a0 == e.a1 && e.b0 == e.b1 {
		return
	}
	if n := len(d.out); n > 0 && d.out[n-1].a1 == e.a0 && d.out[n-1].b1 == e.b0 {
		d.out[n-1].a1, d.out[n-1].b1 = e.a1, e.b1
		return
	}
	d.out = append(d.out, e)
}

type anchor struct{ x, y int }

// anchors returns the longest ascending sequence of lines that occur exactly
// once in x and once in y.
func (d *differ) anchors(x, y []rune) []anchor {
	for i, l := range x {
		d.count[l].nx++
		d.count[l].px = int32(i)
	}
	for i, l := range y {
		d.count[l].ny++
		d.count[l].py = int32(i)
	}
	// Patience sorting: tails[k] is the end of the best sequence of length k+1.
	var once []anchor
	var tails, before []int
	for _, l := range x {
		c := d.count[l]
		if c.nx != 1 || c.ny != 1 {
			continue
		}
		i := len(once)
		once = append(once, anchor{int(c.px), int(c.py)})
		k := sort.Search(len(tails), func(k int) bool { return once[tails[k]].y > int(c.py) })
		prev := -1
		if k > 0 {
			prev = tails[k-1]
		}
		before = append(before, prev)
		if k == len(tails) {
			tails = append(tails, i)
		} else {
			tails[k] = i
		}
	}
	for _, side := range [][]rune{x, y} {
		for _, l := range side {
			d.count[l] = seenLine{}
		}
	}
	out := make([]anchor, len(tails))
	if len(tails) > 0 {
		for k, i := len(tails)-1, tails[len(tails)-1]; k >= 0; k, i = k-1, before[i] {
			out[k] = once[i]
		}
	}
	return out
}
