package receipt

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// A Request is one receipt to be written.
type Request struct {
	// Key makes the receipt once: "r-0123456789abcdef/run",
	// "r-0123456789abcdef/accepted/1". Letters, digits and ._:/@=+- .
	Key       string
	Type      string // PredicateRun, PredicateVerdict or another URI
	Subjects  []Subject
	Predicate any // marshals to a JSON object; see the package comment for names it can't use
	// Incomplete says that the receipt was written before everything was
	// known, for example before all events had arrived. Another one completes
	// it later.
	Incomplete bool
	// Completes is the incomplete receipt that this one completes.
	Completes cell.Digest
}

// A batch is what goes to the disk with one sync.
type batch struct {
	reqs []*pending
	done chan struct{} // closed when the results are final
}

type pending struct {
	req      Request
	members  []byte // the predicate, without braces
	subjects []byte
	entry    Entry
	err      error
	twin     *pending // has the same key, earlier in the batch
	binding  Binding
}

// Append writes a receipt and returns when it survives power loss and a
// signed head covers it. Another Append with the same key returns the first
// receipt when it says the same, and is a Conflict when it does not. Requests
// that come while others are being written share the next sync.
//
// When Append fails, there may yet be a receipt (the disk was full after it
// was written); asking again with the same key completes it or writes it. ctx
// counts until writing begins: a receipt is not given up half-way.
func (l *Ledger) Append(ctx context.Context, req Request) (Entry, error) {
	p, err := prepare(req)
	if err != nil {
		return Entry{}, err
	}
	if ctx.Err() != nil {
		return Entry{}, cell.Errorf(cell.Interrupted, "receipt.Append", "", "cannot write receipt %s: %w", req.Key, context.Cause(ctx))
	}
	l.mu.Lock()
	if l.next == nil {
		l.next = &batch{done: make(chan struct{})}
	}
	b := l.next
	b.reqs = append(b.reqs, p)
	l.mu.Unlock()

	// The first of the batch to get through writes for all of them.
	select {
	case <-b.done:
	case l.writer <- struct{}{}:
		l.mu.Lock()
		mine := l.next == b
		if mine {
			l.next = nil
		}
		l.mu.Unlock()
		if mine {
			l.commit(b.reqs)
			close(b.done)
		}
		<-l.writer
	}
	<-b.done
	return p.entry, p.err
}

func prepare(req Request) (*pending, error) {
	bad := func(format string, args ...any) error {
		return cell.Errorf(cell.Invalid, "receipt.Append", "", "cannot write a receipt: "+format, args...)
	}
	if !keyPattern().MatchString(req.Key) {
		return nil, bad("%.80q is not a key", req.Key)
	}
	if !typePattern().MatchString(req.Type) {
		return nil, bad("%.80q is not a predicate type", req.Type)
	}
	if req.Type == PredicateKey {
		return nil, bad("keys are changed by ChangeKey")
	}
	if len(req.Subjects) == 0 {
		return nil, bad("it has no subject")
	}
	for _, s := range req.Subjects {
		if s.Name == "" || s.Digest.IsZero() {
			return nil, bad("a subject has no name or no digest")
		}
	}
	members, err := encodePredicate(req.Predicate)
	if err != nil {
		return nil, err
	}
	subjects, err := marshalSubjects(req.Subjects)
	if err != nil {
		return nil, err
	}
	return &pending{req: req, members: members, subjects: subjects}, nil
}

func marshalSubjects(list []Subject) ([]byte, error) {
	text, err := json.Marshal(list)
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, "receipt.Append", "", "cannot write a receipt: %w", err)
	}
	return text, nil
}

