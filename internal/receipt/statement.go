package receipt

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// The types in statements and envelopes.
const (
	StatementType    = "https://in-toto.io/Statement/v1"
	PredicateRun     = "https://pando.dev/run/v1"     // one run, or one fork with its children
	PredicateVerdict = "https://pando.dev/verdict/v1" // a verdict on a run
	PredicateFork    = "https://pando.dev/fork/v1"    // a template, forks of one, or branches, with what was measured of each
	PayloadType      = "application/vnd.in-toto+json"
)

// A Subject is one thing that a statement is about.
type Subject struct {
	Name   string
	Digest cell.Digest
}

type wireSubject struct {
	Name   string `json:"name"`
	Digest struct {
		SHA256 string `json:"sha256"`
	} `json:"digest"`
}

// MarshalJSON gives in-toto's form, in which a digest has no prefix.
func (s Subject) MarshalJSON() ([]byte, error) {
	w := wireSubject{Name: s.Name}
	w.Digest.SHA256 = hex.EncodeToString(s.Digest[:])
	return json.Marshal(w)
}

// UnmarshalJSON reads in-toto's form.
func (s *Subject) UnmarshalJSON(b []byte) error {
	var w wireSubject
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	d, err := cell.ParseDigest("sha256:" + w.Digest.SHA256)
	*s = Subject{w.Name, d}
	return err
}

// Position is where a receipt stands: its index, and the head that it
// followed. Index and Size are equal; both are there because readers of one
// should not have to know that.
type Position struct {
	Index int64       `json:"index"`
	Size  int64       `json:"size"`
	Root  cell.Digest `json:"root"`
}

// Binding is what this package puts into every predicate.
type Binding struct {
	Key        string      `json:"key"`
	Ledger     Position    `json:"ledger"`
	Incomplete bool        `json:"incomplete,omitempty"`
	Completes  cell.Digest `json:"completes,omitzero"`
}

// A Statement is what a receipt says.
type Statement struct {
	Type          string          `json:"_type"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"` // with the members of Binding
	Subject       []Subject       `json:"subject"`
	Binding       Binding         `json:"-"`

	own []byte // the predicate without Binding's members and the braces
}

var reserved = []string{"key", "ledger", "incomplete", "completes"}

var (
	keyPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9._:/@=+-]{1,200}$`)
	})
	typePattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9._~:/?#@!$()*+,;=%-]{1,200}$`)
	})
)

// encodePredicate returns the members of v without the braces around them.
func encodePredicate(v any) ([]byte, error) {
	bad := func(format string, args ...any) error {
		return cell.Errorf(cell.Invalid, "receipt.Append", "", "cannot write a receipt: "+format, args...)
	}
	raw, err := json.Marshal(v) // valid and without white space, whatever v is
	if err != nil {
		return nil, bad("%w", err)
	}
	if raw[0] != '{' {
		return nil, bad("the predicate is not a JSON object")
	}
	for name := range memberNames(raw) {
		for _, r := range reserved {
			if strings.EqualFold(name, r) {
				return nil, bad("the predicate has a member %q, which belongs to the ledger", name)
			}
		}
	}
	return raw[1 : len(raw)-1], nil
}

// memberNames yields the names in an object, not those in its members. obj is
// valid JSON without white space.
func memberNames(obj []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		depth, start := 0, -1 // start: of the string that i is in
		for i := 0; i < len(obj); i++ {
			switch c := obj[i]; {
			case start >= 0 && c == '\\':
				i++
			case start >= 0 && c == '"':
				var name string
				if depth == 1 && obj[i+1] == ':' && json.Unmarshal(obj[start:i+1], &name) == nil && !yield(name) {
					return
				}
				start = -1
			case start >= 0:
			case c == '"':
				start = i
			case c == '{' || c == '[':
				depth++
			case c == '}' || c == ']':
				depth--
			}
		}
	}
}

// The statement's form is fixed up to the caller's members, so that what this
// package needs of it can be read without parsing all of it.
const (
	part1 = `{"_type":"` + StatementType + `","predicateType":"`
	part2 = `","predicate":{"key":"`
	part3 = `","ledger":{"index":`
	part4 = `,"size":`
	part5 = `,"root":"`
	part6 = `"}`
	partI = `,"incomplete":true`
	partC = `,"completes":"`
	part7 = `},"subject":`
)

func encodeStatement(predicateType string, b Binding, members, subjects []byte) []byte {
	p := make([]byte, 0, 512+len(members)+len(subjects))
	p = append(append(append(append(p, part1...), predicateType...), part2...), b.Key...)
	p = strconv.AppendInt(append(p, part3...), b.Ledger.Index, 10)
	p = strconv.AppendInt(append(p, part4...), b.Ledger.Size, 10)
	p = append(append(append(p, part5...), b.Ledger.Root.String()...), part6...)
	if b.Incomplete {
		p = append(p, partI...)
	}
	if !b.Completes.IsZero() {
		p = append(append(append(p, partC...), b.Completes.String()...), '"')
	}
	if len(members) > 0 {
		p = append(append(p, ','), members...)
	}
	return append(append(append(p, part7...), subjects...), '}')
}

var errStatement = errors.New("it is not a statement of pando")

// parseBinding reads the beginning of a statement, up to the caller's members,
// and says how many bytes that is.
func parseBinding(payload []byte) (predicateType string, b Binding, size int, err error) {
	p, ok := payload, true
	skip := func(s string) bool {
		rest, found := bytes.CutPrefix(p, []byte(s))
		if found {
			p = rest
		}
		return found
	}
	must := func(s string) { ok = ok && skip(s) }
	until := func(end byte) string {
		i := bytes.IndexByte(p[:min(len(p), 256)], end)
		if i < 0 {
			ok = false
			return ""
		}
		s := string(p[:i])
		p = p[i:]
		return s
	}
	number := func(end byte) int64 {
		s := until(end)
		n, err := strconv.ParseInt(s, 10, 64)
		ok = ok && err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
		return n
	}
	digest := func() cell.Digest {
		s := until('"')
		d, err := cell.ParseDigest(s)
		ok = ok && err == nil && !d.IsZero() && d.String() == s
		return d
	}
	must(part1)
	predicateType = until('"')
	must(part2)
	b.Key = until('"')
	must(part3)
	b.Ledger.Index = number(',')
	must(part4)
	b.Ledger.Size = number(',')
	must(part5)
	b.Ledger.Root = digest()
	must(part6)
	b.Incomplete = skip(partI)
	if skip(partC) {
		b.Completes = digest()
		must(`"`)
	}
	if !ok || len(p) == 0 || p[0] != ',' && p[0] != '}' {
		return "", Binding{}, 0, errStatement
	}
	return predicateType, b, len(payload) - len(p), nil
}

// parseStatement reads a whole statement.
func parseStatement(payload []byte) (Statement, error) {
	var s Statement
	typ, b, size, err := parseBinding(payload)
	if err != nil {
		return s, err
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || d.InputOffset() != int64(len(payload)) {
		return s, errStatement
	}
	if s.Type != StatementType || s.PredicateType != typ {
		return s, fmt.Errorf("%w: its type is ambiguous", errStatement)
	}
	end := len(part1) + len(typ) + len(`","predicate":`) + len(s.Predicate) - 1
	if end < size {
		return s, errStatement
	}
	s.Binding = b
	s.own = bytes.TrimPrefix(payload[size:end], []byte(","))
	return s, nil
}
