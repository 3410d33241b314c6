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
		shown := func() string {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return out.String()
		}
		step := api.Progress{Step: "importing", Done: 64, Unit: "files"}
		time.Sleep(noticeable - 10*time.Millisecond)
		p.show(step)
		if s := shown(); s != "" {
			t.Errorf("too early: %q", s)
		}
		time.Sleep(10 * time.Millisecond)
		if s := shown(); !strings.Contains(s, "importing 64 files") {
			t.Errorf("%v after the start the terminal shows %q", noticeable, s)
		}
		out.Reset()
		p.show(api.Progress{Step: "running"}) // which may say nothing for hours
		if s := shown(); s != "\r\x1b[K" {
			t.Errorf("when the command runs, the line is not erased: %q", s)
		}
	})
}