// commit writes a batch. The caller is the writer.
func (l *Ledger) commit(reqs []*pending) {
	grown := l.tree.clone()
	fresh := map[string]*pending{}
	closing := map[cell.Digest]bool{}
	var order []*pending
	var recs [][]byte
	for _, p := range reqs {
		if i, ok := l.keys[p.req.Key]; ok {
			p.entry, p.err = l.repeated(i, p)
			continue
		}
		if first := fresh[p.req.Key]; first != nil {
			p.twin = first
			if !p.same(first.req, first.members) {
				p.err = conflict(p.req.Key)
			}
			continue
		}
		if p.err = l.mayComplete(p.req.Completes, closing); p.err != nil {
			continue
		}
		env, err := l.seal(p, grown)
		if err != nil {
			p.err = err
			continue
		}
		grown.add(tlog.RecordHash(env))
		fresh[p.req.Key] = p
		closing[p.req.Completes] = true
		order = append(order, p)
		recs = append(recs, env)
	}
	places, unwritten := l.entries.AppendIndexed(recs...)
	if unwritten == nil {
		l.state.Lock()
		l.tree = grown
		for i, p := range order {
			l.enter(places[i], p.entry.ID, p.binding)
		}
		l.state.Unlock()
	}
	unsettled := l.settle()
	defer l.count(reqs)
	for _, p := range reqs {
		switch {
		case p.err != nil:
		case p.twin != nil:
			p.entry, p.err = p.twin.entry, p.twin.err
			p.entry.Repeated = true
		case !p.entry.Repeated && unwritten != nil:
			p.err = failed(p.req.Key, unwritten)
		case unsettled != nil:
			p.err = failed(p.req.Key, unsettled)
		}
		if p.err != nil {
			p.entry = Entry{}
		}
	}
}

// count notes what became of a batch.
func (l *Ledger) count(reqs []*pending) {
	l.state.Lock()
	defer l.state.Unlock()
	for _, p := range reqs {
		if p.err == nil {
			l.sealed = time.Now()
		} else {
			l.unsealed++
		}
	}
}

func failed(key string, err error) error {
	return cell.Errorf(cell.KindOf(err), "receipt.Append", cell.HintOf(err), "cannot complete receipt %s: %w", key, err)
}

// seal signs the receipt that comes next in t.
func (l *Ledger) seal(p *pending, t *tree) ([]byte, error) {
	p.binding = Binding{
		Key:        p.req.Key,
		Ledger:     Position{Index: t.size, Size: t.size, Root: t.root()},
		Incomplete: p.req.Incomplete,
		Completes:  p.req.Completes,
	}
	env, err := seal(l.signer, encodeStatement(p.req.Type, p.binding, p.members, p.subjects))
	if err != nil {
		return nil, err
	}
	p.entry = Entry{Index: t.size, ID: cell.Sum(env), Envelope: env}
	return env, nil
}

// mayComplete checks that id is an incomplete receipt that nothing completes.
func (l *Ledger) mayComplete(id cell.Digest, closing map[cell.Digest]bool) error {
	switch {
	case id.IsZero() || l.incomplete[id] && !closing[id]:
		return nil
	case closing[id] || slices.Contains(l.ids, id):
		return cell.Errorf(cell.Conflict, "receipt.Append", "", "cannot complete receipt %s: it is complete", id.Short())
	}
	return cell.Errorf(cell.NotFound, "receipt.Append", "", "cannot complete receipt %s: there is no such receipt", id.Short())
}

// repeated returns the receipt that p asks for again.
func (l *Ledger) repeated(index int64, p *pending) (Entry, error) {
	e, err := l.Entry(index)
	if err != nil {
		return Entry{}, err
	}
	s, err := e.Statement()
	if err != nil {
		return Entry{}, err
	}
	first := Request{Key: s.Binding.Key, Type: s.PredicateType, Subjects: s.Subject, Incomplete: s.Binding.Incomplete, Completes: s.Binding.Completes}
	if !p.same(first, s.own) {
		return Entry{}, conflict(p.req.Key)
	}
	e.Repeated = true
	return e, nil
}

func conflict(key string) error {
	return cell.Errorf(cell.Conflict, "receipt.Append", "", "cannot write receipt %s: there is one that says something else", key)
}

// same reports whether p says what was said before.
func (p *pending) same(req Request, members []byte) bool {
	return p.req.Type == req.Type && p.req.Incomplete == req.Incomplete && p.req.Completes == req.Completes &&
		slices.Equal(p.req.Subjects, req.Subjects) && sameJSON(p.members, members)
}

// sameJSON compares the members of two objects, in whatever order.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y map[string]any
	return decodeMembers(a, &x) == nil && decodeMembers(b, &y) == nil && reflect.DeepEqual(x, y)
}

func decodeMembers(b []byte, into *map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(slices.Concat([]byte("{"), b, []byte("}"))))
	d.UseNumber()
	return d.Decode(into)
}
