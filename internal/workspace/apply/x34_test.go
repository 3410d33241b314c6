package apply

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// TestX34TimesKeepTheirOrder: what is written is newer than all that was in the source
// before, and in the order of its times in the cell: make builds what it must, and no more.
func TestX34TimesKeepTheirOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		times map[string]int64 // of what is changed, in the cell; paths are written in their order
		order []string         // from the oldest on
	}{
		{"a build", map[string]int64{"app": 300, "lib/z.o": 200, "z.c": 100}, []string{"z.c", "lib/z.o", "app"}},
		{"of one time", map[string]int64{"a": 100, "b": 100, "c": 50}, []string{"c", "a=b"}},
		{"in the future", map[string]int64{"a": time.Now().Add(time.Hour).UnixNano(), "b": 100}, []string{"b", "a"}},
		{"before all times", map[string]int64{"a": -100, "b": -200}, []string{"b", "a"}},
	} {
		base := wt.Model{"z.c": wt.Plain("0"), "built.before": wt.Plain("0"), "same": wt.Plain("0")}
		dir := sourceOf(t, base)
		before := time.Now()
		os.Chtimes(filepath.Join(dir, "built.before"), before, before)
		after := base
		for p, at := range c.times {
			after = after.With(p, wt.Thing{Text: "of the cell", MTime: at})
		}
		after = after.With("link", wt.Thing{Link: "z.c", MTime: 1})
		mustApply(t, applyRequest(t, dir, base, after))
		at := func(p string) time.Time {
			st, err := os.Lstat(filepath.Join(dir, p))
			if err != nil {
				t.Fatal(err)
			}
			return st.ModTime()
		}
		for p := range c.times {
			if at(p).Before(before) || at(p).After(time.Now().Add(time.Second)) {
				t.Errorf("%s: %s is from %v, applied after %v", c.name, p, at(p), before)
			}
		}
		if at("link").Before(before) {
			t.Errorf("%s: the symlink is from %v", c.name, at("link"))
		}
		var last time.Time
		for _, names := range c.order {
			list := strings.Split(names, "=")
			if !at(list[0]).After(last) || slices.ContainsFunc(list, func(p string) bool { return !at(p).Equal(at(list[0])) }) {
				t.Errorf("%s: %s is from %v, what is older in the cell from %v", c.name, names, at(list[0]), last)
			}
			last = at(list[0])
		}
	}
}
