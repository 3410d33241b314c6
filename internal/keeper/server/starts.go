package server

import (
	"encoding/json"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/receipt"
)

// How a fact about a process is known.
const (
	Observed = "observed" // the cell's kernel reported what happened
	Asked    = "asked"    // what the process asked its kernel for, which another thread of it could change afterwards
	NotSeen  = "not seen" // the kernel did not report it
)

// Bounds of what is recorded of processes.
const (
	maxWord  = 1 << 10 // bytes of a word, or of a path
	maxWords = 4 << 10 // bytes of all words of a command
	maxCount = 256     // words of a command

	startsRoom = 16 << 20 // bytes of events about processes that a run may write at once
	startsRate = 8 << 10  // bytes a second that are added to them
	lineCost   = 200      // bytes of a line besides its fields, about

	// lostEvery is the least time between two events that count what was lost. The last one is at the end.
	lostEvery = 10 * time.Second
)

// MaxTried is how many paths of one search are recorded.
const MaxTried = 16

// An Exec is a process that executes a program.
type Exec struct {
	PID    int // as the keeper sees it; in a cell with a kernel of its own, in the cell
	Parent int // 0: not known
	Args   []string
	Cut    int64 // bytes of args that the observer did not read; below 0: there are more, and it is not known how many
	Path   string
	Tried  []string // paths that the same call of the program looked at before, as a search through PATH does
	As     string   // Observed, Asked
}

// An End is the end of a process.
type End struct {
	PID    int
	Code   int // exit code; 128+n after signal n
	Signal string
	As     string // Observed; NotSeen: Code and Signal are not known
}

// The fields of the events about processes.
type (
	// ExecFields are those of process.exec.
	ExecFields struct {
		PID    int      `json:"pid"`
		Parent int      `json:"parent"`
		Argv   []string `json:"argv"`
		Cut    int64    `json:"cut"`
		Path   string   `json:"path"`
		Tried  []string `json:"tried"`
		As     string   `json:"as"`
	}
	// EndedFields are those of process.ended.
	EndedFields struct {
		PID    int    `json:"pid"`
		Code   *int   `json:"code"`
		Signal string `json:"signal"`
		As     string `json:"as"`
	}
	// LostFields are those of process.lost.
	LostFields struct {
		Starts int64  `json:"starts"`
		Ends   int64  `json:"ends"`
		Why    string `json:"why"`
	}
	// UnseenFields are those of process.unseen.
	UnseenFields struct {
		What string `json:"what"`
		Why  string `json:"why"`
	}
)

// Starts writes which processes a command starts, and how they end, into its events. It is
// what all backends tell: it takes credentials out, limits how much is written, and counts
// what is not. Its methods may be called at any time, also after the end of the command,
// when they do nothing. It is safe for concurrent use.
type Starts struct {
	emit func(kind string, fields any)

	redactor receipt.Redactor

	mu       sync.Mutex // guards what follows
	over     bool
	room     int64
	filled   time.Time // when room was what it is
	lost     LostFields
	lostTold time.Time
}

// newStarts begins to write by emit. known are values of credentials.
func newStarts(emit func(kind string, fields any), known []string) *Starts {
	s := &Starts{emit: emit, room: startsRoom, filled: time.Now(), lostTold: time.Now()}
	s.knows(known)
	return s
}

// Exec records that a process executes a program.
func (s *Starts) Exec(e Exec) {
	f := ExecFields{PID: e.PID, Parent: e.Parent, Path: clip(s.redactor.String(e.Path), maxWord), Argv: []string{}, Tried: []string{}, Cut: e.Cut, As: e.As}
	left := maxWords
	for i, w := range e.Args {
		whole := s.redactor.String(w) // before it is cut: the rest of a secret is not recognised
		kept := ""
		if i < maxCount {
			kept = clip(whole, min(maxWord, left))
		}
		f.Cut += int64(len(whole) - len(kept))
		if i < maxCount && (left > 0 || whole == "") {
			f.Argv = append(f.Argv, kept)
			left -= len(kept)
		}
	}
	for _, t := range e.Tried[:min(len(e.Tried), MaxTried)] {
		f.Tried = append(f.Tried, clip(s.redactor.String(t), maxWord))
	}
	if e.Cut < 0 {
		f.Cut = -1
	}
	s.write("process.exec", f, func() { s.lost.Starts++ })
}

// clip returns at most n bytes of a text, and no part of a character.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Ended records the end of a process.
func (s *Starts) Ended(e End) {
	f := EndedFields{PID: e.PID, Signal: e.Signal, As: e.As}
	if e.As != NotSeen {
		f.Code = &e.Code
	}
	s.write("process.ended", f, func() { s.lost.Ends++ })
}

// Lost counts starts and ends that took place and are not recorded. why is a few words; of
// several reasons the first stands for all.
func (s *Starts) Lost(starts, ends int64, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost.Starts += starts
	s.lost.Ends += ends
	s.because(why)
}

// because notes why something was lost. The caller holds s.mu.
func (s *Starts) because(why string) {
	if s.lost.Why == "" {
		s.lost.Why = why
	}
}

// Unseen records what can't be observed of this command's processes, and why.
func (s *Starts) Unseen(what, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.emit("process.unseen", UnseenFields{clip(what, maxWord), clip(why, maxWord)})
	}
}

// write writes an event, or counts it as lost.
func (s *Starts) write(kind string, fields any, lose func()) {
	raw, err := json.Marshal(fields)
	cost := int64(len(raw)) + lineCost
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	now := time.Now()
	if add := int64(now.Sub(s.filled).Seconds() * startsRate); add > 0 {
		s.room, s.filled = min(s.room+add, startsRoom), now
	}
	if s.lost != (LostFields{}) && now.Sub(s.lostTold) >= lostEvery {
		s.tellLost(now)
	}
	if err != nil || cost > s.room {
		lose()
		s.because("there were more than is recorded")
		return
	}
	s.room -= cost
	s.emit(kind, json.RawMessage(raw))
}

// tellLost writes what was lost since it was last written. The caller holds s.mu.
func (s *Starts) tellLost(now time.Time) {
	s.emit("process.lost", s.lost)
	s.lost, s.lostTold = LostFields{}, now
}

// knows adds values of credentials that were lent since.
func (s *Starts) knows(secrets []string) {
	for _, v := range secrets {
		s.redactor.Add(v) // one that is too short is in any text by chance
	}
}

// end writes what was lost; nothing is written afterwards. s may be nil.
func (s *Starts) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && s.lost != (LostFields{}) {
		s.tellLost(time.Now())
	}
	s.over = true
}
