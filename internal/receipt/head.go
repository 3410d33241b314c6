package receipt

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/pando-dev/pando/internal/cell"
)

// A Head says what a ledger was at one moment. Note is the signed form, a
// C2SP checkpoint (https://c2sp.org/tlog-checkpoint); its text is
//
//	pando.dev/ledger/0123456789abcdef
//	SIZE
//	ROOT in base64
//	keys sha256:…
//
// The last line is that of a ledger with keys that have changed: the receipt of the newest change, so that none can be left out.
type Head struct {
	Size int64       `json:"size"`
	Root cell.Digest `json:"root"`
	Note []byte      `json:"-"`

	change cell.Digest // the newest of its keys
}

// noteSigner lets a Signer sign notes.
type noteSigner struct {
	note.Verifier
	sign func([]byte) ([]byte, error)
}

func (s noteSigner) Sign(message []byte) ([]byte, error) { return s.sign(message) }

// noteVerifier returns what checks notes of key.
func noteVerifier(origin string, key PublicKey) (note.Verifier, error) {
	text, err := note.NewEd25519VerifierKey(origin, key.key)
	if err != nil {
		return nil, err
	}
	return note.NewVerifier(text)
}

func signHead(s Signer, keys *Keys, size int64, root cell.Digest) (Head, error) {
	v, err := noteVerifier(keys.Origin(), s.Public())
	if err != nil {
		return Head{}, err
	}
	h := Head{Size: size, Root: root, change: keys.last().change}
	h.Note, err = note.Sign(&note.Note{Text: h.text(v.Name())}, noteSigner{v, s.Sign})
	if err != nil {
		return Head{}, fmt.Errorf("cannot sign the ledger's head: %w", err)
	}
	return h, nil
}

func (h Head) text(origin string) string {
	text := fmt.Sprintf("%s\n%d\n%s\n", origin, h.Size, base64.StdEncoding.EncodeToString(h.Root[:]))
	if !h.change.IsZero() {
		text += headKeys + h.change.String() + "\n"
	}
	return text
}

// headKeys is before the newest change of keys.
const headKeys = "keys "

// ParseHead reads a signed head. One that was not signed by the key of that moment is Corrupt.
func ParseHead(b []byte, keys *Keys) (Head, error) {
	h, reason, what := checkHead(b, keys)
	if reason != "" {
		return Head{}, cell.Errorf(cell.Corrupt, "receipt.ParseHead", "", "cannot trust the head: %s", what)
	}
	return h, nil
}

// checkHead reads a head and says what is wrong with it. As far as it can be
// read it is returned also when its signature is wrong. It can be of any moment of
// the history; see fresh.
func checkHead(b []byte, keys *Keys) (h Head, reason Reason, what string) {
	origin, h, err := readHead(b)
	if err != nil {
		return Head{Size: -1}, Edited, err.Error()
	}
	at := slices.IndexFunc(keys.links, func(l keyLink) bool { return l.change == h.change })
	key := keys.links[max(at, 0)].key
	if at < 0 {
		key = keys.Current()
	}
	v, err := noteVerifier(keys.Origin(), key)
	if err != nil {
		return h, WrongKey, "the public key can't verify heads"
	}
	n, err := note.Open(b, note.VerifierList(v))
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case err == nil && (n.Text != h.text(origin) || !canonical(n.Sigs[0].Base64)):
		return h, Edited, "the head is spelled in an odd way"
	case err == nil && origin == keys.Origin() && at < 0:
		return h, Dropped, "the change of keys that the head names is missing: receipt " + h.change.Short()
	case err == nil && origin == keys.Origin() && at+1 < len(keys.links) && keys.links[at+1].key.ID() != key.ID() && h.Size > keys.links[at+1].index:
		return h, WrongKey, fmt.Sprintf("the head of %d receipts is signed by a key that was replaced by receipt %d", h.Size, keys.links[at+1].index)
	case err == nil && origin == keys.Origin():
		return h, "", ""
	case errors.As(err, &invalid):
		return h, Edited, "the head's signature is wrong"
	case errors.As(err, &unverified):
		return h, WrongKey, "the head is signed by another key, of " + origin
	case err == nil:
		return h, WrongKey, "the head belongs to the ledger " + origin
	}
	return h, Edited, "the head is not a signed note"
}

// fresh says what is wrong with a genuine head that is to be the newest: that it is not signed by the newest key, or knows less of
// the keys than is known otherwise. A head that is covered by another one need not be.
func (h Head) fresh(keys *Keys) (reason Reason, what string) {
	if h.change == keys.last().change {
		return "", ""
	}
	return WrongKey, fmt.Sprintf("the head is of before the change of keys in receipt %d", keys.last().index)
}

// canonical reports whether text is the one way to write its bytes.
func canonical(text string) bool {
	b, err := base64.StdEncoding.DecodeString(text)
	return err == nil && base64.StdEncoding.EncodeToString(b) == text
}

// ReadHead reads a head, of which nothing is checked.
func ReadHead(b []byte) (Head, error) {
	_, h, err := readHead(b)
	if err != nil {
		return h, cell.Errorf(cell.Corrupt, "receipt.ReadHead", "", "cannot read the head: %w", err)
	}
	return h, nil
}

// readHead reads the text of a head and trusts nothing.
func readHead(b []byte) (origin string, h Head, err error) {
	bad := errors.New("the head is not a checkpoint of pando")
	text, _, ok := strings.Cut(string(b), "\n\n")
	lines := strings.Split(text, "\n")
	if !ok || len(lines) < 3 || len(lines) > 4 || lines[0] == "" {
		return "", h, bad
	}
	h.Size, err = strconv.ParseInt(lines[1], 10, 64)
	if err != nil || h.Size < 0 || strconv.FormatInt(h.Size, 10) != lines[1] {
		return "", h, bad
	}
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if err != nil || len(root) != len(h.Root) {
		return "", h, bad
	}
	h.Root = cell.Digest(root)
	if len(lines) == 4 {
		name, ok := strings.CutPrefix(lines[3], headKeys)
		if h.change, err = cell.ParseDigest(name); !ok || err != nil || h.change.IsZero() {
			return "", h, bad
		}
	}
	h.Note = b
	return lines[0], h, nil
}
