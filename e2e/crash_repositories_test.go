package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is written to several repositories is in all of them or in none when the daemon is killed at any step of it, and so is what
// their cell has of them.
func TestF19KillWithRepositories(t *testing.T) {
	t.Parallel()
	bin := faultsBinary(t)
	write := func(text string) []string {
		return []string{"--", "sh", "-c", "echo " + text + " >f; echo " + text + " >../lib/f"}
	}
	for _, a := range []struct {
		name string
		// source and cell are what the source's files, and the cell's, may be afterwards; "-" is no cell.
		source, cell string
		begin, do    func(h *host, c string) []string
	}{
		{"run", "old", "- old new", nil, func(h *host, c string) []string {
			return append([]string{"run", "--cell", c, "--with", "../lib"}, write("new")...)
		}},
		{"run that is applied", "old new", "- old new", nil, func(h *host, c string) []string {
			return append([]string{"run", "--cell", c, "--with", "../lib", "--on-success", "apply"}, write("new")...)
		}},
		{"accept", "old new", "new", func(h *host, c string) []string { return nil }, func(h *host, c string) []string { return []string{"accept", c, "--apply"} }},
		{"revert", "old new", "new", func(h *host, c string) []string { return []string{"accept", c, "--apply"} }, func(h *host, c string) []string { return []string{"revert", c} }},
		{"undo", "old new", "old new", func(h *host, c string) []string { return []string{"accept", c, "--apply"} }, func(h *host, c string) []string { return []string{"undo", c} }},
	} {
		if strings.HasPrefix(a.name, "run") && os.Getenv("E2E_SOAK") == "" { // their clients wait some seconds for each daemon that is gone
			continue
		}
		t.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			c := newCrash(t, bin, "daemon")
			lib := filepath.Join(filepath.Dir(c.src), "lib")
			c.must(os.MkdirAll(lib, 0o755))
			c.each(func(n int) []string {
				name := fmt.Sprintf("x%d", n)
				c.write("f", "old\n")
				c.writeAt(filepath.Join(lib, "f"), "old\n")
				if a.begin != nil {
					c.pando(append([]string{"run", "--cell", name, "--with", "../lib"}, write("new")...)...)
					if more := a.begin(c.host, name); more != nil {
						c.pando(more...)
					}
				}
				return a.do(c.host, name)
			}, func(n int, when string, whole bool) {
				name := fmt.Sprintf("x%d", n)
				if runs, ended := c.ended(); !ended {
					t.Errorf("%s: a run never ends: %+v", when, runs[0])
				}
				here, there := strings.TrimSpace(c.read("f")), strings.TrimSpace(c.readAt(filepath.Join(lib, "f")))
				if here != there || !strings.Contains(" "+a.source+" ", " "+here+" ") {
					t.Errorf("%s: the sources have %q and %q", when, here, there)
				}
				for _, dir := range []string{c.src, lib, filepath.Dir(lib)} {
					if left, _ := filepath.Glob(filepath.Join(dir, ".pando-apply-*")); len(left) > 0 {
						t.Errorf("%s: left behind: %q", when, left)
					}
				}
				found := "-"
				for _, cl := range c.cells() {
					if cl.Name == name {
						words := strings.Fields(c.inCell(cl.ID, "cat f ../lib/f"))
						if found = strings.Join(words, " "); len(words) == 2 && words[0] == words[1] {
							found = words[0]
						}
					}
					c.pando("rm", "--yes", cl.ID)
				}
				if !strings.Contains(" "+a.cell+" ", " "+found+" ") {
					t.Errorf("%s: the cell has %q", when, found)
				}
				if v := c.verify(); !v.OK {
					t.Errorf("%s: receipts: %+v", when, v.Problems)
				}
			})
		})
	}
}
