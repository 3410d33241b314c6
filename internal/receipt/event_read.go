package receipt

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/pando-dev/pando/internal/cell"
)

// parseEvent reads one line.
func parseEvent(line []byte) (Event, error) {
	var e Event
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || d.InputOffset() != int64(len(line)) || e.Seq < 1 || e.Prev.IsZero() {
		return e, errors.New("it is not an event")
	}
	return e, nil
}

// eachLine yields the lines of r without their newlines. whole is false for a
// last line that has none and for one that is too long, which is the last
// that is yielded.
func eachLine(r io.Reader, f func(line []byte, whole bool) bool) error {
	in := bufio.NewReaderSize(r, MaxEvent+1)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil:
			if !f(line[:len(line)-1], true) {
				return nil
			}
		case err == io.EOF && len(line) == 0:
			return nil
		case err == io.EOF, errors.Is(err, bufio.ErrBufferFull):
			f(line, false)
			return nil
		default:
			return err
		}
	}
}

// ReadEvents yields the events of a run's stream in order and checks the
// chain on the way. At the first line that does not fit it yields a Corrupt
// error that names the line, and ends. Whether lines are missing at the end
// only VerifyEvents can say.
func ReadEvents(r io.Reader, run cell.RunID) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		chain := StartChain(run)
		err := eachLine(r, func(line []byte, whole bool) bool {
			n := chain.Count + 1
			e, err := parseEvent(line)
			switch {
			case !whole:
				err = errors.New("it is not complete")
			case err != nil:
			case e.Seq != n:
				err = fmt.Errorf("it has the number %d", e.Seq)
			case e.Prev != chain.Last:
				err = errors.New("the line before it was changed")
			}
			if err != nil {
				yield(Event{}, cell.Errorf(cell.Corrupt, "receipt.ReadEvents", "", "cannot read events: line %d: %w", n, err))
				return false
			}
			chain = Chain{n, cell.Sum(line)}
			return yield(e, nil)
		})
		if err != nil {
			yield(Event{}, cell.Errorf(cell.Unavailable, "receipt.ReadEvents", "", "cannot read events: %w", err))
		}
	}
}

// line is what VerifyEvents keeps of each line.
type line struct {
	seq       int64 // 0 when it is not an event
	sum, prev cell.Digest
	whole     bool
}

// VerifyEvents checks a run's event stream and returns the first problem, or nil; its Index
// is the number of the line. want is the receipt's summary of the stream. Without it (nil)
// only the stream itself is checked, and a missing end is not detected. An error means that
// r could not be read.
func VerifyEvents(r io.Reader, run cell.RunID, want *Chain) (*Problem, error) {
	var lines []line
	err := eachLine(r, func(b []byte, whole bool) bool {
		l := line{sum: cell.Sum(b), whole: whole}
		if e, err := parseEvent(b); err == nil {
			l.seq, l.prev = e.Seq, e.Prev
		}
		lines = append(lines, l)
		return true
	})
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "receipt.VerifyEvents", "", "cannot read events: %w", err)
	}
	return judgeLines(lines, StartChain(run), want), nil
}

func judgeLines(lines []line, chain Chain, want *Chain) *Problem {
	problem := func(reason Reason, n int64, format string, args ...any) *Problem {
		return &Problem{Reason: reason, Index: n, What: fmt.Sprintf("line %d: ", n) + fmt.Sprintf(format, args...)}
	}
	for i, l := range lines {
		n := int64(i) + 1
		switch {
		case want != nil && n > want.Count:
			return problem(Added, n, "the receipt knows %d events", want.Count)
		case !l.whole:
			return problem(Truncated, n, "it is not complete")
		case l.seq == 0:
			return problem(Edited, n, "it is not an event any more")
		case l.seq > n && later(lines[i+1:], n):
			return problem(Reordered, n, "event %d stands in the place of event %d", l.seq, n)
		case l.seq > n:
			return problem(Dropped, n, "event %d is missing", n)
		case l.seq < n:
			return problem(Repeated, n, "event %d is there twice", l.seq)
		case l.prev == chain.Last:
		case n > 1 && intact(lines, i, want):
			return problem(Edited, n-1, "event %d was edited", n-1)
		default:
			return problem(Edited, n, "event %d was edited", n)
		}
		chain = Chain{n, l.sum}
	}
	if want == nil {
		return nil
	}
	if chain.Count < want.Count {
		return problem(Truncated, chain.Count+1, "the events end at %d, the receipt knows %d", chain.Count, want.Count)
	}
	if chain.Last != want.Last {
		return problem(Edited, chain.Count, "event %d was edited, or one before it and all hashes since", chain.Count)
	}
	return nil
}

// later reports whether one of the lines is event n.
func later(lines []line, n int64) bool {
	for _, l := range lines {
		if l.seq == n {
			return true
		}
	}
	return false
}

// intact reports whether what follows vouches for line i.
func intact(lines []line, i int, want *Chain) bool {
	if i+1 < len(lines) {
		return lines[i+1].prev == lines[i].sum
	}
	return want == nil || want.Count != int64(len(lines)) || want.Last == lines[i].sum
}
