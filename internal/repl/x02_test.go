package repl

import (
	"context"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// A program that says much in few bytes is not believed, and what it says expands to
// little.
func TestX02AnswersThatExpand(t *testing.T) {
	eval := func(ctx context.Context, c *Conn) string {
		ev, _ := c.Eval(ctx, Evaluation{Code: "1", Interrupt: func() {}})
		return ev.Cause
	}
	check := func(ctx context.Context, c *Conn) string {
		if _, err := c.Check(ctx); err != nil {
			return err.Error()
		}
		return ""
	}
	const n = 1 << 20
	for name, x := range map[string]struct {
		says string
		ask  func(ctx context.Context, c *Conn) string
		want string
	}{
		"bundles":      {`{"id":1,"evaluated":{"ok":true,"display":[` + strings.Repeat("{},", n) + "{}]}}\n", eval, cell.CauseEnded},
		"one bundle":   {`{"id":1,"evaluated":{"ok":true,"display":[{` + strings.Repeat(`"":"",`, n/2) + "\"\":\"\"}]}}\n", eval, cell.CauseEnded},
		"calls":        {`{"id":1,"evaluated":{"ok":true,"missing_calls":[` + strings.Repeat(`"",`, n) + "\"\"]}}\n", eval, ""},
		"a long value": {`{"id":1,"evaluated":{"ok":true,"value":{"type":"list","json":[` + strings.Repeat("1,", n) + "1]}}}\n", eval, ""},
		"threads":      {`{"id":1,"threads":[` + strings.Repeat(`"",`, n) + "\"\"]}\n", check, "values"},
	} {
		c, them := liar(t)
		go func() {
			them.Read(make([]byte, 4096))
			them.Write([]byte(x.says))
			them.CloseWrite()
		}()
		boundtest.AllocatesBeside(t, 0, 24<<20, func() { // buffers that grow to the longest line, and the line's value
			if got := x.ask(soon(t), c); x.want == "" && got != "" || !strings.Contains(got, x.want) {
				t.Errorf("%s: %q", name, got)
			}
		})
	}
}
