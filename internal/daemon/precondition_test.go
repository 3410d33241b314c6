package daemon

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// What a caller says it saw is compared with what there is; what is no list of
// ETags is refused, not taken for none.
func TestMeets(t *testing.T) {
	for _, x := range []struct {
		match, none, there string
		want               cell.Kind
	}{
		{"", "", "a", ""},
		{`"a"`, "", "a", ""},
		{`"b" , "a"`, "", "a", ""},
		{`*`, "", "a", ""},
		{`*`, "", "", cell.Stale},
		{`"a"`, "", "b", cell.Stale},
		{`"a"`, "", "", cell.Stale},
		{"", `*`, "", ""},
		{"", `*`, "a", cell.Stale},
		{"", `"a"`, "a", cell.Stale},
		{"", `W/"a"`, "a", cell.Stale},
		{"", `"b"`, "a", ""},
		{`a`, "", "a", cell.Invalid},
		{`"a`, "", "a", cell.Invalid},
		{`"a",`, "", "a", cell.Invalid},
		{`"a" "b"`, "", "a", cell.Invalid},
		{`,`, "", "a", cell.Invalid},
		{`"a b"`, "", "a", cell.Invalid},
		{"", `x`, "", cell.Invalid},
	} {
		r := httptest.NewRequest("PUT", "/", nil)
		for k, v := range map[string]string{"If-Match": x.match, "If-None-Match": x.none} {
			if v != "" {
				r.Header.Set(k, v)
			}
		}
		if err := checkPreconditions(r, x.there); cell.KindOf(err) != x.want {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

func FuzzTags(f *testing.F) {
	for _, s := range []string{`"a"`, `W/"a", "b"`, "*", `"`, `,`, "\"\xff\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := readTags(s)
		if ok && !got.any && len(got.list) == 0 || !ok && got.any {
			t.Errorf("%q: %+v, %v", s, got, ok)
		}
	})
}

// Writers of the same file take turns, a cancelled one leaves no waiter behind, and writers of
// other files do not wait.
func TestTurns(t *testing.T) {
	var nameLocks nameLocks
	release, err := nameLocks.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := nameLocks.lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := nameLocks.lock(ctx, "a"); cell.KindOf(err) != cell.Interrupted {
		t.Errorf("it is had by two: %v", err)
	}
	got := make(chan func())
	go func() {
		r, err := nameLocks.lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	release()
	(<-got)()
	if len(nameLocks.of) != 0 {
		t.Errorf("%d turns are left", len(nameLocks.of))
	}
}
