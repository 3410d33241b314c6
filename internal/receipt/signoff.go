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

// PredicateSignOff is the type of what an approver signs, with a key that is not the installation's.
const PredicateSignOff = "https://pando.dev/sign-off/v1"

// A SignOff is what an approver says of changes that are offered for acceptance.
type SignOff struct {
	Decision string    `json:"decision"` // SignApprove or SignReject
	Approver string    `json:"approver"` // name, as in the policy
	Ledger   string    `json:"ledger"`   // origin of the installation's ledger
	Cell     string    `json:"cell"`
	Runs     []string  `json:"runs"`             // that made the changes
	Base     string    `json:"base"`             // content digest of what they are changes to
	After    string    `json:"after"`            // content digest of what they lead to
	Commit   string    `json:"commit,omitempty"` // checked out in the cell
	Policy   string    `json:"policy"`           // digest of the policy of the newest of the runs
	Message  string    `json:"message,omitempty"`
	At       time.Time `json:"at"`
}

// The decisions of approvers.
const (
	SignApprove = "approve"
	SignReject  = "reject"
)

// signOffSubject is the name of a sign-off's subject.
const signOffSubject = "changes"

// ChangesDigest names the changes from one content digest to another.
func ChangesDigest(base, after string) cell.Digest {
	return cell.Sum(fmt.Appendf(nil, "pando changes 1\n%s\n%s\n", base, after))
}

// SignOffBy signs a sign-off of changes with a digest.
func SignOffBy(s Signer, changes cell.Digest, o SignOff) ([]byte, error) {
	payload, err := json.Marshal(signOffStatement{StatementType, []Subject{{signOffSubject, changes}}, PredicateSignOff, o})
	if err != nil {
		return nil, err
	}
	return seal(s, payload)
}

type signOffStatement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     SignOff   `json:"predicate"`
}

// OpenSignOff reads a sign-off that key has to have made.
func OpenSignOff(envelope []byte, key PublicKey) (changes cell.Digest, o SignOff, err error) {
	bad := func(kind cell.Kind, why string) (cell.Digest, SignOff, error) {
		return cell.Digest{}, SignOff{}, cell.Errorf(kind, "receipt.OpenSignOff", "make it with pando approve", "cannot use the sign-off: %s", why)
	}
	e, err := parseEnvelope(envelope)
	if err != nil {
		return bad(cell.Invalid, "it is no envelope of pando")
	}
	if e.keyid != key.ID() || !e.signedBy(key) {
		return bad(cell.Denied, "it is not signed with the key "+key.ID())
	}
	var s signOffStatement
	d := json.NewDecoder(bytes.NewReader(e.payload))
	d.DisallowUnknownFields()
	if d.Decode(&s) != nil || d.InputOffset() != int64(len(e.payload)) || s.Type != StatementType || s.PredicateType != PredicateSignOff ||
		len(s.Subject) != 1 || s.Subject[0].Name != signOffSubject {
		return bad(cell.Invalid, "it is no statement of that type")
	}
	if s.Predicate.Decision != SignApprove && s.Predicate.Decision != SignReject {
		return bad(cell.Invalid, "it neither approves nor rejects")
	}
	if s.Subject[0].Digest != ChangesDigest(s.Predicate.Base, s.Predicate.After) {
		return bad(cell.Invalid, "its subject is not the digest of the changes that it describes")
	}
	s.Predicate.At = s.Predicate.At.UTC()
	if written, err := json.Marshal(s); err != nil || !bytes.Equal(written, e.payload) { // two readers of it must not read two things
		return bad(cell.Invalid, "it is not written as pando writes it")
	}
	return s.Subject[0].Digest, s.Predicate, nil
}

// SignOffKey is the id of the key that an envelope says it is signed with; "" for no envelope.
func SignOffKey(envelope []byte) string {
	e, err := parseEnvelope(envelope)
	if err != nil {
		return ""
	}
	return e.keyid
}

// PublicKeyOf makes a PublicKey of its bytes.
func PublicKeyOf(key ed25519.PublicKey) (PublicKey, error) { return newPublicKey(key) }

// Raw is the key's 32 bytes.
func (p PublicKey) Raw() ed25519.PublicKey { return p.key }

// SignedOff is what a receipt of an act says of a sign-off.
type SignedOff struct {
	Act    string `json:"act"` // SignApprove or SignReject, of one
	Cell   string `json:"cell"`
	Digest string `json:"digest"` // of the changes
	// Says is what the receipt has of the approver's statement; nil for nothing.
	Says *struct {
		Approver string    `json:"approver"`
		Key      string    `json:"key"` // "ed25519:" and its 32 bytes in base64
		Decision string    `json:"decision"`
		Digest   string    `json:"digest"`
		Commit   string    `json:"commit"`
		Runs     []string  `json:"runs"`
		Message  string    `json:"message"`
		At       time.Time `json:"at"`
		Envelope string    `json:"envelope"`
	} `json:"sign_off"`
}

// Fault says what is wrong with it: the approver's signature, or that the approver said something else than the receipt, or of something else; ""
// for nothing. ledger is the origin of the installation's. That the key is an approver's is for the policy to say.
func (s *SignedOff) Fault(ledger string) string {
	r := s.Says
	if decided := s.Act == SignApprove || s.Act == SignReject; r == nil && !decided {
		return ""
	} else if r == nil {
		return "it has no statement of an approver"
	}
	text, ok := strings.CutPrefix(r.Key, "ed25519:")
	raw, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(raw) != ed25519.PublicKeySize {
		return "the sign-off of " + cell.Clip(r.Approver) + " names no key"
	}
	key, err := newPublicKey(raw)
	if err != nil {
		return err.Error()
	}
	digest, says, err := OpenSignOff([]byte(r.Envelope), key)
	switch {
	case err != nil:
		return fmt.Sprintf("the sign-off of %s: %v", cell.Clip(r.Approver), err)
	case says.Decision != s.Act || says.Cell != s.Cell || digest.String() != s.Digest || says.Ledger != ledger,
		says.Decision != r.Decision || digest.String() != r.Digest || says.Approver != r.Approver,
		says.Commit != r.Commit || says.Message != r.Message || !says.At.Equal(r.At) || !slices.Equal(says.Runs, r.Runs):
		return "the sign-off of " + cell.Clip(r.Approver) + " says something else than its receipt"
	}
	return ""
}
