package evidence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/ocsf"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// EventQuery says which events of a run are wanted, and how.
type EventQuery struct {
	Kinds  []string  // none: all; "process" stands for all that begin with "process."
	Denied bool      // only what the policy denied, or what met a limit
	Since  time.Time // what was before it is left out; zero: nothing
	Follow bool      // go on until the run ends
	Format string    // api.EventsJSON (also ""), api.EventsOCSF
}

// Events yields a run's events in order, a JSON document each. The chain is
// followed on the way, and at the end of a run that has ended the records are
// compared with what its receipt says of them: the last that is yielded is a
// Corrupt error where that does not hold. What can be said before the first
// event is returned as an error.
func (m *Manager) Events(ctx context.Context, id cell.RunID, q EventQuery) (iter.Seq2[json.RawMessage, error], error) {
	r, err := m.cfg.Records.Run(id)
	if err != nil {
		return nil, err
	}
	if err := checkKinds(q.Kinds); err != nil {
		return nil, err
	}
	show, err := m.shower(&r, q)
	if err != nil {
		return nil, err
	}
	ended := m.cfg.Ending(id)
	if ended == nil || !q.Follow {
		if _, err := os.Stat(filepath.Join(r.Folder, eventsFile)); errors.Is(err, os.ErrNotExist) {
			return nil, noEvents(&r, ended != nil)
		}
	}
	return func(yield func(json.RawMessage, error) bool) {
		t := newEventTail(ctx, r.Folder, ended, q.Follow)
		defer t.close()
		for ev, err := range receipt.ReadEvents(t, id) {
			if err != nil {
				yield(nil, brokenEvents(id, err))
				return
			}
			lines, err := show(ev)
			if err == nil && !q.wants(ev) {
				continue // it was looked at: what follows may build on it
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, line := range lines {
				if !yield(line, nil) {
					return
				}
			}
		}
		if err := m.sealedEvents(id, t); err != nil {
			yield(nil, err)
			return
		}
		if !t.whole || q.Format != api.EventsOCSF || len(q.Kinds) > 0 {
			return
		}
		lines, err := m.findings(id)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, line := range lines {
			if !yield(line, nil) {
				return
			}
		}
	}, nil
}

func noEvents(r *state.Run, underWay bool) error {
	if underWay {
		return cell.Errorf(cell.NotFound, "evidence.Events", "wait until it starts, or follow it: pando events -f "+r.ID, "run %s has no events yet", r.ID)
	}
	if r.NeverStarted() {
		return cell.Errorf(cell.NotFound, "evidence.Events", "see why: pando show "+r.ID, "run %s has no events: its command never started", r.ID)
	}
	if e := r.ErasedFile(eventsFile); e != nil {
		return cell.Errorf(cell.NotFound, "evidence.Events", "its receipt has the digest of them: pando receipt show "+r.ID, "the events of run %s were %s", r.ID, e.Words())
	}
	return cell.Errorf(cell.NotFound, "evidence.Events", "see what else is missing: pando receipt verify "+r.ID, "the events of run %s are gone", r.ID)
}

func brokenEvents(id cell.RunID, err error) error {
	if cell.KindOf(err) != cell.Corrupt {
		return err
	}
	return cell.Errorf(cell.Corrupt, "evidence.Events", "see what its receipt still proves: pando receipt verify "+string(id), "cannot trust the events of run %s from here on: %w", id, err)
}

// sealedEvents compares what was read to its end with the receipt. That the
// end of a stream is missing, no chain can show.
func (m *Manager) sealedEvents(id cell.RunID, t *eventTail) error {
	if !t.whole {
		return nil // it was not read to its end
	}
	r, err := m.cfg.Records.Run(id)
	if err != nil || r.Phase != cell.Ended {
		return nil
	}
	entry, err := m.cfg.Ledger.Lookup(runKey(&r))
	if err != nil {
		return nil // that it has none is said elsewhere
	}
	p, err := predicate[runPredicate](entry)
	want, has := p.Files[eventsFile]
	if err == nil && has && want != cell.Digest(t.sum.Sum(nil)) {
		return cell.Errorf(cell.Corrupt, "evidence.Events", "see what its receipt still proves: pando receipt verify "+string(id),
			"cannot trust the events of run %s: they are not those that its receipt names; the last may be missing", id)
	}
	return nil
}

// wants reports whether an event was asked for.
func (q EventQuery) wants(ev receipt.Event) bool {
	if q.Denied && !refused(ev) || ev.Time.Before(q.Since) {
		return false
	}
	if len(q.Kinds) == 0 {
		return true
	}
	family, _, _ := strings.Cut(ev.Kind, ".")
	return slices.Contains(q.Kinds, ev.Kind) || slices.Contains(q.Kinds, family)
}

// checkKinds refuses words that no event of ours is ever called: a filter with
// an error in it would silently hide everything.
func checkKinds(kinds []string) error {
	for _, k := range kinds {
		if !slices.ContainsFunc(EventKinds(), func(d EventKind) bool {
			family, _, _ := strings.Cut(d.Kind, ".")
			return k == d.Kind || k == family
		}) {
			var known []string
			for _, d := range EventKinds() {
				known = append(known, d.Kind)
			}
			return cell.Errorf(cell.Invalid, "evidence.Events", "choose among "+strings.Join(known, ", "), "there is no kind of event %q", cell.Clip(k))
		}
	}
	return nil
}

// shower returns what makes documents of an event, in the format asked for. It
// is given every event, in order.
func (m *Manager) shower(r *state.Run, q EventQuery) (func(receipt.Event) ([]json.RawMessage, error), error) {
	switch q.Format {
	case "", api.EventsJSON:
		return func(ev receipt.Event) ([]json.RawMessage, error) {
			b, err := json.Marshal(api.Event{Run: r.ID, Seq: ev.Seq, Time: ev.Time, Kind: ev.Kind, Text: eventText(ev), Denied: refused(ev), Fields: ev.Fields, Prev: ev.Prev.String()})
			return []json.RawMessage{b}, err
		}, nil
	case api.EventsOCSF:
		m := ocsf.NewMapper(m.facts(r))
		return func(ev receipt.Event) ([]json.RawMessage, error) {
			return documents(m.Map(ocsf.Source{Seq: ev.Seq, Time: ev.Time, Kind: ev.Kind, Text: eventText(ev), Fields: ev.Fields}))
		}, nil
	}
	return nil, cell.Errorf(cell.Invalid, "evidence.Events", "choose json or ocsf", "there is no format %q of events", cell.Clip(q.Format))
}

// facts are what events of a run are told with, in OCSF.
func (m *Manager) facts(r *state.Run) ocsf.Facts {
	host, _ := os.Hostname() // without it the device has no name
	f := ocsf.Facts{Run: r.ID, Cell: r.Cell, CellName: r.CellName, Backend: r.Backend, Command: r.Command, Policy: r.Policy, Receipt: r.Receipt,
		Version: m.cfg.Version, Hostname: host, User: m.cfg.User}
	if r.Error != nil && r.Error.Subject == cell.Canary {
		f.Surprises = append(f.Surprises, r.Error.Message)
	}
	if r.Secrets != nil {
		for _, x := range r.Secrets.Found {
			where := x.In
			if x.Path != "" {
				where += " " + x.Path
			}
			f.Found = append(f.Found, ocsf.Found{Credential: x.Credential, Where: where, As: x.Encoding})
		}
	}
	return f
}

// findings are what a run that has ended is found to have suffered, besides its events.
func (m *Manager) findings(id cell.RunID) ([]json.RawMessage, error) {
	r, err := m.cfg.Records.Run(id)
	if err != nil || r.Phase != cell.Ended {
		return nil, nil
	}
	return documents(ocsf.NewMapper(m.facts(&r)).Findings(r.Ended))
}

func documents[T any](list []T) (lines []json.RawMessage, err error) {
	for _, v := range list {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		lines = append(lines, b)
	}
	return lines, nil
}

// An eventTail reads a file that may still be written to, in whole lines. It ends
// where the file does: with follow, once the run has ended; else at once.
type eventTail struct {
	ctx    context.Context
	folder string          // of the run
	ended  <-chan struct{} // closed when nothing more will be written; nil: nothing will
	follow bool
	sum    hash.Hash // of all that was read
	whole  bool      // the end was reached, and nothing follows

	f    *os.File
	buf  []byte // read and not handed out
	read []byte
}

func newEventTail(ctx context.Context, folder string, ended <-chan struct{}, follow bool) *eventTail {
	return &eventTail{ctx: ctx, folder: folder, ended: ended, follow: follow, sum: sha256.New()}
}

// lineBreathes is how often a stream that is followed is looked at.
const lineBreathes = 50 * time.Millisecond

func (t *eventTail) close() {
	if t.f != nil {
		t.f.Close()
	}
}

// Read hands out what is complete. A line that is just being written is held
// back; at the end of a run nothing is, so that a torn line shows.
func (t *eventTail) Read(p []byte) (int, error) {
	for {
		if n := t.ready(); n > 0 {
			n = copy(p, t.buf[:n])
			t.sum.Write(t.buf[:n])
			t.buf = t.buf[n:]
			return n, nil
		}
		if t.whole {
			return 0, io.EOF
		}
		over := t.ended == nil
		select {
		case <-t.ended:
			over = true
		default:
		}
		n, err := t.fill()
		if err != nil {
			return 0, err
		}
		switch {
		case n > 0:
		case over:
			t.whole = true
		case !t.follow:
			return 0, io.EOF
		default:
			select {
			case <-t.ended:
			case <-time.After(lineBreathes):
			case <-t.ctx.Done():
				return 0, context.Cause(t.ctx)
			}
		}
	}
}

// ready is how many bytes may be handed out.
func (t *eventTail) ready() int {
	if t.whole || len(t.buf) > receipt.MaxEvent {
		return len(t.buf)
	}
	return bytes.LastIndexByte(t.buf, '\n') + 1
}

// fill reads more of the file. One that is not there yet is empty.
func (t *eventTail) fill() (int, error) {
	if t.f == nil {
		f, err := OpenRecord(t.folder, eventsFile)
		if errors.Is(err, os.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		t.f, t.read = f, make([]byte, 64<<10)
	}
	n, err := t.f.Read(t.read)
	t.buf = append(t.buf, t.read[:n]...)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}
