package bound

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pando-dev/pando/internal/cell"
)

func TestX02ReaderNamesTheLimit(t *testing.T) {
	for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader} {
		if b, err := ReadAll(wrap(strings.NewReader("12345")), "f", 5); string(b) != "12345" || err != nil {
			t.Errorf("at the limit: %q, %v", b, err)
		}
		b, err := ReadAll(wrap(strings.NewReader("123456")), "f", 5)
		if string(b) != "12345" || cell.KindOf(err) != cell.TooLarge || err.Error() != "cannot read f: it has more than 5 bytes" {
			t.Errorf("beyond the limit: %q, %v", b, err)
		}
		if e := Exceeded(err); e == nil || e.Limit != 5 || e.What != "f" {
			t.Errorf("Exceeded = %+v", e)
		}
	}
	bad := errors.New("bad")
	if _, err := ReadAll(iotest.ErrReader(bad), "f", 5); err != bad || Exceeded(err) != nil {
		t.Errorf("the error of the reader became %v", err)
	}
}

func TestX02BudgetEnds(t *testing.T) {
	b := NewBudget("f", 10, "entries")
	if err := b.Spend(10); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1, 0, -1} {
		err := b.Spend(n)
		if n != 0 && (err == nil || err.Error() != "cannot read f: it has more than 10 entries") {
			t.Errorf("Spend(%d) = %v", n, err)
		}
	}
	if err := b.Spend(0); err == nil {
		t.Error("an exhausted budget goes on")
	}
	if err := NewBudget("f", 10, "steps").Spend(-1 << 62); err == nil {
		t.Error("a negative cost is accepted")
	}
	if err := (*Budget)(nil).Spend(1 << 62); err != nil {
		t.Error(err)
	}
}

func TestX02ValuesAreCounted(t *testing.T) {
	for in, n := range map[string]int64{
		`[1,2,3]`: 4, `{"a":[{},{}]}`: 6, `"a,b,c[{"`: 1, `["\\",","]`: 3, `["\",,,",1]`: 3, `[` + strings.Repeat("[],", 100): 202,
	} {
		text := []byte(in + strings.Repeat(" ", 300))
		if err := Values(text, "f", n); err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if err := Values(text, "f", n-1); Exceeded(err) == nil || Exceeded(err).Unit != "values" {
			t.Errorf("%s has no more than %d: %v", in, n-1, err)
		}
	}
}
