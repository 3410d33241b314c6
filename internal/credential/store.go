package credential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"filippo.io/age"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/secret"
)

// Config is where a Store keeps its things.
type Config struct {
	Dir  durable.FS // one file for each credential
	Keys durable.FS // the key that they are encrypted for
	// Open opens a login file if it is the user's alone, and follows no link at its end. nil: there are none.
	Open func(path string) (*os.File, error)
}

// Store keeps credentials. It is safe for concurrent use; one process has it
// open at a time. What it says is stored is on disk for good.
type Store struct {
	cfg Config

	mu     sync.RWMutex // guards what follows
	key    *age.X25519Identity
	all    map[string]*stored
	broken map[string]error // files that can't be read, by name

	// No lock is held while a login file is looked at.
	reading sync.Mutex // after mu; guards what follows
	reads   map[loginKey]*loginRead
	files   map[string]loginState // of login files, by name
	told    map[string]loginState // at the last call of Renewed, by name
}

// stored is what a file holds once it is decrypted.
type stored struct {
	Credential
	Value string `json:"value,omitempty"`
}

const (
	keyName = "credential.key"
	suffix  = ".age"
)

// Open reads what is stored. A file that can't be read is no error here: see
// Check, and the rest can be used.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, all: map[string]*stored{}, broken: map[string]error{}, reads: map[loginKey]*loginRead{}, files: map[string]loginState{}, told: map[string]loginState{}}
	if err := durable.RemovePartial(cfg.Dir, "."); err != nil {
		return nil, err
	}
	infos, err := cfg.Dir.List(".")
	if err != nil {
		return nil, fmt.Errorf("cannot list the credentials: %w", err)
	}
	for _, i := range infos {
		name, ok := strings.CutSuffix(i.Name, suffix)
		if !ok || i.Dir {
			continue
		}
		c, err := s.read(name)
		if err != nil {
			s.broken[name] = err
			continue
		}
		s.all[name] = c
	}
	return s, nil
}

