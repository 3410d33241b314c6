package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
)

// The lines about commits of a cell can be pasted into a shell, whatever the cell called
// its branches.
func TestSayCommits(t *testing.T) {
	for _, c := range []struct {
		made api.CellCommits
		want string
	}{
		{api.CellCommits{Commits: 1, Branches: []string{"main"}, CheckedOut: true, Since: strings.Repeat("ab", 20)},
			`1 commit was made in the cell (branch main); accept brings their files, not the commits
to take it, too: pando accept web --commits
to take it instead of accept --apply: pando fetch web, then git merge pando/web/main
`},
		{api.CellCommits{Commits: 2, More: true, Branches: []string{"$(id)", "--upload-pack=id", "it's"}},
			`2 commits and more were made in the cell (branches $(id), --upload-pack=id, it's); accept brings their files, not the commits
to take them instead of accept --apply: pando fetch web, then git merge 'pando/web/$(id)'
`},
		{api.CellCommits{More: true, Branches: []string{"a", "b", "c", "d", "e", "f", "g"}},
			`commits were made in the cell (branches a, b, c, d, e and 2 more); accept brings their files, not the commits
to take them instead of accept --apply: pando fetch web, then git merge pando/web/a
`},
		{api.CellCommits{Commits: 1, Branches: []string{"HEAD"}},
			`1 commit was made in the cell (branch HEAD); accept brings their files, not the commits
to take it instead of accept --apply: pando fetch web, then git merge pando/web/detached-head
`},
		{api.CellCommits{Branches: []string{}, Submodules: []api.SubmoduleCommits{{Path: "lib/$(id)", Commits: 1, Branches: []string{"HEAD"}, Since: strings.Repeat("ab", 20)}}},
			`1 commit was made in the cell's submodule lib/$(id) (branch HEAD); accept brings their files, not the commits
to take it instead of accept --apply: f=$(mktemp) && pando exec -n web -- git -C 'lib/$(id)' bundle create -q - HEAD --not ababababab >"$f" && git -C 'lib/$(id)' fetch "$f" HEAD && rm "$f", then git -C 'lib/$(id)' merge FETCH_HEAD
`},
	} {
		var said bytes.Buffer
		a := &app{stderr: &said}
		a.sayCommits("", "web", &c.made)
		if d := cmp.Diff(c.want, said.String()); d != "" {
			t.Error(d)
		}
	}
}
