package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestF19KillWhileCachesAreKept: a daemon that ends while what a cell wrote to a cache is kept leaves the cache with all
// of that or nothing, and with what it had before.
func TestF19KillWhileCachesAreKept(t *testing.T) {
	t.Parallel()
	bin := faultsBinary(t)
	const flag = "--cache=~/kept"
	for _, act := range []string{"run", "accept"} {
		t.Run(act, func(t *testing.T) {
			t.Parallel()
			c := newCrash(t, bin, "daemon")
			c.write("f", "old\n")
			var whole []string // what was kept without an interruption
			c.each(func(n int) []string {
				write := fmt.Sprintf("mkdir -p ~/kept/d; rm -f ~/kept/d/last; for i in 1 2 3; do echo %d >~/kept/d/%d-$i; done; echo %d >~/kept/d/last", n, n, n)
				if act == "run" {
					return []string{"run", flag, "--", "sh", "-c", write}
				}
				name := fmt.Sprintf("x%d", n)
				c.pando("run", "--cell", name, flag, "--", "sh", "-c", write+"; echo "+name+" >f")
				return []string{"accept", name}
			}, func(n int, when string, done bool) {
				if done {
					whole = append(whole, fmt.Sprint(n))
				}
				c.cacheIs(when, flag, whole)
				if t.Failed() || done {
					return
				}
				c.pando("run", flag, "--", "sh", "-c", fmt.Sprintf("mkdir -p ~/kept/d; for i in 1 2 3; do echo k%d >~/kept/d/k%d-$i; done", n, n))
				whole = append(whole, fmt.Sprintf("k%d", n))
			})
		})
	}
}

// cacheIs checks that a cache has files by threes, each of which says its name, and those of whole.
func (c *crash) cacheIs(when, flag string, whole []string) {
	c.t.Helper()
	runs := c.runs() // a daemon goes on with what the one before had begun
	got := map[string]int{}
	out := c.pando("run", flag, "--", "sh", "-c", "cd ~/kept && mkdir -p d && cd d && for f in *-?; do test -e $f && echo $f $(cat $f); done; true")
	for line := range strings.Lines(out) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		of, _, _ := strings.Cut(name, "-")
		if got[of]++; text != of {
			c.t.Errorf("%s: %s says %q", when, name, text)
		}
	}
	for of, n := range got {
		if n != 3 {
			c.t.Errorf("%s: there are %d files of %s", when, n, of)
		}
	}
	for _, of := range whole {
		if got[of] != 3 {
			c.t.Errorf("%s: what %s wrote is gone", when, of)
		}
	}
	for _, r := range runs {
		if r.Phase != "ended" {
			c.t.Errorf("%s: run %s is %s", when, r.ID, r.Phase)
		}
	}
	c.pando("cache", "verify")
	if v := c.verify(); !v.OK {
		c.t.Errorf("%s: receipts: %+v", when, v.Problems)
	}
}
