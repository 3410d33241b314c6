package credential

import (
	"fmt"
	"io"
	"log/slog"
)

// hidden is what a Secret looks like wherever it is written.
const hidden = "[secret]"

// A Secret is a value that nothing prints, encodes or logs by accident.
type Secret struct{ value string }

// NewSecret makes a Secret of a value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal returns the value. It stands where the value is put to use, and
// nowhere else.
func (s Secret) Reveal() string { return s.value }

// String returns "[secret]".
func (s Secret) String() string { return hidden }

// Format writes "[secret]", whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, hidden) }

// MarshalText returns "[secret]"; so does JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue returns "[secret]".
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
