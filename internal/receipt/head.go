package receipt

import (
	"encoding/base64"
	"errors"
	"fmt"
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
type Head struct {
	Size int64       `json:"size"`
	Root cell.Digest `json:"root"`
	Note []byte      `json:"-"`
}

// noteSigner lets a Signer sign notes.
type noteSigner struct {
	note.Verifier
	sign func([]byte) ([]byte, error)
}

func (s noteSigner) Sign(message []byte) ([]byte, error) { return s.sign(message) }

// noteVerifier returns what checks notes of key.
func noteVerifier(key PublicKey) (note.Verifier, error) {
	text, err := note.NewEd25519VerifierKey(key.Origin(), key.key)
	if err != nil {
		return nil, err
	}
	return note.NewVerifier(text)
}

func signHead(s Signer, size int64, root cell.Digest) (Head, error) {
	v, err := noteVerifier(s.Public())
	if err != nil {
		return Head{}, err
	}
	b, err := note.Sign(&note.Note{Text: headText(v.Name(), size, root)}, noteSigner{v, s.Sign})
	if err != nil {
		return Head{}, fmt.Errorf("cannot sign the ledger's head: %w", err)
	}
	return Head{Size: size, Root: root, Note: b}, nil
}

func headText(origin string, size int64, root cell.Digest) string {
	return fmt.Sprintf("%s\n%d\n%s\n", origin, size, base64.StdEncoding.EncodeToString(root[:]))
}

// ParseHead reads a signed head. One that key has not signed is Corrupt.
func ParseHead(b []byte, key PublicKey) (Head, error) {
	h, reason, what := checkHead(b, key)
	if reason != "" {
		return Head{}, cell.Errorf(cell.Corrupt, "receipt.ParseHead", "", "cannot trust the head: %s", what)
	}
	return h, nil
}

// checkHead reads a head and says what is wrong with it. As far as it can be
// read it is returned also when its signature is wrong.
func checkHead(b []byte, key PublicKey) (h Head, reason Reason, what string) {
	origin, h, err := readHead(b)
	if err != nil {
		return Head{Size: -1}, Edited, err.Error()
	}
	v, err := noteVerifier(key)
	if err != nil {
		return h, WrongKey, "the public key can't verify heads"
	}
	n, err := note.Open(b, note.VerifierList(v))
	var unverified *note.UnverifiedNoteError
	var invalid *note.InvalidSignatureError
	switch {
	case err == nil && (n.Text != headText(origin, h.Size, h.Root) || !canonical(n.Sigs[0].Base64)):
		return h, Edited, "the head is spelled in an odd way"
	case err == nil && origin == key.Origin():
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

// canonical reports whether text is the one way to write its bytes.
func canonical(text string) bool {
	b, err := base64.StdEncoding.DecodeString(text)
	return err == nil && base64.StdEncoding.EncodeToString(b) == text
}

// readHead reads the text of a head and trusts nothing.
func readHead(b []byte) (origin string, h Head, err error) {
	bad := errors.New("the head is not a checkpoint of three lines")
	text, _, ok := strings.Cut(string(b), "\n\n")
	lines := strings.Split(text, "\n")
	if !ok || len(lines) != 3 || lines[0] == "" {
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
	h.Note = b
	return lines[0], h, nil
}
