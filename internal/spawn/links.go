package spawn

import (
	"fmt"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// comeApart says what becomes of files in where that have links which are not joined.
func comeApart(groups []workspace.LinkGroup, where string) []string {
	if len(groups) == 0 {
		return nil
	}
	files, first := "1 file", groups[0].Names
	for _, g := range groups[1:] {
		if g.Names[0] < first[0] {
			first = g.Names
		}
	}
	if len(groups) > 1 {
		files = fmt.Sprintf("%d files", len(groups))
	}
	return []string{fmt.Sprintf("%s of the workspace with several names (%s and %s): what %s writes to one may not reach the others", files, cell.Clip(first[0]), cell.Clip(first[1]), where)}
}

// Unjoined is comeApart of all links of a tree, in layers of p in which none is joined.
func Unjoined(p workspace.Provider, t *workspace.Tree, where string) []string {
	if !p.Mounts() || len(t.Links) == 0 {
		return nil
	}
	_, rest, err := t.Joinable(0, 0)
	if err != nil {
		return []string{fmt.Sprintf("which hard links of the workspace come apart can't be told: %v", err)}
	}
	return comeApart(rest, where)
}
