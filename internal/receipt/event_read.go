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

// VerifyEvents checks a run's event stream and returns the first problem, or nil; its Index
// is the number of the line. want is the receipt's summary of the stream. Without it (nil)
// only the stream itself is checked, and a missing end is not detected. It reads no further
// than it needs to, and keeps no lines. An error means that r could not be read.
func VerifyEvents(r io.Reader, run cell.RunID, want *Chain) (*Problem, error) {
	s := stream{chain: StartChain(run), want: want}
	if err := eachLine(r, s.line); err != nil {
		return nil, cell.Errorf(cell.Unavailable, "receipt.VerifyEvents", "", "cannot read events: %w", err)
	}
	s.end()
	return s.found, nil
}

// A stream is what is known of a run's events after a number of lines.
type stream struct {
	chain Chain // of the lines that are in order
	want  *Chain
	found *Problem
	// Which problem it is, lines after it tell:
	ahead int64       // the number of an event in the place of the next one
	loose cell.Digest // of a line that does not go on from the one before it
}

func (s *stream) problem(reason Reason, n int64, format string, args ...any) bool {
	s.found = &Problem{Reason: reason, Index: n, What: fmt.Sprintf("line %d: ", n) + fmt.Sprintf(format, args...)}
	return false
}

// line judges one line, and reports whether it needs the next.
func (s *stream) line(b []byte, whole bool) bool {
	n := s.chain.Count + 1
	e, err := parseEvent(b)
	switch {
	case s.ahead > 0 && err == nil && e.Seq == n:
		return s.problem(Reordered, n, "event %d stands in the place of event %d", s.ahead, n)
	case s.ahead > 0:
		return err == nil
	case !s.loose.IsZero():
		return s.unlike(err == nil && e.Prev == s.loose)
	case s.want != nil && n > s.want.Count:
		return s.problem(Added, n, "the receipt knows %d events", s.want.Count)
	case !whole:
		return s.problem(Truncated, n, "it is not complete")
	case err != nil:
		return s.problem(Edited, n, "it is not an event any more")
	case e.Seq > n:
		s.ahead = e.Seq
		return true
	case e.Seq < n:
		return s.problem(Repeated, n, "event %d is there twice", e.Seq)
	case e.Prev == s.chain.Last:
		s.chain = Chain{n, cell.Sum(b)}
		return true
	case n == 1:
		return s.problem(Edited, n, "event %d was edited", n)
	}
	s.loose = cell.Sum(b)
	return true
}

// unlike judges a line that does not go on from the one before it; vouched says that what follows goes on from it.
func (s *stream) unlike(vouched bool) bool {
	n := s.chain.Count + 1
	if vouched {
		n--
	}
	return s.problem(Edited, n, "event %d was edited", n)
}

// end judges the end of the stream.
func (s *stream) end() {
	n := s.chain.Count + 1
	switch {
	case s.found != nil:
	case s.ahead > 0:
		s.problem(Dropped, n, "event %d is missing", n)
	case !s.loose.IsZero():
		s.unlike(s.want == nil || s.want.Count != n || s.want.Last == s.loose)
	case s.want == nil:
	case s.chain.Count < s.want.Count:
		s.problem(Truncated, n, "the events end at %d, the receipt knows %d", s.chain.Count, s.want.Count)
	case s.chain.Last != s.want.Last:
		s.problem(Edited, s.chain.Count, "event %d was edited, or one before it and all hashes since", s.chain.Count)
	}
}
