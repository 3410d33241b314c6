// Package secrettest has an example of every kind of token that package secret knows, so that the
// tests of each of its users go through all of them.
package secrettest

import (
	_ "embed"
	"encoding/base64"
	"strings"
	"testing"
)

// A Token is an example. It opens nothing: it was drawn at random.
type Token struct {
	Kind   string // "GitHub token"
	Anchor string // the part by which it is found
	Value  string
	// Hidden is what of Value must not remain in a record.
	Hidden string
	// Where it is looked for.
	Files, Texts, Requests bool
	// Leads says that tokens of the kind begin with Anchor.
	Leads bool
}

// Name is that of a subtest.
func (k Token) Name() string { return strings.TrimSpace(k.Kind) + " " + strings.TrimSpace(k.Anchor) }

// list is written by the tests of package secret. It is encoded, so that no tool that looks for
// tokens finds any.
//
//go:embed tokens.txt
var list string

// Tokens returns the examples, at least one of each kind.
func Tokens(t testing.TB) (all []Token) {
	t.Helper()
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			t.Fatalf("a line of tokens.txt has %d fields", len(f))
		}
		text := func(s string) string {
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		all = append(all, Token{
			Kind: f[0], Anchor: text(f[1]), Value: text(f[2]), Hidden: text(f[3]),
			Files: strings.Contains(f[4], "files"), Texts: strings.Contains(f[4], "texts"), Requests: strings.Contains(f[4], "requests"), Leads: strings.Contains(f[4], "leads"),
		})
	}
	if len(all) == 0 {
		t.Fatal("tokens.txt is empty")
	}
	return all
}
