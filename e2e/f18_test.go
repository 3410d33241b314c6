package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// TestF18ManyAtOnce runs several commands in each of several cells, more of both in the soak,
// all at once: runs of one cell are sequential, nothing is lost, and each has its receipt.
func TestF18ManyAtOnce(t *testing.T) {
	cells, runs := 20, 5
	if os.Getenv("E2E_SOAK") == "" {
		t.Parallel()
		cells, runs = 6, 4
	}
	h := newHost(t)
	h.write("f", "source\n")
	before := describeDir(t, h.src)
	h.pando("daemon", "status")
	var all sync.WaitGroup
	for c := range cells {
		for r := range runs {
			all.Go(func() {
				name := fmt.Sprintf("cell%d", c)
				script := fmt.Sprintf("test $(cat f) = source && echo %d > run%d && echo %d >> log", r, r, r)
				// One of those that come first makes the cell, and the others wait for that.
				if o := h.try("run", "--cell", name, "--", "sh", "-c", script); o.code != 0 {
					t.Errorf("run %d in %s: exit code %d: %s", r, name, o.code, o.stderr)
				}
			})
		}
	}
	all.Wait()
	if t.Failed() {
		return
	}
	did := map[string]int{}
	for _, r := range h.runs() {
		if r.Error != nil { // a conflict that was reported to its caller
			continue
		}
		if r.Receipt == "" || r.Verdict != "pending" || r.ExitCode == nil || *r.ExitCode != 0 {
			t.Errorf("run %s: verdict %q, receipt %q", r.ID, r.Verdict, r.Receipt)
		}
		did[r.CellName]++
	}
	if len(did) != cells {
		t.Errorf("there are %d cells", len(did))
	}
	for name, n := range did {
		if n != runs {
			t.Errorf("%s has %d runs", name, n)
		}
	}
	if v := h.verify(); !v.OK || v.Receipts < int64(cells*runs) {
		t.Errorf("%d receipts: %+v", v.Receipts, v.Problems)
	}
	for c := range cells {
		name := fmt.Sprintf("cell%d", c)
		got := h.inCell(name, "cat run?; sort log")
		if all := "0\n1\n2\n3\n4\n"[:2*runs]; got != all+all {
			t.Errorf("%s holds %q", name, got)
		}
		if head := h.cell(name).Head; head != 1+runs {
			t.Errorf("%s is at @%d", name, head)
		}
	}
	if describeDir(t, h.src) != before {
		t.Error("the source is not what it was")
	}
	if left := h.leftovers(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, "; "))
	}
}
