package agenttest

import (
	"bytes"
	"encoding/json"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// transcript reads one that was written by hand, as the program writes them, and compares it with the calls beside it.
// PANDO_UPDATE=1 writes these.
func transcript(t *testing.T, r agent.Reporter) {
	about := r.Transcript()
	if about.Dir != path.Clean(about.Dir) || path.IsAbs(about.Dir) || strings.HasPrefix(about.Dir, "..") || about.Has("a/settings.json") {
		t.Errorf("%q is no folder of a home, or all of it are transcripts", about.Dir)
	}
	const golden = "testdata/calls.json"
	text, err := os.ReadFile("testdata/transcript.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	read := func(text string) *agent.Calls {
		c := agent.NewCalls(time.Time{}, time.Time{})
		if n, problem, err := c.Read(strings.NewReader(text), 1<<20, about.Line); err != nil || problem != "" || n != int64(len(text)) {
			t.Fatalf("%d bytes, problem %q, %v", n, problem, err)
		}
		return c
	}
	c := read(string(text))
	got, err := json.MarshalIndent(c.List, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the calls are not those of %s (%v):\n%s", golden, err, got)
	}
	var shell, edit bool
	for _, call := range c.List {
		shell = shell || call.Kind == agent.ShellCall && call.What == "make test" && call.Fails && call.Exit != nil && *call.Exit == 2
		edit = edit || call.Kind == agent.EditCall && call.Ended && !call.Fails && len(call.Files) > 0 && strings.HasSuffix(call.Files[0], "greet.sh")
	}
	if !shell || !edit {
		t.Error("a shell that failed, or an edit that did not, is not among them")
	}
	// A conversation that is continued has what was before; the time tells them apart.
	later := agent.NewCalls(c.List[len(c.List)-1].Time, time.Time{})
	if later.Read(bytes.NewReader(text), 1<<20, about.Line); len(later.List) != 1 {
		t.Errorf("from the last one on there are %d calls", len(later.List))
	}
	// A line costs little more than it is long, whatever it has.
	for line := range strings.Lines(string(text)) {
		for _, piece := range []string{"{},", `{"a":`, "[", `{"type":"tool_use"},`, `{"id":"x","name":"y"},`} {
			i := strings.IndexByte(line, '[')
			if i < 0 {
				continue
			}
			hostile := line[:i+1] + strings.Repeat(piece, 1<<20/len(piece)) + "\n"
			boundtest.Allocates(t, len(hostile), func() {
				agent.NewCalls(time.Time{}, time.Time{}).Read(strings.NewReader(hostile), 4<<20, about.Line)
			})
		}
	}
}

// FuzzTranscript reads lines of a transcript that may have anything.
func FuzzTranscript(f *testing.F, r agent.Reporter) {
	text, err := os.ReadFile("testdata/transcript.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) { Bounded(t, line, r.Transcript().Line) })
}

// Bounded reads a line, of which all that is kept is text of a bounded length.
func Bounded(t *testing.T, text []byte, line func([]byte, *agent.Calls) error) {
	c := agent.NewCalls(time.Time{}, time.Time{})
	c.Read(bytes.NewReader(text), 1<<20, line)
	for _, call := range c.List {
		for _, s := range append([]string{call.ID, call.Tool, call.What}, call.Files...) {
			if len(s) > 1024 || strings.ToValidUTF8(s, "") != s {
				t.Errorf("kept is %q", s)
			}
		}
	}
}
