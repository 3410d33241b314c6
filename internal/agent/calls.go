package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/bound"
)

// A Reporter is the adapter of a program that writes transcripts of its conversations into its home. What is there
// is the agent's own word: it is read after a run, as bytes of the cell, and kept as reported.
type Reporter interface {
	Transcript() Transcript
}

// Transcript says where transcripts lie and how a line of one is read. All are JSON lines.
type Transcript struct {
	Dir  string                 // the folder of the home with all of them, with slashes
	Has  func(path string) bool // whether a file is one, by its path below Dir
	Line func(line []byte, c *Calls) error
}

// The kinds of tools, as far as a kind follows from what a call says.
const (
	ShellCall = "shell" // runs a command, which can do anything
	EditCall  = "edit"  // writes the files that it names, and nothing else
	ReadCall  = "read"  // writes nothing
)

// Call is a call of a tool, as an agent reports it.
type Call struct {
	ID    string // in its transcript; "" if it has none
	Time  time.Time
	Tool  string
	Kind  string   // ShellCall, EditCall, ReadCall; "" for others
	What  string   // the command, the file, or the beginning of what the tool was given
	Files []string // of an edit: what it wrote, as the agent names it
	Exit  *int     // of a shell
	Ended bool     // there is a result
	Fails bool     // which says that it failed
}

// Bounds of what is kept of calls.
const (
	maxCalls   = 2000
	maxWhat    = 400  // bytes
	maxToken   = 200  // bytes of a tool's name or an id
	maxPath    = 1024 // bytes
	maxFiles   = 20   // of a call
	maxLine    = 4 << 20
	maxInLine  = 100_000 // JSON values of a line
	readBuffer = 64 << 10
)

// Calls takes the calls of transcripts, in the order in which they are read.
type Calls struct {
	List []Call
	More int // further calls
	// Hide takes secrets out of text before it is cut: a part of a secret has no shape that tells it. nil: nothing is taken out.
	Hide func(string) string

	since, until time.Time // calls of other times belong to other runs; zero: no bound
	at           map[string]int
}

// NewCalls returns a list of the calls of a time.
func NewCalls(since, until time.Time) *Calls {
	return &Calls{since: since, until: until, at: map[string]int{}}
}

// Begin adds a call. One with an id that is known is the same, told again.
func (c *Calls) Begin(call Call) {
	if call.ID = clip(call.ID, maxToken); call.ID != "" {
		if _, known := c.at[call.ID]; known {
			return
		}
	}
	if !call.Time.IsZero() && (call.Time.Before(c.since) || !c.until.IsZero() && call.Time.After(c.until)) {
		return
	}
	if len(c.List) == maxCalls {
		c.More++
		return
	}
	hide := c.Hide
	if hide == nil {
		hide = strings.Clone
	}
	call.Tool, call.What = clip(hide(call.Tool), maxToken), clip(hide(call.What), maxWhat)
	if len(call.Files) > maxFiles {
		call.Files = call.Files[:maxFiles]
	}
	for i, f := range call.Files {
		call.Files[i] = clip(hide(f), maxPath)
	}
	if call.ID != "" {
		c.at[call.ID] = len(c.List)
	}
	c.List = append(c.List, call)
}

// End notes the result of a call that has begun.
func (c *Calls) End(id string, exit *int, fails bool) {
	if i, known := c.at[clip(id, maxToken)]; known && id != "" {
		c.List[i].Ended, c.List[i].Exit, c.List[i].Fails = true, exit, fails
	}
}

// clip bounds text, and makes it a string of its own.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most-len("…")] + "…"
	}
	return strings.Clone(strings.ToValidUTF8(s, "?"))
}

// errUnread says that a line of a transcript is none.
var errUnread = errors.New("no transcript")

// Read reads at most so many bytes of a transcript. problem says what of it was not read; "": nothing.
func (c *Calls) Read(r io.Reader, most int64, line func([]byte, *Calls) error) (n int64, problem string, err error) {
	in := bufio.NewReaderSize(io.LimitReader(r, most), readBuffer)
	var buf []byte
	bad, long := 0, false
	end := func() {
		if long || len(buf) > 0 && c.line(buf, line) != nil {
			bad++
		}
		buf, long = buf[:0], false
	}
	for {
		part, err := in.ReadSlice('\n')
		n += int64(len(part))
		if long = long || len(buf)+len(part) > maxLine; !long {
			buf = append(buf, part...)
		}
		switch {
		case err == nil:
			end()
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			end()
			switch {
			case n == most:
				problem = "it is longer than what is read of one"
			case bad > 0:
				problem = count(bad) + " can't be read"
			}
			return n, problem, nil
		default:
			return n, "", err
		}
	}
}

func (c *Calls) line(b []byte, line func([]byte, *Calls) error) error {
	if strings.TrimSpace(string(b)) == "" {
		return nil
	}
	if err := bound.Values(b, "transcript", maxInLine); err != nil {
		return err
	}
	if !json.Valid(b) || b[0] != '{' {
		return errUnread
	}
	return line(b, c)
}

func count(lines int) string {
	if lines == 1 {
		return "1 line of it"
	}
	return strconv.Itoa(lines) + " lines of it"
}

// Brief is what a tool was given, of which Begin keeps the beginning.
func Brief(input json.RawMessage) string { return string(input) }

// Generic reads a line of a log that any program may write: see docs/howto/agents.md.
func Generic(b []byte, c *Calls) error {
	var l struct {
		Time   time.Time
		ID     string
		Tool   string
		Kind   string
		Input  json.RawMessage
		Output json.RawMessage
		Exit   *int
		Failed bool
		Files  []string
	}
	if err := json.Unmarshal(b, &l); err != nil || l.Tool == "" {
		return errUnread
	}
	call := Call{Time: l.Time, Tool: l.Tool, Kind: l.Kind, What: Brief(l.Input), Files: l.Files, Exit: l.Exit, Fails: l.Failed || l.Exit != nil && *l.Exit != 0}
	call.Ended = l.Exit != nil || l.Failed || len(l.Output) > 0
	var in struct{ Command string }
	if json.Unmarshal(l.Input, &in) == nil && in.Command != "" {
		call.What = in.Command
	}
	switch {
	case call.Kind == ShellCall || call.Kind == EditCall || call.Kind == ReadCall:
	case len(call.Files) > 0:
		call.Kind = EditCall
	case in.Command != "":
		call.Kind = ShellCall
	default:
		call.Kind = ""
	}
	if call.Kind == EditCall && len(call.Files) > 0 && (len(l.Input) == 0 || call.What == Brief(l.Input)) {
		call.What = strings.Join(call.Files, ", ")
	}
	c.Begin(call)
	return nil
}
