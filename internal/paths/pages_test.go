package paths

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// docs/format.md has a row for each file and folder at the top of an installation's
// directories, and for no others. The design page names them, too.
func TestPagesNameTheState(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	design, err := os.ReadFile("../../docs/design/0001-house.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tree, _ := strings.Cut(string(design), "## State on disk")
	home := reflect.ValueOf(Home{State: "/state", Cache: "/cache", Run: "/run"})
	names := map[string]map[string]bool{"state": {}, "cache": {}, "run": {}}
	for i := range home.NumMethod() {
		m, ok := home.Method(i).Interface().(func() string)
		if !ok || m() == "" { // beside a policy that there is none of
			continue
		}
		dir, name, _ := strings.Cut(strings.TrimPrefix(m(), "/"), "/")
		name, _, _ = strings.Cut(name, "/")
		if names[dir] == nil {
			continue // of the host, as /etc
		}
		names[dir][name] = true
		if !strings.Contains(tree, name) {
			t.Errorf("0001-house.md does not name %s", filepath.Join(dir, name))
		}
	}
	for dir, has := range names {
		_, table, ok := strings.Cut(string(page), "| in `"+dir+"` | |\n|---|---|\n")
		if !ok {
			t.Errorf("format.md has no table of %s", dir)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		for line := range strings.Lines(table) {
			name := strings.Trim(strings.Split(line, "|")[1], " `/")
			if !has[name] {
				t.Errorf("format.md has %s/%s, and Home does not", dir, name)
			}
			delete(has, name)
		}
		for name := range has {
			t.Errorf("format.md does not have %s/%s", dir, name)
		}
	}
}
