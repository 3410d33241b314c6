package engine

import (
	"os"
	"path/filepath"
	"testing"
)

// The version of a program is in its package of npm, or in the name of its folder. Nothing else is one.
func TestPackageVersion(t *testing.T) {
	dir := t.TempDir()
	put := func(at, text string) string {
		at = filepath.Join(dir, at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	put("lib/package.json", `{"name":"@a/tool","version":"1.2.3-rc.1"}`)
	put("lib/vendor/package.json", `{"name":"other","version":"9.9.9"}`)
	link := filepath.Join(dir, "tool")
	if err := os.Symlink(put("lib/vendor/bin/tool.js", ""), link); err != nil {
		t.Fatal(err)
	}
	put("bad/package.json", `{"name":"@a/tool","version":"1.2 \u001b[31m"}`)
	for at, want := range map[string]string{
		link:                                  "1.2.3-rc.1",
		put("share/tool/versions/4.5.6", ""):  "4.5.6",
		put("share/tool/versions/latest", ""): "",
		put("bad/tool", ""):                   "",
		put("alone/tool", ""):                 "",
		filepath.Join(dir, "gone"):            "",
	} {
		if got := packageVersion(at, "@a/tool"); got != want {
			t.Errorf("%s: %q, not %q", at, got, want)
		}
	}
}
