package gitdir

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// FuzzNamed takes any bytes for configuration: what comes out are clean paths
// below the source.
func FuzzNamed(f *testing.F) {
	for _, s := range []string{"[core]\n\tfsmonitor = \"a/b 'c d' $(x `y`) ${Z:-w/v}\"", "[url \"ext::a/b\"]\n\tinsteadOf = x", "[include]\n\tpath = ~/x", "path=a:b,%q%/c", "\x00.//", "\x00..//./a/b", "\\\x00/..//*?["} {
		f.Add(s)
	}
	source := filepath.Join(f.TempDir(), "src")
	f.Fuzz(func(t *testing.T, s string) {
		boundtest.Allocates(t, len(s), func() {
			n := newNamer(Places{Source: source, Homes: []string{"/nowhere/home"}})
			n.text(ConfigFile{File: source + "/x/y", Base: source, Folders: true}, []byte(s))
			c := configReader{rest: []byte(s)}
			for len(c.rest) > 0 {
				if !c.next() {
					c.line()
					continue
				}
				n.gitValue(source+"/.git/config", c.section, c.key, c.value, []string{source}, true)
			}
			for _, v := range n.list {
				if v.Path != filepath.Clean(v.Path) || filepath.IsAbs(v.Path) || v.Path == ".." || strings.HasPrefix(v.Path, "../") {
					t.Errorf("%q names %q", s, v.Path)
				}
			}
		})
	})
}