// identity returns the key, which is made when the first credential is. The
// caller holds mu, or is Open.
func (s *Store) identity(create bool) (*age.X25519Identity, error) {
	if s.key != nil {
		return s.key, nil
	}
	b, info, err := durable.ReadInfo(s.cfg.Keys, keyName)
	switch {
	case err == nil && info.Perm&0o077 != 0:
		return nil, cell.Errorf(cell.Denied, "credential.Open", "make it yours alone with chmod 600, and change the secrets that were stored",
			"cannot use %s: others may read it (mode %04o)", keyName, info.Perm)
	case err == nil:
		if s.key, err = age.ParseX25519Identity(strings.TrimSpace(string(b))); err != nil {
			return nil, corrupt(keyName, errors.New("it is no key"))
		}
		return s.key, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case !create:
		return nil, corrupt(keyName, errors.New("the key is missing"))
	case len(s.broken) > 0:
		return nil, corrupt(keyName, errors.New("the key that other credentials were stored with is missing"))
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	if err := durable.WriteFile(s.cfg.Keys, keyName, []byte(key.String()+"\n"), 0o600); err != nil {
		return nil, err
	}
	s.key = key
	return key, nil
}

func (s *Store) read(name string) (*stored, error) {
	key, err := s.identity(false)
	if err != nil {
		return nil, err
	}
	b, err := durable.ReadFile(s.cfg.Dir, name+suffix)
	if err != nil {
		return nil, err
	}
	r, err := age.Decrypt(bytes.NewReader(b), key)
	if err != nil {
		return nil, corrupt(name, errors.New("it was not encrypted for this installation's key, or was damaged"))
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, corrupt(name, errors.New("it was damaged"))
	}
	var c stored
	if err := json.Unmarshal(plain, &c); err != nil {
		return nil, corrupt(name, errors.New("what it holds is no credential"))
	}
	if c.Name != name { // files that were exchanged would lend one secret in the other's place
		return nil, corrupt(name, fmt.Errorf("the file holds the credential %s", c.Name))
	}
	if err := c.check(); err != nil {
		return nil, corrupt(name, err)
	}
	return &c, nil
}

func corrupt(name string, err error) error {
	return cell.Errorf(cell.Corrupt, "credential.Open", "store it again: pando credential add "+strings.TrimSuffix(name, ".key")+" --replace --from-env VARIABLE",
		"cannot read the credential %s: %w", name, err)
}

// Add stores a credential. What a well-known name leaves open is filled in; what
// was stored is returned. One of that name must not exist unless replace is
// set.
func (s *Store) Add(c Credential, value Secret, replace bool) (Credential, error) {
	const opName = "credential.Add"
	if c.Kind == "" {
		c.Kind = Token
	}
	if c.Kind == SSH {
		if err := c.setKey(); err != nil {
			return c, err
		}
	}
	var now loginState
	if c.Login != nil {
		err := c.Login.check()
		if err == nil {
			now, err = s.loginNow(context.Background(), c.Name, c.Login)
		}
		if err != nil {
			return c, err
		}
		value, c.Expires = Secret{now.value}, now.expires
	}
	c = Complete(c, value)
	if c.Kind == Token {
		if err := checkValue(value.Reveal()); err != nil {
			return c, err
		}
		if _, err := Claims(value.Reveal()); err != nil && c.hasClaims() {
			return c, invalid("give the access token of a login, or use pando login --from-host", "cannot keep this as %s: %w", c.Name, err)
		}
		c.Shape = ShapeOf(value)
		if c.As == "" {
			c.As = bearer
		}
	}
	if err := c.check(); err != nil {
		return c, err
	}
	c.Created = time.Now().UTC().Truncate(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, exists := s.all[c.Name]
	_, bad := s.broken[c.Name]
	if (exists || bad) && !replace {
		return c, cell.Errorf(cell.Exists, opName, "replace it with --replace, or choose another name", "cannot store %s: there is a credential of that name", c.Name)
	}
	key, err := s.identity(true)
	if err != nil {
		return c, err
	}
	rec := &stored{Credential: c, Value: value.Reveal()}
	if c.Login != nil {
		rec.Value = ""
	}
	plain, err := json.Marshal(rec)
	if err != nil {
		return c, err
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, key.Recipient())
	if err != nil {
		return c, err
	}
	if _, err := w.Write(plain); err != nil {
		return c, err
	}
	if err := w.Close(); err != nil {
		return c, err
	}
	if err := durable.WriteFile(s.cfg.Dir, c.Name+suffix, b.Bytes(), 0o600); err != nil {
		return c, err
	}
	s.all[c.Name] = rec
	delete(s.broken, c.Name)
	s.reading.Lock()
	defer s.reading.Unlock()
	if delete(s.files, c.Name); c.Login != nil {
		s.files[c.Name] = now
	}
	return c, nil
}

// Remove forgets a credential.
func (s *Store) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[name] == nil && s.broken[name] == nil {
		return s.missing(name)
	}
	if err := s.cfg.Dir.Remove(name + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the credential %s: %w", name, err)
	}
	if err := s.cfg.Dir.SyncDir("."); err != nil {
		return fmt.Errorf("cannot remove the credential %s for good: %w", name, err)
	}
	delete(s.all, name)
	delete(s.broken, name)
	s.reading.Lock()
	defer s.reading.Unlock()
	delete(s.files, name)
	delete(s.told, name)
	return nil
}

// List returns all credentials that can be used, by name.
func (s *Store) List() (list []Credential) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.all {
		list = append(list, c.Credential)
	}
	slices.SortFunc(list, func(a, b Credential) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Broken returns the names of files that can't be read, with the reason.
func (s *Store) Broken() map[string]error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[string]error{}
	for n, err := range s.broken {
		out[n] = err
	}
	return out
}

// Get returns a credential and its value. A login file that does not answer is an error, after some seconds.
func (s *Store) Get(name string) (Credential, Secret, error) {
	return s.GetContext(context.Background(), name)
}

// GetContext is Get, and waits for a login file no longer than until ctx ends.
func (s *Store) GetContext(ctx context.Context, name string) (Credential, Secret, error) {
	s.mu.RLock()
	c, err := s.all[name], s.broken[name]
	s.mu.RUnlock()
	switch {
	case err != nil:
		return Credential{}, Secret{}, err
	case c == nil:
		return Credential{}, Secret{}, s.missing(name)
	case c.Login == nil:
		of := c.Credential
		of.Claims = of.readClaims(c.Value)
		return of, Secret{c.Value}, nil
	}
	of := c.Credential
	now, err := s.login(ctx, name, of.Login)
	of.Expires, of.Claims = now.expires, of.readClaims(now.value)
	return of, Secret{now.value}, err
}

func (s *Store) missing(name string) error {
	add := "pando credential add " + name
	if c, ok := WellKnown(name); ok {
		add += " --from-env " + c.Env[0]
	} else {
		add += " --from-env VARIABLE --for https://HOST/**"
	}
	return cell.Errorf(cell.NotFound, "credential.Get", "store it with `"+add+"`", "no credential %s", cell.Clip(name))
}

// Check reads a credential again from the disk and tells what is wrong with
// it: nothing, when there is nothing to say.
func (s *Store) Check(name string) (c Credential, problems []string, err error) {
	s.mu.Lock()
	old := s.all[name]
	if old == nil && s.broken[name] == nil {
		s.mu.Unlock()
		return c, nil, s.missing(name)
	}
	rec, err := s.read(name)
	s.mu.Unlock()
	if err != nil {
		return c, []string{err.Error()}, nil
	}
	if rec.Login != nil {
		now, err := s.loginNow(context.Background(), name, rec.Login)
		if rec.Expires = now.expires; err != nil {
			return rec.Credential, []string{err.Error() + ": " + cell.HintOf(err)}, nil
		}
		if rec.Expired(time.Now()) {
			problems = append(problems, rec.Login.Expired())
		}
		return rec.Credential, problems, nil
	}
	if old == nil || old.Value != rec.Value {
		problems = append(problems, "the file is not what the daemon has in memory: stop the daemon to read it anew")
	}
	if fit := Complete(Credential{Name: name, Kind: rec.Kind}, Secret{rec.Value}); len(fit.Env) > 0 && rec.Kind == Token {
		problems = append(problems, suspect(name, rec.Value)...)
	}
	return rec.Credential, problems, nil
}

// suspect says what is strange about a value of a well-known service. Services
// change their tokens, so nothing is refused for it.
func suspect(name, value string) []string {
	shapes := secret.Prefixes(name)
	for _, p := range shapes {
		if strings.HasPrefix(value, p) {
			return nil
		}
	}
	if len(shapes) == 0 {
		return nil
	}
	return []string{"the value does not begin with " + strings.Join(shapes, " or ") + ", as tokens of " + name + " do"}
}
