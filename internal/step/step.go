// Package step keeps what was done in cells beside their runs: the commands and evaluations, with the checkpoint that
// each began at. Runs and turns of agents have records of their own.
//
// The steps of a cell are a file of JSON lines in its folder, which goes with the cell. A command has a line
// when it starts and one when it has ended; an evaluation has one. They are written as they happen and not synced: what a power
// loss takes of them is no evidence, which receipts alone are.
package step

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The kinds of steps that are kept here.
const (
	Command    = "exec"
	Evaluation = "eval"
)

// NotStarted is the cause of the end of a command that never ran.
const NotStarted = "not started"

const (
	file     = "steps.jsonl"
	textMost = 400     // bytes of a step's text
	maxLast  = 4096    // cells of which the last step is known, before those are forgotten in which nothing was done for a minute
	fileMost = 1 << 20 // bytes of a file, which then keeps its newest half
)

// Step is what was done. Its number is that of the checkpoint that it began at.
type Step struct {
	ID     string `json:"id"`
	Kind   string `json:"kind,omitempty"`
	Number int    `json:"number,omitempty"`
	// Without is why the cell may not have been at that checkpoint then; "": it was.
	Without string    `json:"without,omitempty"`
	Text    string    `json:"text,omitempty"` // the command or the code, without values of credentials
	Began   time.Time `json:"began,omitzero"`
	Ended   time.Time `json:"ended,omitzero"` // zero: it goes on, or what became of it is not known
	Exit    int       `json:"exit,omitempty"`
	Signal  string    `json:"signal,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	// Head is the checkpoint that the cell was at when it ended; it is not kept.
	Head cell.CheckpointID `json:"-"`
}

// Log has the steps of all cells. It is safe for concurrent use.
type Log struct {
	folder func(cell.ID) string // of a cell
	mu     sync.Mutex
	last   map[cell.ID]moment
}

// moment is when the last step of a cell ended, and what it was.
type moment struct {
	at   time.Time
	last Step
}

// New returns a log that writes into the folders of cells.
func New(folder func(cell.ID) string) *Log {
	return &Log{folder: folder, last: map[cell.ID]moment{}}
}

// Shares is the evaluation with which one that begins now shares its checkpoint: the last step in the cell, if that is one,
// ended less than d ago, and the cell is at the same checkpoint still.
func (l *Log) Shares(id cell.ID, head cell.CheckpointID, d time.Duration) (s Step, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.last[id]
	return m.last, m.last.Kind == Evaluation && m.last.Head == head && time.Since(m.at) < d
}

// Wrote notes that something else wrote into a cell: the next evaluation shares with none. An empty file of steps keeps that
// something was done in the cell; a cell without a folder has none.
func (l *Log) Wrote(id cell.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.last, id)
	if f, err := os.OpenFile(filepath.Join(l.folder(id), file), os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
		f.Close()
	}
}

// Any reports whether a step of a cell is kept, or something else wrote into it.
func (l *Log) Any(id cell.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := os.Lstat(filepath.Join(l.folder(id), file))
	return err == nil
}

// touch notes the last step of a cell. The caller has l.mu.
func (l *Log) touch(id cell.ID, s Step) {
	l.last[id] = moment{time.Now(), s}
	if len(l.last) > maxLast {
		for id, m := range l.last {
			if time.Since(m.at) > time.Minute {
				delete(l.last, id)
			}
		}
	}
}

// Add writes a step, or what became of one: its id, and what is known of its end.
func (l *Log) Add(id cell.ID, s Step) error {
	if len(s.Text) > textMost {
		s.Text = string(bytes.ToValidUTF8([]byte(s.Text[:textMost]), nil)) + "…"
	}
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.touch(id, s)
	path := filepath.Join(l.folder(id), file)
	if st, err := os.Stat(path); err == nil && st.Size() > fileMost {
		if err := halve(path); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// halve leaves the newest half of a file.
func halve(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b = b[len(b)/2:]
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[i+1:]
	}
	if err := os.WriteFile(path+".next", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}

// NewID returns the id of an evaluation.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return "v-" + hex.EncodeToString(b[:])
}

// Failed reports whether the result of an evaluation is an exception.
func Failed(result json.RawMessage) bool {
	var r cell.Evaluated
	return json.Unmarshal(result, &r) == nil && !r.OK
}

// List returns the steps of a cell that are kept, oldest first. What is no line of this form is passed over: the last one can
// be there in part.
func (l *Log) List(id cell.ID) ([]Step, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.Open(filepath.Join(l.folder(id), file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []Step
	at := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		var s Step
		if json.Unmarshal(lines.Bytes(), &s) != nil {
			continue
		}
		switch i, known := at[s.ID]; {
		case s.Kind != "":
			at[s.ID] = len(list)
			list = append(list, s)
		case known:
			was := &list[i]
			was.Ended, was.Exit, was.Signal, was.Cause = s.Ended, s.Exit, s.Signal, s.Cause
		}
	}
	return list, lines.Err()
}
