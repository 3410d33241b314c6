package policy

import (
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Accept says which results are accepted only with sign-offs, and of which approvers. It is left out of
// the canonical form where it says nothing.
type Accept struct {
	// Needs is the number of approvers that have to sign.
	Needs int64 `json:"needs,omitempty"`
	// For has the reasons to need them (SignOffFor).
	For []string `json:"for,omitempty"`
	// Approvers are named by the policies of the host and the user alone.
	Approvers []Approver `json:"approvers,omitempty"`
}

// An Approver is a person with a key: its signatures count.
type Approver struct {
	Name string   `json:"name"`
	Key  string   `json:"key"`          // see ApproverKey
	As   []string `json:"as,omitempty"` // the person's other names: users of the system, names of tokens
}

// The words of accept.for.
const (
	ForControlPaths = "control-paths" // accept holds back some of the changes without --include
	ForHighFindings = "high-findings" // there is a finding of severity high
	ForAll          = "all"
)

// SignOffFor are the words of accept.for.
func SignOffFor() []string { return []string{ForControlPaths, ForHighFindings, ForAll} }

// maxNeeds bounds accept.needs.
const maxNeeds = 20

// keyPrefix begins the text of an approver's key.
const keyPrefix = "ed25519:"

// ApproverKey reads the text of an approver's public key, "ed25519:" and its 32 bytes in base64.
func ApproverKey(text string) (ed25519.PublicKey, error) {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	raw, err := base64.StdEncoding.Strict().DecodeString(rest)
	if !ok || err != nil || len(raw) != ed25519.PublicKeySize || keyPrefix+base64.StdEncoding.EncodeToString(raw) != text {
		return nil, cell.Errorf(cell.Invalid, "policy.ApproverKey", "take it from `pando approve --public`", "%s is no public key of an approver", Quoted(text))
	}
	return raw, nil
}

// ApproverKeyText is what ApproverKey reads.
func ApproverKeyText(key ed25519.PublicKey) string {
	return keyPrefix + base64.StdEncoding.EncodeToString(key)
}

// Is reports whether a name of a user or a token is the approver's.
func (a Approver) Is(name string) bool {
	return name != "" && (strings.EqualFold(a.Name, name) || slices.ContainsFunc(a.As, func(o string) bool { return strings.EqualFold(o, name) }))
}

// Asks reports whether it needs sign-offs for a word of accept.for.
func (a Accept) Asks(word string) bool { return a.Needs > 0 && slices.Contains(a.For, word) }

// Tighten adds what another policy needs. The approvers stay.
func (a Accept) Tighten(b Accept) Accept {
	if b.Needs > 0 {
		a.Needs = max(a.Needs, b.Needs)
		a.For = unionFor(a.For, b.For)
	}
	return a
}

func unionFor(a, b []string) []string {
	all := sorted(slices.Concat(a, b))
	if slices.Contains(all, ForAll) {
		return []string{ForAll}
	}
	return all
}

func (a Accept) canonical() Accept {
	if a.Needs > 0 {
		a.For = unionFor(a.For, nil)
	}
	a.Approvers = slices.Clone(a.Approvers)
	for i := range a.Approvers {
		if len(a.Approvers[i].As) > 0 {
			a.Approvers[i].As = sorted(a.Approvers[i].As)
		}
	}
	slices.SortFunc(a.Approvers, func(x, y Approver) int { return strings.Compare(x.Name, y.Name) })
	return a
}

// FileAccept is the section accept.
type FileAccept struct {
	Needs         string
	For           []Line
	Approvers     []FileApprover
	NeedsLine     int
	ApproversLine int
}

// FileApprover is one entry of accept.approvers.
type FileApprover struct {
	Approver
	Line int
}

func (f *File) acceptWords() section {
	return section{words: []word{
		{name: "needs", about: "How many approvers have to sign, each with a key of its own. Of several layers the most counts.", line: &f.Accept.NeedsLine,
			shape: text{numbers: true, set: func(s string) error { f.Accept.Needs = s; _, err := parseNeeds(s); return err }}},
		{name: "for", about: "Which results need it: control-paths (some of the changes would be held back), high-findings (a finding has severity high), all. Without it, all. What any layer says counts.",
			shape: list{one: true, item: lines(&f.Accept.For, func(s string) (string, error) {
				if !slices.Contains(SignOffFor(), s) {
					return "", cell.Errorf(cell.Invalid, "policy.ParseFile", "write one of "+strings.Join(SignOffFor(), ", "), "%s is no reason for a sign-off", Quoted(s))
				}
				return s, nil
			})}},
		{name: "approvers", about: "The people that can sign, with their keys. Only in the policies of the host and the user; one that the host's names can't be added to.", line: &f.Accept.ApproversLine, shape: list{item: f.approver}},
	}}
}

func (f *File) approver(int) shape {
	f.Accept.Approvers = append(f.Accept.Approvers, FileApprover{})
	i := len(f.Accept.Approvers) - 1
	earlier := func(is func(FileApprover) bool) bool { return slices.ContainsFunc(f.Accept.Approvers[:i], is) }
	name := func(s string) (string, error) {
		if s == "" || len(s) > 100 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0xfffd }) {
			return "", cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%s is no name of an approver", Quoted(s))
		}
		return s, nil
	}
	var as []Line
	return section{words: []word{
		{name: "name", about: "Name of the person, as on the system or as tokens have it. A run that this name asked for can't be signed off with the key.", must: true, shape: text{
			at: func(n int) { f.Accept.Approvers[i].Line = n },
			set: func(s string) error {
				if earlier(func(o FileApprover) bool { return strings.EqualFold(o.Name, s) }) {
					return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "approver %s is there twice", Quoted(s))
				}
				f.Accept.Approvers[i].Name = s
				_, err := name(s)
				return err
			}}},
		{name: "key", about: "The public key, as `pando approve --public` prints it.", must: true, shape: text{set: func(s string) error {
			if earlier(func(o FileApprover) bool { return o.Key == s }) {
				return cell.Errorf(cell.Invalid, "policy.ParseFile", "give the person's other names with as", "the key of an approver is there twice")
			}
			f.Accept.Approvers[i].Key = s
			_, err := ApproverKey(s)
			return err
		}}},
		{name: "as", about: "Other names of the same person: users of the system and names of tokens.", shape: list{one: true, item: lines(&as, func(s string) (string, error) {
			f.Accept.Approvers[i].As = append(f.Accept.Approvers[i].As, s)
			return name(s)
		})}},
	}}
}

