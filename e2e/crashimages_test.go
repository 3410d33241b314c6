package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/api"
)

// TestF19KillWhileAnImageIsMade: a daemon that ends while an image is made of a Dockerfile leaves nothing of the step that
// it was at, neither files nor a cell; what is kept is complete, and the next run goes on from there.
func TestF19KillWhileAnImageIsMade(t *testing.T) {
	t.Parallel()
	bin := faultsBinary(t)
	c := newCrash(t, bin, "daemon")
	busybox, err := exec.LookPath("busybox")
	c.must(err)
	program, err := os.ReadFile(busybox)
	c.must(err)
	c.must(os.WriteFile(filepath.Join(c.src, "sh"), program, 0o755))
	const cat = "for i in a b c; do busybox cat /made/$i; done; busybox ls /made /app"
	c.each(func(n int) []string {
		c.write("Dockerfile", fmt.Sprintf("FROM scratch\nCOPY sh /bin/sh\nCOPY sh /bin/busybox\nWORKDIR /app\nRUN busybox mkdir /made && for i in a b c; do echo %d >/made/$i; done\nCOPY text .\nENV N=%d\n", n, n))
		c.write("text", fmt.Sprint(n))
		return []string{"run", "--image", "dockerfile:.", "--", "sh", "-c", "true"}
	}, func(n int, when string, _ bool) {
		for _, r := range c.runs() { // a daemon goes on with what the one before had begun
			if r.Phase != "ended" {
				t.Errorf("%s: run %s is %s", when, r.ID, r.Phase)
			}
		}
		for _, cl := range c.cells() {
			if cl.Image != "" && cl.Source == "" && cl.State != "removed" {
				t.Errorf("%s: cell %s is %s", when, cl.ID, cl.State)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(c.work, ".pando", "cache", "images", "*.partial")); len(left) > 0 {
			t.Errorf("%s: left are %v", when, left)
		}
		var kept []api.Image
		c.must(json.Unmarshal([]byte(c.pando("image", "ls", "--all", "--json")), &kept))
		for _, i := range kept {
			if i.Made == nil || i.Files == 0 {
				t.Errorf("%s: an image is not complete: %+v", when, i)
			}
		}
		want := fmt.Sprintf("%d\n%d\n%d\n/app:\ntext\n\n/made:\na\nb\nc\n", n, n, n)
		if got := c.pando("run", "--image", "dockerfile:.", "--", "sh", "-c", cat); got != want {
			t.Errorf("%s: the image has %q", when, got)
		}
		if v := c.verify(); !v.OK {
			t.Errorf("%s: receipts: %+v", when, v.Problems)
		}
	})
}
