package cell

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// Digest is a SHA-256 sum. Its text form, also in JSON, is "sha256:" and 64 hexadecimal
// digits; that of the zero Digest is the empty string.
type Digest [sha256.Size]byte

// Sum returns the digest of b.
func Sum(b []byte) Digest { return sha256.Sum256(b) }

// SumReader returns the digest of everything r yields.
func SumReader(r io.Reader) (d Digest, err error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return d, err
	}
	h.Sum(d[:0])
	return d, nil
}

// IsZero reports whether d was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return "sha256:" + hex.EncodeToString(d[:])
}

// Short returns the first 12 hexadecimal digits, for people.
func (d Digest) Short() string {
	if d.IsZero() {
		return ""
	}
	return hex.EncodeToString(d[:6])
}

// ParseDigest reads the text form.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if s == "" {
		return d, nil
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(s, "sha256:"))
	if err != nil || len(raw) != len(d) || !strings.HasPrefix(s, "sha256:") {
		return d, &Error{Op: "cell.ParseDigest", Kind: Invalid, Err: fmt.Errorf("%q is not a SHA-256 digest", Clip(s))}
	}
	copy(d[:], raw)
	return d, nil
}

// MarshalText gives the text form.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form.
func (d *Digest) UnmarshalText(b []byte) error {
	v, err := ParseDigest(string(b))
	*d = v
	return err
}
