package receipt

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// An Event is one line of a run's event stream. Prev is the digest of the
// line before, without its newline; that of the first line is the digest of
// the run's ID. So the last line's digest stands for the whole stream.
type Event struct {
	Seq    int64           `json:"seq"` // from 1
	Time   time.Time       `json:"time"`
	Kind   string          `json:"kind"`
	Fields json.RawMessage `json:"fields,omitempty"`
	Prev   cell.Digest     `json:"prev"`
}

// A Chain is the state of an event stream after a number of events. It is
// what a receipt says of a stream.
type Chain struct {
	Count int64       `json:"count"`
	Last  cell.Digest `json:"last"` // of the last line
}

// StartChain returns the state of a run's stream before its first event.
func StartChain(run cell.RunID) Chain { return Chain{Last: cell.Sum([]byte(run))} }

// MaxEvent is the length of the longest line, in bytes.
const MaxEvent = 1 << 20

// An EventWriter writes a run's events, as JSON lines. It is safe for
// concurrent use. Events are not synced one by one; Sync does it at the end.
type EventWriter struct {
	mu     sync.Mutex
	w      io.Writer
	chain  Chain
	broken error // a line may be there in part; nothing can follow it
}

// NewEventWriter returns a writer that goes on from a chain, usually from
// StartChain. The file behind w must be empty or hold that chain's lines.
func NewEventWriter(w io.Writer, from Chain) *EventWriter {
	return &EventWriter{w: w, chain: from}
}

// Emit writes one event. fields becomes a JSON value; nil leaves it out. An
// event that is too long is Invalid and not written. Any other failure is
// permanent: a stream with a hole is not one.
func (w *EventWriter) Emit(kind string, fields any) error {
	e := Event{Kind: kind}
	if fields != nil {
		raw, err := json.Marshal(fields)
		if err != nil {
			return cell.Errorf(cell.Invalid, "receipt.Emit", "", "cannot record event %.80q: %w", kind, err)
		}
		e.Fields = raw
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return w.broken
	}
	e.Seq, e.Prev, e.Time = w.chain.Count+1, w.chain.Last, time.Now().UTC()
	line, err := json.Marshal(e)
	if err != nil {
		return cell.Errorf(cell.Invalid, "receipt.Emit", "", "cannot record event %.80q: %w", kind, err)
	}
	if len(line) > MaxEvent {
		return cell.Errorf(cell.Invalid, "receipt.Emit", "", "cannot record event %.80q: it has %d bytes, at most %d are allowed", kind, len(line), MaxEvent)
	}
	if _, err := w.w.Write(append(line, '\n')); err != nil {
		w.broken = cell.Errorf(cell.Unavailable, "receipt.Emit", "", "cannot record events: %w", err)
		return w.broken
	}
	w.chain = Chain{e.Seq, cell.Sum(line)}
	return nil
}

// Digest returns the number of events and the digest of the last line.
func (w *EventWriter) Digest() Chain {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chain
}

// Sync makes what was written survive power loss, where w has a Sync of its
// own, as files do. It fails when an earlier Emit could not write.
func (w *EventWriter) Sync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return w.broken
	}
	if s, ok := w.w.(interface{ Sync() error }); ok {
		if err := s.Sync(); err != nil {
			w.broken = cell.Errorf(cell.Unavailable, "receipt.Emit", "", "cannot record events: %w", err)
			return w.broken
		}
	}
	return nil
}
