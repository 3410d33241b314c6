package policy

import (
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Secrets says what import does with a file that git tracks and that is a
// secret by its name or its content.
type Secrets string

const (
	SecretsName Secrets = "name" // it comes in, and each run names it
	SecretsMask Secrets = "mask" // it stays outside like one that git does not track
)

// RuleSecrets is the name of the rule about tracked secrets, in origins, errors
// and receipts.
const RuleSecrets = "secrets"

// secretsWords are the words of secrets, the weakest first.
func secretsWords() []string { return []string{string(SecretsName), string(SecretsMask)} }

// FileSecrets is the word secrets of a file; "" when the file does not say it.
type FileSecrets struct {
	Word Secrets
	Line int
}

// secrets takes the strictest of all layers.
func (m *merger) secrets(l Layer) error {
	word := l.File.Secrets.Word
	rank := func(s Secrets) int { return slices.Index(secretsWords(), string(s)) }
	if word == "" {
		return nil
	}
	if m.r.Origins.Lines[RuleSecrets] == "" || rank(word) > rank(m.r.Secrets) {
		m.r.Secrets, m.r.Origins.Lines[RuleSecrets] = word, l.File.at(l.File.Secrets.Line)
	}
	return nil
}

// Bound is the word secrets of some layers alone, with its origin.
func (s Secrets) Bound(layers []Layer) (Secrets, Origins) {
	m := &merger{r: Result{Effective: Effective{Secrets: s}, Origins: Origins{Lines: map[string]string{}}}}
	for _, l := range layers {
		m.secrets(l)
	}
	return m.r.Secrets, m.r.Origins
}

// Refuse is the Denied error for a cell that was made under a weaker policy and
// has tracked secrets; nil when it has none, or when they may be there. what is
// what can't be done: "run".
func (s Secrets) Refuse(o Origins, what string, tracked []string) error {
	if s != SecretsMask || len(tracked) == 0 {
		return nil
	}
	place := ""
	if at := o.Lines[RuleSecrets]; at != "" {
		place = " (" + at + ")"
	}
	const maxNamed = 3
	names := strings.Join(tracked[:min(len(tracked), maxNamed)], ", ")
	if n := len(tracked) - maxNamed; n > 0 {
		names += " and " + itoa(n) + " more"
	}
	return cell.Errorf(cell.Denied, "policy.Refuse", "make a new cell; --with-secret PATH lets in one of them",
		"cannot %s: the policy forbids it by the rule %s: %s%s, and the cell has secrets that git tracks: %s", what, RuleSecrets, s, place, names)
}

// CheckSecrets refuses what is no word for secrets that git tracks.
func CheckSecrets(s string) error {
	if !slices.Contains(secretsWords(), s) {
		return cell.Errorf(cell.Invalid, "policy.ParseFile", "write one of "+strings.Join(secretsWords(), ", "), "%s is nothing to do with secrets that git tracks", Quoted(s))
	}
	return nil
}
