package repl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// program is a block of code of the reference page, in a file.
func program(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/eval-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```"+language+"\n")
	code, _, found := strings.Cut(rest, "\n```")
	if !found {
		t.Fatalf("the page has no program in %s", language)
	}
	path := filepath.Join(t.TempDir(), "evaluator."+language)
	if err := os.WriteFile(path, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProgramsOfThePage(t *testing.T) {
	for _, x := range []struct {
		language, command           string
		set, get, fails, slow, want string
		refuses                     string
	}{
		{"perl", "perl", "$x = 20; undef", "print 'out'; $x * 2 + 2", "die 'no'", "sleep 60", "42", "share its files"},
		{"js", "node", "x = 20; undefined", "console.log('out'); x * 2 + 2", "throw new TypeError('no')", "for (;;) {}", "42", "threads"},
	} {
		t.Run(x.language, func(t *testing.T) {
			p := startProgram(t, nil, nil, nil, testenv.Program(t, x.command), program(t, x.language))
			if p.ready.Fork || !strings.Contains(p.ready.Reason, x.refuses) {
				t.Errorf("it says %+v", p.ready)
			}
			p.run(x.set)
			if v := p.value(x.get); v.Repr != x.want || string(v.JSON) != x.want {
				t.Errorf("it evaluates to %+v", v)
			}
			p.out.until(t, "out")
			if ev := p.eval(x.fails); ev.OK || ev.Error == nil || !strings.Contains(ev.Error.Message, "no") {
				t.Errorf("what fails is %s", show(ev))
			}
			p.interrupt() // nothing is evaluated
			time.Sleep(50 * time.Millisecond)
			ctx, cancel := context.WithTimeout(p.ctx, 200*time.Millisecond)
			defer cancel()
			if ev, err := p.Eval(ctx, x.slow, 1000, p.interrupt); err != nil || ev.Cause != cell.CauseTimeout {
				t.Errorf("what takes too long: %v %s", err, show(ev))
			}
			if v := p.value(x.get); v.Repr != x.want {
				t.Errorf("after that: %+v", v)
			}
			if _, err := p.Check(p.ctx); cell.KindOf(err) != cell.Unsupported {
				t.Errorf("a question that it does not know: %v", err)
			}
			if v := p.value(x.get); v.Repr != x.want {
				t.Errorf("in the end: %+v", v)
			}
		})
	}
}
