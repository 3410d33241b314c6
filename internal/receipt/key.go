package receipt

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// The files of a key, in a directory that belongs to its owner alone.
const (
	KeyFile    = "receipt.key" // PKCS#8, PEM, mode 0600
	PublicFile = "receipt.pub" // PKIX, PEM, mode 0644
)

// A Signer signs receipts and heads. It is safe for concurrent use.
type Signer interface {
	Public() PublicKey
	Sign(message []byte) (signature []byte, err error)
}

// A PublicKey is all that verification needs.
type PublicKey struct {
	key ed25519.PublicKey
	id  string
}

func newPublicKey(key ed25519.PublicKey) (PublicKey, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return PublicKey{}, err
	}
	return PublicKey{key, cell.Sum(der).String()}, nil
}

// ID is "sha256:" and the digest of the key in PKIX form.
func (p PublicKey) ID() string { return p.id }

// Origin is the name of the ledger that this key signs.
func (p PublicKey) Origin() string { return "pando.dev/ledger/" + p.id[len("sha256:"):][:16] }

// PEM returns the key in PKIX form, as receipt.pub has it.
func (p PublicKey) PEM() []byte {
	der, _ := x509.MarshalPKIXPublicKey(p.key) // it was marshalled before
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// Verify reports whether signature is this key's for message.
func (p PublicKey) Verify(message, signature []byte) bool {
	return len(p.key) == ed25519.PublicKeySize && ed25519.Verify(p.key, message, signature)
}

// ParsePublicKey reads the form of receipt.pub.
func ParsePublicKey(text []byte) (PublicKey, error) {
	bad := func(why string) (PublicKey, error) {
		return PublicKey{}, cell.Errorf(cell.Invalid, "receipt.ParsePublicKey", "give the file "+PublicFile+" of the installation that wrote the receipts", "cannot use the public key: %s", why)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" || len(rest) != 0 {
		return bad("it is not one PEM block PUBLIC KEY")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return bad("it is not in PKIX form")
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return bad("it is not an Ed25519 key")
	}
	return newPublicKey(key)
}

// LoadPublicKey reads receipt.pub.
func LoadPublicKey(fsys durable.FS) (PublicKey, error) {
	text, err := durable.ReadFile(fsys, PublicFile)
	if err != nil {
		return PublicKey{}, err
	}
	return ParsePublicKey(text)
}

// A Key is the installation's own Signer.
type Key struct {
	private ed25519.PrivateKey
	public  PublicKey
}

// OpenKey loads the key in a directory and makes it on first use. A key file
// that others can read is refused, and so is a directory that has lost its
// key: a new one in silence would make all earlier receipts look foreign. The
// caller sees to it that only one process makes a key at a time.
func OpenKey(fsys durable.FS) (*Key, error) {
	k, err := readKey(fsys, KeyFile)
	if cell.KindOf(err) == cell.NotFound {
		return makeKey(fsys)
	}
	if err != nil {
		return nil, err
	}
	return k, k.publish(fsys)
}

func readKey(fsys durable.FS, name string) (*Key, error) {
	text, info, err := durable.ReadInfo(fsys, name)
	if err != nil {
		return nil, err
	}
	if info.Perm&0o077 != 0 {
		return nil, cell.Errorf(cell.Denied, "receipt.OpenKey", "make it private with chmod 600, or make a new key if others may have read it",
			"cannot use %s: others on this host can read it (mode %04o)", name, info.Perm)
	}
	return parseKey(text)
}

func makeKey(fsys durable.FS) (*Key, error) {
	if _, err := durable.ReadFile(fsys, PublicFile); cell.KindOf(err) != cell.NotFound {
		if err != nil {
			return nil, err
		}
		return nil, cell.Errorf(cell.NotFound, "receipt.OpenKey", "restore it from a backup, or move "+PublicFile+" and the ledger away to begin anew",
			"cannot find %s, to which %s belongs", KeyFile, PublicFile)
	}
	k, err := newKeyFile(fsys, KeyFile)
	if err != nil {
		return nil, err
	}
	return k, k.publish(fsys)
}

func newKeyFile(fsys durable.FS, name string) (*Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := durable.WriteFile(fsys, name, text, 0o600); err != nil {
		return nil, err
	}
	return parseKey(text)
}

func parseKey(text []byte) (*Key, error) {
	bad := func(why string) (*Key, error) {
		return nil, cell.Errorf(cell.Corrupt, "receipt.OpenKey", "restore it from a backup", "cannot use %s: %s", KeyFile, why)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" || len(rest) != 0 {
		return bad("it is not one PEM block PRIVATE KEY")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return bad("it is not in PKCS#8 form")
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return bad("it is not an Ed25519 key")
	}
	public, err := newPublicKey(private.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	return &Key{private, public}, nil
}

// publish writes receipt.pub where it is missing, as after a crash between
// the two files, and refuses one that belongs to another key.
func (k *Key) publish(fsys durable.FS) error {
	text, err := durable.ReadFile(fsys, PublicFile)
	if cell.KindOf(err) == cell.NotFound {
		return durable.WriteFile(fsys, PublicFile, k.public.PEM(), 0o644)
	}
	if err == nil && string(text) != string(k.public.PEM()) {
		err = cell.Errorf(cell.Corrupt, "receipt.OpenKey", "restore both files from one backup", "cannot use %s: %s belongs to another key", KeyFile, PublicFile)
	}
	return err
}

// Public returns the key that verifies what k signs.
func (k *Key) Public() PublicKey { return k.public }

// Sign implements Signer.
func (k *Key) Sign(message []byte) ([]byte, error) { return ed25519.Sign(k.private, message), nil }

// A Key never shows itself.
func (k *Key) String() string               { return "[secret]" }
func (k *Key) GoString() string             { return "[secret]" }
func (k *Key) LogValue() slog.Value         { return slog.StringValue("[secret]") }
func (k *Key) MarshalJSON() ([]byte, error) { return []byte(`"[secret]"`), nil }

var _ fmt.GoStringer = (*Key)(nil)