func parseNeeds(s string) (int64, error) {
	n, err := ParseCount("approvers", s)
	if err == nil && n > maxNeeds {
		return 0, cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%d approvers are too many: %d at most", n, maxNeeds)
	}
	return n, err
}

// accept merges the section accept: what is needed only grows, and approvers come from above.
func (m *merger) accept(l Layer) error {
	f := l.File
	own := Accept{}
	for _, w := range f.Accept.For {
		own.For = append(own.For, w.Text)
	}
	if f.Accept.Needs != "" {
		n, err := parseNeeds(f.Accept.Needs)
		if err != nil {
			return err
		}
		if own.Needs = n; len(own.For) == 0 {
			own.For = []string{ForAll}
		}
		m.origin("accept.needs", f.at(f.Accept.NeedsLine))
		m.r.Accept = m.r.Accept.Tighten(own)
	} else if len(own.For) > 0 {
		if m.r.Accept.Needs == 0 {
			return cell.Errorf(cell.Invalid, "policy.Merge", "add needs, the number of approvers", "accept.for (%s) says nothing without accept.needs", f.at(f.Accept.For[0].Line))
		}
		own.Needs = m.r.Accept.Needs
		m.r.Accept = m.r.Accept.Tighten(own)
	}
	if len(f.Accept.Approvers) == 0 {
		return nil
	}
	if l.Name != LayerHost && l.Name != LayerUser {
		return cell.Errorf(cell.Denied, "policy.Merge", "take them out; a project can need more sign-offs, and name no approvers",
			"cannot name approvers at %s: the policies of the host and the user do", f.at(f.Accept.ApproversLine))
	}
	for _, a := range f.Accept.Approvers {
		if len(m.r.Accept.Approvers) > 0 && !slices.ContainsFunc(m.r.Accept.Approvers, func(o Approver) bool { return o.Name == a.Name && o.Key == a.Key }) {
			return tooWide("approver "+a.Name, f.at(a.Line), m.r.Origins.Lines["accept.approvers"])
		}
	}
	var list []Approver
	for _, a := range f.Accept.Approvers {
		for _, o := range m.r.Accept.Approvers { // of the layer above, names are only added
			if o.Name == a.Name {
				a.As = slices.Concat(o.As, a.As)
			}
		}
		list = append(list, a.Approver)
	}
	m.r.Accept.Approvers = list
	m.origin("accept.approvers", f.at(f.Accept.ApproversLine))
	return nil
}

// MergeAccept is what layers say of sign-offs, without what else they say.
func MergeAccept(layers []Layer) (Accept, error) {
	m := &merger{r: Result{Origins: Origins{Lines: map[string]string{}}}}
	for _, l := range layers {
		if err := m.accept(l); err != nil {
			return Accept{}, err
		}
	}
	return m.r.Accept.canonical(), nil
}

// acceptText says it in one line.
func (a Accept) text() string {
	text := strconv.FormatInt(a.Needs, 10) + " sign-off"
	if a.Needs > 1 {
		text += "s"
	}
	return text + " for " + strings.Join(a.For, ", ")
}

func (a Accept) names() string {
	var list []string
	for _, o := range a.Approvers {
		list = append(list, o.Name)
	}
	return strings.Join(list, ", ")
}
