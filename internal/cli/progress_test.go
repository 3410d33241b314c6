package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
)

// Progress is drawn when the command has taken noticeably long: what passed before the first step
// was told (a daemon that starts, a repository that is looked at) was waited for, too.
func TestProgressCountsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := &app{stderr: &out, isTTY: true, width: 80, began: time.Now()}
		p := &progress{a: a}
		step := api.Progress{Step: "importing", Done: 64, Unit: "files"}
		time.Sleep(noticeable - 10*time.Millisecond)
		p.show(step)
		if synctest.Wait(); out.Len() > 0 {
			t.Errorf("too early: %q", out.String())
		}
		time.Sleep(10 * time.Millisecond)
		if synctest.Wait(); !strings.Contains(out.String(), "importing 64 files") {
			t.Errorf("%v after the start the terminal shows %q", noticeable, out.String())
		}
		out.Reset()
		p.show(api.Progress{Step: "running"}) // which may say nothing for hours
		if synctest.Wait(); out.String() != "\r\x1b[K" {
			t.Errorf("when the command runs, the line is not erased: %q", out.String())
		}
	})
}
