package policy

import (
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Credential says that a secret is lent to the cell, and where it may go.
type Credential struct {
	Handle string `json:"handle"`
	// For is where the gateway puts it in by itself: places such as
	// "https://api.github.com/repos/me/**" (cell.Place). Empty: only where a rule of the
	// network names the handle.
	For []string `json:"for"`
	// Unpinned lets other authentication than this credential's pass to the hosts
	// that it is for: "pin: false" in a file. The zero value denies it.
	Unpinned bool `json:"unpinned"`
}

// canonicalCredentials has one entry for each handle.
func canonicalCredentials(list []Credential) []Credential {
	out := []Credential{}
	for _, c := range list {
		i := slices.IndexFunc(out, func(o Credential) bool { return o.Handle == c.Handle })
		if i < 0 {
			out = append(out, Credential{Handle: c.Handle, Unpinned: c.Unpinned})
			i = len(out) - 1
		}
		out[i].Unpinned = out[i].Unpinned && c.Unpinned
		out[i].For = append(out[i].For, c.For...)
	}
	for i := range out {
		if out[i].For = unique(out[i].For); out[i].For == nil {
			out[i].For = []string{}
		}
	}
	slices.SortFunc(out, func(a, b Credential) int { return strings.Compare(a.Handle, b.Handle) })
	return out
}

// Handles lists the credentials that the policy lends: those of the section
// and those that rules name.
func (e Effective) Handles() []string {
	var out []string
	for _, c := range e.Credentials {
		out = append(out, c.Handle)
	}
	for _, r := range slices.Concat(e.Network.Allow, e.Network.Ask) {
		if r.Credential != "" {
			out = append(out, r.Credential)
		}
	}
	return unique(out)
}

// WithoutKeys is a policy for what is lent no credentials: what is allowed or asked for with one of them alone is not.
func (r Result) WithoutKeys() Result {
	keyless := func(rules []Rule) []Rule {
		return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return r.Credential != "" })
	}
	r.Credentials, r.Network.Allow, r.Network.Ask = nil, keyless(r.Network.Allow), keyless(r.Network.Ask)
	return r
}

// Lend sets where a credential of the policy may go, as far as the policy itself did not:
// the patterns come from the credential store. They are part of the policy from then on,
// and of its digest.
func (r *Result) Lend(handle string, patterns []string) error {
	i := slices.IndexFunc(r.Credentials, func(c Credential) bool { return c.Handle == handle })
	if i < 0 || len(r.Credentials[i].For) > 0 {
		return nil // only rules name it, or the policy is narrower
	}
	var list []string
	for _, p := range patterns {
		place, err := cell.ParsePlace(p)
		if err != nil {
			return err
		}
		list = append(list, place.String())
	}
	r.Credentials = slices.Clone(r.Credentials)
	r.Credentials[i].For = unique(list)
	return nil
}

func isHandle(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == "" && s[0] != '-' && s[0] != '.'
}
