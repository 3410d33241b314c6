package cell

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
)

// ID identifies a cell for ever: "c-" and 16 hexadecimal digits.
type ID string

// RunID identifies a run: "r-" and 16 hexadecimal digits.
type RunID string

// RaceID identifies a race: "x-" and 16 hexadecimal digits.
type RaceID string

// CheckpointID identifies a checkpoint: "k-" and 16 hexadecimal digits.
type CheckpointID string

// NewID returns a random cell identifier.
func NewID() ID { return ID("c-" + randomHex()) }

// NewRunID returns a random run identifier.
func NewRunID() RunID { return RunID("r-" + randomHex()) }

// NewRaceID returns a random race identifier.
func NewRaceID() RaceID { return RaceID("x-" + randomHex()) }

// NewCheckpointID returns a random checkpoint identifier.
func NewCheckpointID() CheckpointID { return CheckpointID("k-" + randomHex()) }

// NewRequestID returns a random identifier of one request to a policy: "q-" and
// 16 hexadecimal digits.
func NewRequestID() string { return "q-" + randomHex() }

func randomHex() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand.Read ends the process instead
	return hex.EncodeToString(b[:])
}

// CheckName rejects what is not a name for a cell, a template or a tag. It must run before
// a name becomes part of any path. Names in the form of an identifier are rejected, so that
// a selector has one meaning.
func CheckName(name string) error {
	if !nameShaped(name) {
		return &Error{
			Op: "cell.CheckName", Kind: Invalid,
			Hint: "use letters, digits, '.', '_' and '-', at most 64, starting with a letter, a digit or '_'",
			Err:  fmt.Errorf("%q is not a name", Clip(name)),
		}
	}
	if IsID(name) {
		return &Error{
			Op: "cell.CheckName", Kind: Invalid,
			Hint: "choose a name that does not look like an identifier of pando",
			Err:  fmt.Errorf("%q looks like an identifier", name),
		}
	}
	return nil
}

// nameShaped matches [A-Za-z0-9_][A-Za-z0-9._-]{0,63}. It is written by hand, because
// compiling a pattern would slow down every start of the program.
func nameShaped(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_':
		case i > 0 && (c == '.' || c == '-'):
		default:
			return false
		}
	}
	return len(s) > 0 && len(s) <= 64
}

// IsID reports whether s has the form of an identifier, or of a prefix of one with at least
// four digits.
func IsID(s string) bool {
	if len(s) < 6 || len(s) > 18 || !strings.ContainsRune("crkx", rune(s[0])) || s[1] != '-' {
		return false
	}
	return strings.Trim(s[2:], "0123456789abcdef") == ""
}

// Clip cuts what a caller wrote to what an error can show of it.
func Clip(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
