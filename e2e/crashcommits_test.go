package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestF19KillWhileCommitsCome: a daemon that ends while commits come into a source, or are taken back, leaves it with all
// of them or none, with the files and the index that belong to that, and without a lock.
func TestF19KillWhileCommitsCome(t *testing.T) {
	t.Parallel()
	bin := faultsBinary(t)
	for _, act := range []string{"accept", "revert"} {
		t.Run(act, func(t *testing.T) {
			t.Parallel()
			c := newCrash(t, bin, "daemon")
			c.write("f", "old\n")
			c.sh("git init -q -b main . && git config user.name U && git config user.email u@example.org && git add f && git commit -qm old && echo mine >g && git add g && git commit -qm mine && git branch mine && git reset -q --hard HEAD~1")
			name := ""
			c.each(func(n int) []string {
				name = fmt.Sprintf("x%d", n)
				c.sh("git reset -q --hard mine~1")
				c.pando("run", "--cell", name, "--", "sh", "-c", "echo new >f && git commit -qam new")
				c.sh("git reset -q --hard mine") // copies come on top of it
				do := []string{"accept", name, "--commits"}
				if act == "revert" {
					c.pando(do...)
					do = []string{"revert", name}
				}
				return do
			}, func(_ int, when string, whole bool) {
				c.commitsAre(when, name, map[bool]string{false: "", true: act}[whole])
				if !t.Failed() && !whole {
					c.pando("rm", "--yes", name)
				}
			})
		})
	}
}

// commitsAre checks that a source has the commit of a cell with its file, or neither. done is the act that was not interrupted.
func (c *crash) commitsAre(when, name, done string) {
	c.t.Helper()
	runs := c.runs() // a daemon goes on with what the one before had begun
	log, f, status := strings.TrimSpace(c.sh("git log -1 --format=%s main")), strings.TrimSpace(c.read("f")), c.sh("git status --porcelain")
	there := log == "new"
	if status != "" || (f == "new") != there || !there && log != "mine" {
		c.t.Errorf("%s: main is at %q, f says %q, and git status\n%s", when, log, f, status)
	}
	if done == "accept" && !there || done == "revert" && there {
		c.t.Errorf("%s: main is at %q", when, log)
	}
	c.sh("git fsck --strict --no-dangling")
	for _, pattern := range []string{"*.lock", "refs/heads/*.lock", "pando-*"} {
		if left, _ := filepath.Glob(filepath.Join(c.src, ".git", pattern)); len(left) > 0 {
			c.t.Errorf("%s: left are %v", when, left)
		}
	}
	for _, r := range runs {
		if r.CellName == name && (r.Verdict == "accepted") != there {
			c.t.Errorf("%s: main is at %q, and run %s is %s", when, log, r.ID, r.Verdict)
		}
	}
	if v := c.verify(); !v.OK {
		c.t.Errorf("%s: receipts: %+v", when, v.Problems)
	}
}
