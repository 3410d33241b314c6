package receipt

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// A KeyRequest asks for a change of keys.
type KeyRequest struct {
	Next   Signer // that signs from then on; nil to keep the one that does
	Revoke string // id of a key to revoke, "" for none
	Since  int64  // index of the first receipt that its signature does not count for; -1: from now on
	Reason string
}

// signing returns what signs now.
func (l *Ledger) signing() (Signer, *Keys) {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.signer, l.history
}

// Keys is the history of the ledger's keys.
func (l *Ledger) Keys() *Keys {
	_, k := l.signing()
	return k
}

// ChangeKey writes a receipt that changes the keys, signed by the one that signs now, and returns when it survives power loss
// and a head of the next key covers it. Also when it fails the receipt may be there: whether it is, shows Keys, and after a
// failure to write the next opening of the ledger.
func (l *Ledger) ChangeKey(ctx context.Context, req KeyRequest) (Entry, error) {
	select {
	case l.writer <- struct{}{}:
	case <-ctx.Done():
		return Entry{}, cell.Errorf(cell.Interrupted, "receipt.ChangeKey", "", "cannot change the key: %w", context.Cause(ctx))
	}
	defer func() { <-l.writer }()
	at := Position{Index: l.tree.size, Size: l.tree.size, Root: l.tree.root()}
	c, subjects, err := l.newChange(req, at)
	if err != nil {
		return Entry{}, err
	}
	members, err := encodePredicate(c)
	if err != nil {
		return Entry{}, err
	}
	text, err := marshalSubjects(subjects)
	if err != nil {
		return Entry{}, err
	}
	b := Binding{Key: fmt.Sprintf("key/%d", at.Index), Ledger: at}
	env, err := seal(l.signer, encodeStatement(PredicateKey, b, members, text))
	if err != nil {
		return Entry{}, err
	}
	history := l.history.clone()
	if reason, what := history.extend(at.Index, env); reason != "" {
		return Entry{}, cell.Errorf(cell.Invalid, "receipt.ChangeKey", "", "cannot change the key: %s", what)
	}
	grown := l.tree.clone()
	grown.add(tlog.RecordHash(env))
	places, err := l.entries.AppendIndexed(env)
	if err != nil {
		return Entry{}, failed(b.Key, err)
	}
	e := Entry{Index: at.Index, ID: cell.Sum(env), Envelope: env}
	l.state.Lock()
	l.tree, l.history = grown, history
	if req.Next != nil {
		l.signer = req.Next
	}
	l.enter(places[0], e.ID, b)
	l.state.Unlock()
	if err := l.settle(); err != nil {
		return Entry{}, failed(b.Key, err)
	}
	return e, nil
}

// newChange is what the receipt says.
func (l *Ledger) newChange(req KeyRequest, at Position) (c KeyChange, subjects []Subject, err error) {
	bad := func(hint, format string, args ...any) (KeyChange, []Subject, error) {
		return c, nil, cell.Errorf(cell.Invalid, "receipt.ChangeKey", hint, "cannot change the key: "+format, args...)
	}
	old := l.history.Current()
	c = KeyChange{Act: KeyRotate, By: old.Text(), Previous: l.history.last().change, Reason: req.Reason, At: time.Now().UTC()}
	if req.Revoke != "" {
		c.Act = KeyRevoke
		if req.Since < 0 {
			req.Since = at.Index
		}
		switch {
		case l.history.byID(req.Revoke) == nil:
			return bad("see pando receipt key ls", "%.80q is no key of this ledger", req.Revoke)
		case req.Since > at.Index:
			return bad("", "there is no receipt %d yet", req.Since)
		}
		c.Revoked = &RevokedKey{req.Revoke, req.Since}
		id, err := cell.ParseDigest(req.Revoke)
		if err != nil {
			return c, nil, err
		}
		subjects = append(subjects, Subject{"revoked key", id})
	}
	if req.Next != nil {
		next := req.Next.Public()
		if l.history.Has(next) {
			return bad("make a new one", "%s was a key of this ledger before", next.ID())
		}
		proof, err := req.Next.Sign(goesOn(l.history.Origin(), at, old, next))
		if err != nil {
			return c, nil, cell.Errorf(cell.Unavailable, "receipt.ChangeKey", "", "cannot sign with the next key: %w", err)
		}
		c.Next = &NextKey{next.Text(), base64.StdEncoding.EncodeToString(proof)}
		id, err := cell.ParseDigest(next.ID())
		if err != nil {
			return c, nil, err
		}
		subjects = append(subjects, Subject{"next key", id})
	}
	return c, subjects, nil
}
