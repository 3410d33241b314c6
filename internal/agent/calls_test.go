package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func readAll(text string) (*Calls, string) {
	c := NewCalls(time.Time{}, time.Time{})
	_, problem, _ := c.Read(strings.NewReader(text), 64<<20, Generic)
	return c, problem
}

func TestGeneric(t *testing.T) {
	one := 1
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	for text, want := range map[string]Call{
		`{"time":"2026-11-30T10:00:00Z","tool":"sh","input":{"command":"make"},"exit":1}`: {Time: at, Tool: "sh", Kind: ShellCall, What: "make", Exit: &one, Ended: true, Fails: true},
		`{"tool":"write","files":["a","b"],"output":"ok"}`:                                {Tool: "write", Kind: EditCall, What: "a, b", Files: []string{"a", "b"}, Ended: true},
		`{"tool":"look","kind":"read","input":{"q":1}}`:                                   {Tool: "look", Kind: ReadCall, What: `{"q":1}`},
		`{"tool":"x","kind":"made up","failed":true}`:                                     {Tool: "x", Ended: true, Fails: true},
	} {
		c, problem := readAll(text + "\n")
		if problem != "" || len(c.List) != 1 || cmp.Diff(c.List[0], want) != "" {
			t.Errorf("%s: problem %q, %s", text, problem, cmp.Diff(c.List, []Call{want}))
		}
	}
}

// A log can have anything: what is read and kept of it is bounded, and what was not is said.
func TestCallsAreBounded(t *testing.T) {
	line := `{"tool":"x","input":"` + strings.Repeat("y", 1000) + "\"}\n"
	c, problem := readAll(strings.Repeat(line, maxCalls+7))
	if len(c.List) != maxCalls || c.More != 7 || problem != "" || len(c.List[0].What) > maxWhat {
		t.Errorf("%d calls, %d more, %q", len(c.List), c.More, problem)
	}
	for text, want := range map[string]string{
		"no JSON\n" + line:    "1 line of it can't be read",
		"[]\n7\n{}\n" + line:  "3 lines of it can't be read",
		line + `{"tool":"cut`: "1 line of it can't be read",
		`{"tool":"` + strings.Repeat("x", maxLine) + "\"}\n" + line:                "1 line of it can't be read",
		`{"tool":"x","input":[` + strings.Repeat("1,", maxInLine) + "1]}\n" + line: "1 line of it can't be read",
	} {
		if c, problem := readAll(text); len(c.List) != 1 || problem != want {
			t.Errorf("%.30q: %d calls, %q", text, len(c.List), problem)
		}
	}
	c = NewCalls(time.Time{}, time.Time{})
	if n, problem, _ := c.Read(strings.NewReader(strings.Repeat(line, 10)), 5*int64(len(line)), Generic); n != 5*int64(len(line)) || len(c.List) != 5 || problem == "" {
		t.Errorf("%d bytes, %d calls, %q", n, len(c.List), problem)
	}
}

func TestCallsOfOtherTimes(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	c := NewCalls(at, at.Add(time.Minute))
	for _, d := range []time.Duration{-time.Second, 0, time.Minute, 2 * time.Minute} {
		c.Begin(Call{Time: at.Add(d), ID: d.String(), Tool: "x"})
	}
	c.Begin(Call{Time: at, ID: "0s", Tool: "told again"})
	c.End("2m0s", nil, true)
	c.End("0s", nil, true)
	if len(c.List) != 2 || !c.List[0].Fails || c.List[0].Tool != "x" || c.List[1].Ended {
		t.Errorf("%+v", c.List)
	}
}

func FuzzGeneric(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-30T10:00:00Z","tool":"sh","input":{"command":"make"},"exit":1,"files":["a"]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		c, _ := readAll(string(line))
		for _, call := range c.List {
			if len(call.Tool)+len(call.What) > maxToken+maxWhat || len(call.Files) > maxFiles {
				t.Errorf("%+v", call)
			}
		}
	})
}
