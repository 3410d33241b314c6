package receipt

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// PredicateKey is the type of receipts that change which key signs, or that revoke one. The ledger writes them; Append refuses it.
const PredicateKey = "https://pando.dev/key/v1"

// What a KeyChange does.
const (
	KeyRotate = "rotate" // another key signs from the next receipt on
	KeyRevoke = "revoke" // what a key signed from some receipt on counts for nothing
)

// A KeyChange is what a receipt of a change of keys says. It is signed by the key that signs until then.
type KeyChange struct {
	Act      string      `json:"act"`               // KeyRotate or KeyRevoke
	By       string      `json:"by"`                // the public key that signs this, "ed25519:" and 32 bytes in base64
	Previous cell.Digest `json:"previous,omitzero"` // the receipt of the change before
	Next     *NextKey    `json:"next,omitempty"`
	Revoked  *RevokedKey `json:"revoked,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	At       time.Time   `json:"at"` // UTC
}

// A NextKey is the key that signs from the next receipt on. Its own signature shows that there is a private half, and that it
// goes on from exactly this ledger.
type NextKey struct {
	Key   string `json:"key"`   // as By
	Proof string `json:"proof"` // base64
}

// A RevokedKey is a key by which signatures of receipts from an index on count for nothing.
type RevokedKey struct {
	Key   string `json:"key"` // its ID
	Since int64  `json:"since"`
}

// Text is the key as "ed25519:" and its 32 bytes in base64.
func (p PublicKey) Text() string { return keyText + base64.StdEncoding.EncodeToString(p.key) }

const keyText = "ed25519:"

// ParseKeyText reads what Text wrote.
func ParseKeyText(s string) (PublicKey, error) {
	text, ok := strings.CutPrefix(s, keyText)
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(raw) != ed25519.PublicKeySize {
		return PublicKey{}, cell.Errorf(cell.Invalid, "receipt.ParseKeyText", "", "cannot use a public key: it is not ed25519: and 32 bytes in base64")
	}
	return newPublicKey(raw)
}

// goesOn is what the next key signs.
func goesOn(origin string, at Position, old, next PublicKey) []byte {
	return fmt.Appendf(nil, "pando ledger key 1\n%s\n%d\n%s\n%s\n%s\n", origin, at.Index, at.Root, old.ID(), next.ID())
}

// Keys is the history of the keys of one ledger: which of them signs which receipts.
type Keys struct {
	links   []keyLink
	revoked map[string]int64 // ids of keys, and the receipt from which on they count for nothing
}

// A keyLink is the state after a change of keys; the first is that before any.
type keyLink struct {
	key    PublicKey
	index  int64       // of the change, -1 for none
	change cell.Digest // its receipt, zero for none
}

func keysOf(first PublicKey) *Keys {
	return &Keys{links: []keyLink{{first, -1, cell.Digest{}}}, revoked: map[string]int64{}}
}

func (k *Keys) clone() *Keys {
	c := &Keys{slices.Clone(k.links), map[string]int64{}}
	for id, since := range k.revoked {
		c.revoked[id] = since
	}
	return c
}

func (k *Keys) last() *keyLink { return &k.links[len(k.links)-1] }

// Current is the key that signs what comes next.
func (k *Keys) Current() PublicKey { return k.last().key }

// Origin is the name of the ledger. It is that of its first key, whatever key signs later.
func (k *Keys) Origin() string { return k.links[0].key.Origin() }

// Has reports whether a key is one of the ledger's, revoked or not.
func (k *Keys) Has(key PublicKey) bool { return k.byID(key.ID()) != nil }

func (k *Keys) byID(id string) *PublicKey {
	for i := range k.links {
		if k.links[i].key.id == id {
			return &k.links[i].key
		}
	}
	return nil
}

// begin reports whether a history is the beginning of k.
func (k *Keys) begin(with *Keys) bool {
	return len(with.links) <= len(k.links) && with.links[0].key.id == k.links[0].key.id && with.last().change == k.links[len(with.links)-1].change
}

// at is the key that signs the receipt with an index.
func (k *Keys) at(index int64) PublicKey {
	i := len(k.links) - 1
	for i > 0 && k.links[i].index >= index {
		i--
	}
	return k.links[i].key
}

// counts reports whether what a key signed as the receipt with an index was not revoked.
func (k *Keys) counts(id string, index int64) bool {
	since, ok := k.revoked[id]
	return !ok || index < since
}

// changes reports whether a receipt is one of the history.
func (k *Keys) changes(id cell.Digest) bool {
	return slices.ContainsFunc(k.links[1:], func(l keyLink) bool { return l.change == id })
}

// A KeyState is one key of a ledger: which receipts it signs, and how far they count.
type KeyState struct {
	Key     PublicKey
	First   int64  // the first receipt that it signs
	Next    int64  // the first that the next key signs, -1 for the key that signs now
	Revoked *int64 // the first receipt that its signature does not count for
}

// List returns the keys in their order.
func (k *Keys) List() (list []KeyState) {
	for _, l := range k.links {
		if n := len(list); n > 0 {
			if list[n-1].Key.id == l.key.id {
				continue
			}
			list[n-1].Next = l.index + 1
		}
		s := KeyState{Key: l.key, First: l.index + 1, Next: -1}
		if since, ok := k.revoked[l.key.id]; ok {
			s.Revoked = &since
		}
		list = append(list, s)
	}
	return list
}

// ReadKeys reads the history of a ledger from the receipts that changed its keys, which have to be all of them up to some moment,
// in their order. pinned, which the caller trusts, has to be one of the keys. Without changes it is the only one.
func ReadKeys(pinned PublicKey, changes []Proven) (*Keys, error) {
	k, p := readKeys(pinned, changes)
	if p != nil {
		return nil, cell.Errorf(cell.Corrupt, "receipt.ReadKeys", "", "cannot trust the history of keys: %s", p.What)
	}
	return k, nil
}

func readKeys(pinned PublicKey, changes []Proven) (*Keys, *Problem) {
	if len(changes) == 0 {
		return keysOf(pinned), nil
	}
	var k *Keys
	for i := range changes {
		c := &changes[i]
		if k == nil {
			k = keysOf(pinned)
			if e, s, err := parseChange(c.Envelope); err == nil {
				if first, err := ParseKeyText(s.By); err == nil && e.keyid == first.ID() {
					k = keysOf(first)
				}
			}
		}
		if reason, what := k.extend(c.Index, c.Envelope); reason != "" {
			return nil, &Problem{Reason: reason, Index: c.Index, What: what}
		}
	}
	if !k.Has(pinned) {
		return nil, &Problem{Reason: WrongKey, Index: -1, What: "the keys of the ledger " + k.Origin() + " do not lead to the key " + pinned.ID()}
	}
	return k, nil
}

// change is a KeyChange in its envelope.
type change struct {
	KeyChange
	at Position
}

func parseChange(rec []byte) (e envelope, c change, err error) {
	if e, err = parseEnvelope(rec); err != nil {
		return e, c, err
	}
	s, err := parseStatement(e.payload)
	if err != nil {
		return e, c, err
	}
	if s.PredicateType != PredicateKey {
		return e, c, errStatement
	}
	if err := decodeChange(s.own, &c.KeyChange); err != nil {
		return e, c, err
	}
	c.at = s.Binding.Ledger
	return e, c, nil
}

// decodeChange accepts one way to write a change, so that no two readers read two things.
func decodeChange(members []byte, c *KeyChange) error {
	text := slices.Concat([]byte("{"), members, []byte("}"))
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return err
	}
	c.At = c.At.UTC()
	if again, err := json.Marshal(c); err != nil || !bytes.Equal(again, text) {
		return errStatement
	}
	return nil
}

// extend adds the change that the receipt with an index makes, or says why it is none.
func (k *Keys) extend(index int64, rec []byte) (reason Reason, what string) {
	old := k.last()
	e, c, err := parseChange(rec)
	good := err == nil && e.signedBy(old.key)
	switch {
	case err != nil:
		return Edited, fmt.Sprintf("receipt %d is no change of keys", index)
	case !good && e.keyid != old.key.ID():
		return WrongKey, fmt.Sprintf("the change of keys in receipt %d is signed by another key", index)
	case !good || e.keyid != old.key.ID():
		return Edited, fmt.Sprintf("the signature of receipt %d, a change of keys, is not right", index)
	case c.Previous != old.change:
		return Dropped, fmt.Sprintf("a change of keys before receipt %d is missing", index)
	case c.at.Index != index || index <= old.index:
		return Reordered, fmt.Sprintf("receipt %d, a change of keys, stands in the place of receipt %d", c.at.Index, index)
	}
	bad := func(why string) (Reason, string) {
		return Edited, fmt.Sprintf("receipt %d is no change of keys: %s", index, why)
	}
	next := old.key
	if c.Next != nil {
		proof, err := base64.StdEncoding.DecodeString(c.Next.Proof)
		if next, _ = ParseKeyText(c.Next.Key); err != nil || k.Has(next) || !next.Verify(goesOn(k.Origin(), c.at, old.key, next), proof) {
			return WrongKey, fmt.Sprintf("the key that receipt %d names as the next one has not stated that it goes on from there", index)
		}
	}
	switch {
	case c.By != old.key.Text():
		return bad("it names another key as its own")
	case c.Act == KeyRotate && (c.Next == nil || c.Revoked != nil), c.Act == KeyRevoke && c.Revoked == nil, c.Act != KeyRotate && c.Act != KeyRevoke:
		return bad("it neither rotates nor revokes")
	case c.Revoked != nil && (k.byID(c.Revoked.Key) == nil || c.Revoked.Since < 0 || c.Revoked.Since > index):
		return bad("it revokes no key of the ledger, or from no receipt before it")
	case c.Revoked != nil && (c.Revoked.Key == old.key.ID()) != (c.Next != nil):
		return bad("a key that signs is revoked with one that goes on, and no other is")
	}
	if c.Revoked != nil {
		since, ok := k.revoked[c.Revoked.Key]
		if !ok || c.Revoked.Since < since {
			k.revoked[c.Revoked.Key] = c.Revoked.Since
		}
	}
	k.links = append(k.links, keyLink{next, index, cell.Sum(rec)})
	return "", ""
}

// mayBeChange tells quickly whether an envelope can be one of a change of keys.
func mayBeChange(rec []byte) bool { return bytes.HasPrefix(rec, changePrefix) }

// changePrefix is how each begins: base64 of what fills whole groups of it.
var changePrefix = func() []byte {
	text := part1 + PredicateKey + part2
	return append([]byte(envelope1), base64.StdEncoding.EncodeToString([]byte(text[:len(text)/3*3]))...)
}()
