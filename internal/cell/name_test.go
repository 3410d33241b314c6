package cell_test

import (
	"cmp"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func TestCompareNames(t *testing.T) {
	names := []string{"", "1", "2", "10", "a", "a-b2", "a-b10", "a1", "a01", "a2b", "a10b1", "a10b2", "a18446744073709551616", "b"}
	for i, a := range names {
		for j, b := range names {
			want := cmp.Compare(i, j)
			if a == "a1" && b == "a01" || a == "a01" && b == "a1" { // the same number: some order, the same both ways
				want = -cell.CompareNames(b, a)
				if want == 0 {
					t.Errorf("%q is %q", a, b)
				}
			}
			if got := cell.CompareNames(a, b); got != want {
				t.Errorf("%q and %q: %d, want %d", a, b, got, want)
			}
		}
	}
}
