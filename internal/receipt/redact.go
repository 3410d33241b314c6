package receipt

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/secret"
)

// Redacted is what stands in the place of a secret.
const Redacted = "[secret]"

// minSecret is the length of the shortest value that can be looked for, in
// bytes. A shorter one is in every text by chance.
const minSecret = 4

// A Redactor takes secrets out of what is written down: values that it was
// told, and whatever has the shape of a token. It finds them also in base64
// and hexadecimal, escaped as in JSON, shells or URLs, wrapped over lines,
// and with terminal escapes between their characters. It takes time in
// proportion to the text, and memory for a few copies of it. It is safe for concurrent use; the zero Redactor
// knows shapes only.
type Redactor struct {
	mu      sync.RWMutex
	values  map[string]bool
	needles *matcher // of all forms of all values; nil when there is none
}

// Add makes a value known. It is Invalid when the value is too short to be
// looked for: such a secret can't be kept out of files.
func (r *Redactor) Add(value string) error {
	trimmed := strings.TrimSpace(value)
	if len(trimmed) < minSecret {
		return cell.Errorf(cell.Invalid, "receipt.Redactor", "use a longer secret", "cannot keep a secret of %d characters out of the records", len(trimmed))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = map[string]bool{}
	}
	r.values[trimmed] = true
	// The lines of a long one (a private key, a file of credentials) may be
	// printed with something before each.
	for line := range strings.Lines(trimmed) {
		if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") {
			r.values[line] = true
		}
	}
	m := newMatcher()
	for v := range r.values {
		for _, n := range forms(v) {
			m.add(n)
		}
	}
	m.link()
	r.needles = m
	return nil
}

// forms returns what is looked for to find a value.
func forms(v string) []needle {
	all := []needle{{text: v}}
	if strings.Contains(v, " ") {
		all = append(all, needle{text: strings.ReplaceAll(v, " ", "+")}) // forms of URLs
	}
	if len(v) >= 6 {
		h := hex.EncodeToString([]byte(v))
		all = append(all, needle{text: h}, needle{text: strings.ToUpper(h)})
	}
	for shift := range 3 {
		// The first and the last character may hold bits of what is around
		// the value; they are left out here and go with it when it is found.
		first, last := (8*shift+5)/6, 8*(shift+len(v))/6
		if last-first < 5 {
			continue
		}
		padded := append(make([]byte, shift), v...)
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString(padded)[first:last]
			all = append(all, needle{text: text, base64: true})
		}
	}
	slices.SortFunc(all, func(a, b needle) int { return strings.Compare(a.text, b.text) })
	return slices.CompactFunc(all, func(a, b needle) bool { return a.text == b.text })
}

// String returns s with each secret replaced.
func (r *Redactor) String(s string) string {
	spans := r.find([]byte(s))
	if len(spans) == 0 {
		return s
	}
	var b strings.Builder
	at := 0
	for _, sp := range spans {
		b.WriteString(s[at:sp.from])
		b.WriteString(Redacted)
		at = sp.to
	}
	b.WriteString(s[at:])
	return b.String()
}

// Found returns the parts of texts that String would replace.
func (r *Redactor) Found(texts ...string) (found []string) {
	for _, s := range texts {
		for _, sp := range r.find([]byte(s)) {
			found = append(found, s[sp.from:sp.to])
		}
	}
	return found
}

// Args returns a copy of a command line with each secret replaced.
func (r *Redactor) Args(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = r.String(a)
	}
	return out
}

// A span is a part of a text.
type span struct{ from, to int }

// find returns what is to be replaced in b, in order and without overlap.
func (r *Redactor) find(b []byte) []span {
	r.mu.RLock()
	needles := r.needles
	r.mu.RUnlock()
	var spans []span
	for _, v := range views(b) {
		if needles != nil {
			needles.find(v.text, func(n needle, end int) {
				if v.joined && len(n.text) < 16 {
					return
				}
				from := end - len(n.text)
				if n.base64 {
					from, end = widen(v.text, from, end)
				}
				spans = append(spans, v.origin(from, end))
			})
		}
		if !v.joined {
			secret.Spans(v.text, func(from, to int) { spans = append(spans, v.origin(from, to)) })
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	merged := spans[:0]
	for _, s := range spans {
		if n := len(merged); n > 0 && s.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// widen takes in the characters around an encoded value that may hold some
// of its bits.
func widen(text []byte, from, to int) (int, int) {
	if from > 0 && inBase64(text[from-1]) {
		from--
	}
	if to < len(text) && inBase64(text[to]) {
		to++
	}
	return from, to
}

func inBase64(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte("+/-_=", c) >= 0
}
