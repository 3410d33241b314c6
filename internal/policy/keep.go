package policy

import (
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Keep says for how long the contents of a run's evidence are kept once the run has ended. Receipts are kept for ever, and no word of it names
// them. It is left out of the canonical form where it says nothing.
type Keep struct {
	Events     Period `json:"events,omitzero"`
	Output     Period `json:"output,omitzero"`
	Recordings Period `json:"recordings,omitzero"`
	ToolCalls  Period `json:"tool_calls,omitzero"`
}

// Period is a time to keep something; the zero value says nothing, and then it is kept for ever.
type Period struct {
	For     int64 `json:"for_ms,omitempty"`
	Forever bool  `json:"forever,omitempty"`
	Fixed   bool  `json:"fixed,omitempty"` // no layer below makes it longer
}

// The words of keep.
const (
	KeepEvents     = "events"
	KeepOutput     = "output"
	KeepRecordings = "recordings"
	KeepToolCalls  = "tool_calls"
)

// Kept are the words of keep, which are those for what of a run's evidence can be erased.
func Kept() []string { return []string{KeepEvents, KeepOutput, KeepRecordings, KeepToolCalls} }

// Of is the period of a word of keep.
func (k *Keep) Of(word string) *Period {
	switch word {
	case KeepEvents:
		return &k.Events
	case KeepOutput:
		return &k.Output
	case KeepRecordings:
		return &k.Recordings
	}
	return &k.ToolCalls
}

// Over reports whether something of a run that ended so long ago is kept no longer.
func (p Period) Over(age time.Duration) bool {
	return p.For > 0 && !p.Forever && age >= time.Duration(p.For)*time.Millisecond
}

// Says reports whether it says anything.
func (p Period) Says() bool { return p.For > 0 || p.Forever }

// shorter reports whether it is shorter than another.
func (p Period) shorter(o Period) bool { return !p.Forever && (o.Forever || p.For < o.For) }

// Lengthen has everything kept for as long as another policy says, where this one says something that is not fixed.
func (k Keep) Lengthen(o Keep) Keep {
	for _, w := range Kept() {
		if p, more := k.Of(w), *o.Of(w); p.Says() && !p.Fixed && p.shorter(more) {
			p.For, p.Forever = more.For, more.Forever
		}
	}
	return k
}

func (p Period) String() string {
	switch d := time.Duration(p.For) * time.Millisecond; {
	case p.Forever:
		return "forever"
	case d%(24*time.Hour) == 0:
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	default:
		return d.String()
	}
}

// parsePeriod reads "90d", "36h" or "forever".
func parsePeriod(s string) (Period, error) {
	if s == "forever" {
		return Period{Forever: true}, nil
	}
	bad := cell.Errorf(cell.Invalid, "policy.ParseFile", "write it as 90d, 36h or forever", "%s is no time to keep something", Quoted(s))
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil || n == 0 {
			return Period{}, bad
		}
		return Period{For: int64(n) * (24 * time.Hour).Milliseconds()}, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second {
		return Period{}, bad
	}
	return Period{For: d.Milliseconds()}, nil
}

// FileKeep is the section keep.
type FileKeep struct {
	Keep
	lines map[string]int
}

func (f *FileKeep) words() section {
	about := map[string]string{
		KeepEvents:     "The events of a run: 90d, 36h, forever, or {exactly: 90d}, which no lower layer makes longer. Without, they are kept for ever.",
		KeepOutput:     "What a run, and its check, wrote to standard output and standard error.",
		KeepRecordings: "The recording of a run's network (--record).",
		KeepToolCalls:  "What an agent reported of its tool calls.",
	}
	var out []word
	for _, name := range Kept() {
		set := func(fixed bool) func(string) error {
			return func(s string) error {
				p, err := parsePeriod(s)
				p.Fixed = fixed
				*f.Of(name) = p
				return err
			}
		}
		at := func(n int) {
			if f.lines == nil {
				f.lines = map[string]int{}
			}
			f.lines[name] = n
		}
		out = append(out, word{name: name, about: about[name], shape: either{
			short: text{at: at, set: set(false)},
			long:  section{words: []word{{name: "exactly", about: "So long, and no longer: 90d or 36h.", must: true, shape: text{set: set(true)}}}},
		}})
	}
	return section{words: append(out, word{name: "receipts", about: "Always forever: receipts can't be erased.", shape: text{set: func(s string) error {
		if s != "forever" {
			return cell.Errorf(cell.Invalid, "policy.ParseFile", "take it out, or write forever", "receipts are kept for ever, and no policy has them erased")
		}
		return nil
	}}})}
}

// keep merges the section keep. The host and the user say for how long; of what layers say, the longest counts, unless one above fixes it. A
// repository, or a file for one run, lengthens what those two say, and has nothing erased by itself.
func (m *merger) keep(l Layer) error {
	f := l.File
	above := l.Name == LayerHost || l.Name == LayerUser
	for _, w := range Kept() {
		own, to := *f.Keep.Of(w), m.r.Keep.Of(w)
		if !own.Says() {
			continue
		}
		at := f.at(f.Keep.lines[w])
		if own.Fixed && !above {
			return cell.Errorf(cell.Denied, "policy.Merge", "write the time alone", "cannot fix keep.%s (%s): the policies of the host and the user do", w, at)
		}
		switch {
		case to.Says() && (to.Fixed || own.shorter(*to)), !to.Says() && !above:
			continue
		}
		*to = own
		m.r.Origins.Lines["keep."+w] = at
	}
	return nil
}

// MergeKeep is what layers say of keeping evidence, with where each word is said.
func MergeKeep(layers []Layer) (Keep, map[string]string, error) {
	m := &merger{r: Result{Origins: Origins{Lines: map[string]string{}}}}
	for _, l := range layers {
		if err := m.keep(l); err != nil {
			return Keep{}, nil, err
		}
	}
	return m.r.Keep, m.r.Origins.Lines, nil
}

// text says it in one line.
func (p Period) text(word string) string {
	t := strings.ReplaceAll(word, "_", " ") + " " + p.String()
	if p.Fixed {
		t += ", and no longer"
	}
	return t
}
