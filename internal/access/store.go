package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// Token is what is known of a token. Its secret is not.
type Token struct {
	ID      string    `json:"id"` // t-…
	Name    string    `json:"name"`
	Level   Level     `json:"level"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // never when zero
	Bounds
}

// Expired reports whether its time is over.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// MaxTokens bounds how many there are.
const MaxTokens = 1000

// Store keeps tokens. It is safe for concurrent use; one process has it open at
// a time. What it says is stored or removed is so on disk for good.
type Store struct {
	fsys durable.FS

	mu  sync.Mutex // guards what follows
	all map[string]*kept
}

// kept is a token in memory.
type kept struct {
	stored
	ctx    context.Context // ends with the token
	cancel context.CancelCauseFunc
	used   time.Time
}

// stored is what a file holds.
type stored struct {
	Token
	Digest []byte `json:"sha256"` // of the secret without its beginning
}

const suffix = ".json"

// Open reads the tokens of a directory. One that can't be read is an error: a
// token must not come to mean something else, nor be missed in silence.
func Open(fsys durable.FS) (*Store, error) {
	s := &Store{fsys: fsys, all: map[string]*kept{}}
	if err := durable.RemovePartial(fsys, "."); err != nil {
		return nil, err
	}
	infos, err := fsys.List(".")
	if err != nil {
		return nil, fmt.Errorf("cannot list the tokens: %w", err)
	}
	for _, i := range infos {
		id, ok := strings.CutSuffix(i.Name, suffix)
		if !ok || i.Dir {
			continue
		}
		b, err := durable.ReadFile(fsys, i.Name)
		var t stored
		if err == nil {
			err = json.Unmarshal(b, &t)
		}
		if err == nil && (t.ID != id || len(t.Digest) != sha256.Size || t.Level.rank() < 0) {
			err = fmt.Errorf("what it holds is no token")
		}
		if err == nil {
			err = t.Check()
		}
		if err != nil {
			return nil, cell.Errorf(cell.Corrupt, "access.Open", "remove the file tokens/"+i.Name+" in the state directory, and make the token again", "cannot read the token %s: %w", id, err)
		}
		s.put(t)
	}
	return s, nil
}

// put takes a token into memory. The caller holds mu, or is Open.
func (s *Store) put(t stored) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.all[t.ID] = &kept{stored: t, ctx: ctx, cancel: cancel}
}

// Create makes a token that nothing but its level binds: see Make.
func (s *Store) Create(name string, level Level, expires time.Time) (Token, string, error) {
	return s.Make(name, level, expires, Bounds{})
}

// Make makes a token and returns its secret, which is never told again. Names
// are unique. With an empty name it is called by its id.
func (s *Store) Make(name string, level Level, expires time.Time, bounds Bounds) (Token, string, error) {
	const op = "access.Make"
	if err := bounds.Check(); err != nil {
		return Token{}, "", err
	}
	if level.rank() < 0 {
		return Token{}, "", cell.Errorf(cell.Invalid, op, "use read, approve, run or admin", "%q is no scope", level)
	}
	if name != "" {
		if err := cell.CheckName(name); err != nil {
			return Token{}, "", err
		}
	}
	now := time.Now().UTC().Truncate(time.Second)
	if !expires.IsZero() && !now.Before(expires) {
		return Token{}, "", cell.Errorf(cell.Invalid, op, "give a time that is to come", "a token can't expire in the past")
	}
	var random [20]byte
	rand.Read(random[:])
	secret := hex.EncodeToString(random[:])
	digest := sha256.Sum256([]byte(secret))
	var id [6]byte
	rand.Read(id[:])
	t := stored{Token: Token{ID: "t-" + hex.EncodeToString(id[:]), Name: name, Level: level, Created: now, Expires: expires.UTC(), Bounds: bounds}, Digest: digest[:]}
	if name == "" {
		t.Name = t.ID
	}
	b, err := json.Marshal(t)
	if err != nil {
		return Token{}, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= MaxTokens {
		return Token{}, "", cell.Errorf(cell.Unavailable, op, "remove some: pando token rm NAME", "there are %d tokens, and there can't be more", MaxTokens)
	}
	for _, k := range s.all {
		if k.Name == t.Name {
			return Token{}, "", cell.Errorf(cell.Exists, op, "choose another name, or remove it first: pando token rm "+t.Name, "token %s exists", t.Name)
		}
	}
	if err := durable.WriteFile(s.fsys, t.ID+suffix, append(b, '\n'), 0o600); err != nil {
		return Token{}, "", err
	}
	s.put(t)
	return t.Token, Prefix + secret, nil
}

// List returns all tokens, oldest first, with when each was used last.
func (s *Store) List() []Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Use, 0, len(s.all))
	for _, k := range s.all {
		list = append(list, Use{k.Token, k.used})
	}
	slices.SortFunc(list, func(a, b Use) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}

// Use is a token, and when it was used last since the daemon started.
type Use struct {
	Token
	Last time.Time
}

// Remove forgets a token, by its name or id, and ends what was begun with it.
func (s *Store) Remove(name string) (Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.all {
		if k.Name != name && k.ID != name {
			continue
		}
		if err := s.fsys.Remove(k.ID + suffix); err != nil {
			return Token{}, fmt.Errorf("cannot remove the token %s: %w", k.Name, err)
		}
		delete(s.all, k.ID) // at once, even if the disk fails now
		k.cancel(cell.Errorf(cell.Unauthenticated, "access.Remove", "", "the token was removed"))
		return k.Token, s.fsys.SyncDir(".")
	}
	return Token{}, cell.Errorf(cell.NotFound, "access.Remove", "see `pando token ls`", "there is no token %s", name)
}

// Life returns a context that ends with a token, given by its id, and the time at which the token
// expires; zero for never. It fails with Unauthenticated if the token has expired or was removed.
func (s *Store) Life(id string) (context.Context, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[id]
	if k == nil || k.Expired(time.Now()) {
		return nil, time.Time{}, cell.Errorf(cell.Unauthenticated, "access.Life", "", "the token has expired or was removed")
	}
	return k.ctx, k.Expires, nil
}

// Recognise returns the principal of a token, and a context that ends with the token. The
// error is the same for a wrong, an expired and a removed token.
func (s *Store) Recognise(secret string) (Principal, context.Context, time.Time, error) {
	given := sha256.Sum256([]byte(bare(secret)))
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *kept
	for _, k := range s.all { // all of them, so that the time taken says nothing
		if subtle.ConstantTimeCompare(k.Digest, given[:]) == 1 {
			found = k
		}
	}
	now := time.Now()
	if found == nil || found.Expired(now) {
		return Principal{}, nil, time.Time{}, cell.Errorf(cell.Unauthenticated, "access.Recognise", "make one where the daemon runs: pando token create", "the token is wrong, has expired or was removed")
	}
	found.used = now
	p := Principal{Name: found.Name, Token: found.ID, Level: found.Level}
	if found.Any() {
		p.Bounds = &found.Bounds
	}
	return p, found.ctx, found.Expires, nil
}
