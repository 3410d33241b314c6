package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// serviceAct is an act on a cell with a service, which keeps a word, as the cell does in its file f.
type serviceAct struct {
	name  string
	words string // that both may be at afterwards, in the cell and in its copies; "-": there may be none
	begin func(h *host, c string)
	do    func(c string) []string
}

// theStore is a service that answers with the word it keeps, after it took another one.
const theStore = `db=host busybox nc -ll -p 7000 -e sh -c 'read word; test -z "$word" || echo $word >/workspace/word; cat /workspace/word'`

// bothKeep has both keep a word.
func bothKeep(word string) string {
	return "echo " + word + " | busybox nc -w 30 db 7000 && echo " + word + " >f"
}

var serviceActs = []serviceAct{
	{"run", "- old new", func(h *host, c string) {}, func(c string) []string {
		return []string{"run", "--cell", c, "--service", theStore, "--", "sh", "-c", bothKeep("new")}
	}},
	{"undo", "old new", worksBeside, func(c string) []string { return []string{"undo", c} }},
	{"run that fails", "old new", worksBeside, func(c string) []string {
		return []string{"run", "--cell", c, "--", "sh", "-c", bothKeep("bad") + "; exit 3"}
	}},
	{"run with a check", "new next", worksBeside, func(c string) []string { // which says something else to a copy of the service
		return []string{"run", "--cell", c, "--check", "echo dirty | busybox nc -w 30 db 7000", "--", "sh", "-c", bothKeep("next")}
	}},
	{"discard", "old new", worksBeside, func(c string) []string { return []string{"discard", c, "--yes"} }},
	{"fork", "new", worksBeside, func(c string) []string { return []string{"fork", c, "--name", c + "-f", "-n", "2"} }},
	{"checkpoint", "new", worksBeside, func(c string) []string { return []string{"checkpoint", c, "-m", "here"} }},
}

// worksBeside makes a cell in which both keep "new", and kept "old" before.
func worksBeside(h *host, c string) {
	h.pando("run", "--cell", c, "--service", theStore, "--", "sh", "-c", bothKeep("old"))
	h.pando("run", "--cell", c, "--", "sh", "-c", bothKeep("new"))
}

// What a cell and its services keep stays of one moment when the daemon or a keeper is killed at any step of an act on
// them, and nothing of them is left over.
func TestF19KillWithServices(t *testing.T) {
	t.Parallel()
	bin := faultsBinary(t)
	for _, role := range []string{"daemon", "keeper"} {
		for _, a := range serviceActs {
			if strings.HasPrefix(a.name, "run") && os.Getenv("E2E_SOAK") == "" { // their clients wait some seconds for each daemon that is gone
				continue
			}
			t.Run(role+"/"+strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				c := newCrash(t, bin, role)
				c.write("f", "old\n")
				if a.name == "run that fails" {
					c.exit = 3
				}
				c.each(func(n int) []string {
					name := fmt.Sprintf("x%d", n)
					a.begin(c.host, name)
					return a.do(name)
				}, func(n int, when string, whole bool) { c.beside(a, fmt.Sprintf("x%d", n), when) })
			})
		}
	}
}

// beside checks that the cells of an act, and what their services keep, are of one moment, and removes them.
func (c *crash) beside(a serviceAct, name, when string) {
	h, may := c.host, strings.Fields(a.words)
	if a.name == "run that fails" && c.role == "keeper" { // how it ended may not be known: then a person decides
		may = append(may, "bad")
	}
	if runs, ended := h.ended(); !ended {
		h.t.Errorf("%s: a run never ends: %+v", when, runs[0])
		return
	}
	found := false
	for _, cl := range h.cells() {
		if cl.Serves != nil {
			continue
		}
		if cl.Name == name || strings.HasPrefix(cl.Name, name+"-f") {
			found = found || cl.Name == name
			o := h.try("exec", cl.ID, "--", "sh", "-c", "cat f; echo | busybox nc -w 30 db 7000")
			words := strings.Fields(o.out)
			complete := len(words) == 2 && words[0] == words[1] || c.role == "keeper" && o.code == 0 // what was killed in its middle is
			if a.name == "run" && len(words) > 0 && words[0] == "old" {                              // its command did not come so far
				complete = true
			}
			if o.code != 0 && a.name != "run" || !complete || len(words) > 0 && !slices.Contains(may, words[0]) {
				h.t.Errorf("%s: cell %s and its service keep %q: %d, %s", when, cl.Name, words, o.code, o.stderr)
			}
		}
		if o := h.try("rm", "--yes", cl.ID); o.code != 0 {
			h.t.Errorf("%s: cell %s can't be removed: %s", when, cl.Name, o.stderr)
		}
	}
	if !found && !slices.Contains(may, "-") {
		h.t.Errorf("%s: the cell is gone", when)
	}
	if v := h.verify(); !v.OK {
		h.t.Errorf("%s: receipts: %+v", when, v.Problems)
	}
	h.pando("daemon", "stop") // the layer that a service left, as recorded by a daemon that went on with the act, goes when the next begins
	h.cells()
	if left := c.files(); len(left) > 0 {
		h.t.Errorf("%s: files are left over: %s; cells %v", when, strings.Join(left, " "), h.cells())
	}
}
