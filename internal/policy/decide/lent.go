package decide

import (
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// lentFor is one place where a credential may go.
type lentFor struct {
	handle string
	place  cell.Place
}

// goesTo reports whether the credential may be put into something in a
// connection.
func (l lentFor) goesTo(q *question) bool {
	return l.place.Port == q.Port && l.place.HoldsHost(strings.Trim(q.destination(), "[]"))
}

// goesInto reports whether it is put into a request.
func (l lentFor) goesInto(q *question) bool {
	scheme := q.Scheme
	if scheme == "" {
		scheme = "https"
	}
	path := q.path
	if path == "" { // more than one meaning: only where every path will do
		if l.place.Path != "/**" {
			return false
		}
		path = "/"
	}
	return l.place.Holds(q.Method, scheme, strings.Trim(q.destination(), "[]"), q.Port, path)
}

// Pins reports whether a lent credential pins its hosts: other authentication
// is denied there.
func (p *Rules) Pins(handle string) bool { return !p.unpinned[handle] }

// PinnedTo returns the handle of a credential that pins a host, "" for none. It
// holds also while the credential is taken back.
func (p *Rules) PinnedTo(host string) string {
	for _, l := range p.lent {
		if p.Pins(l.handle) && l.place.HoldsHost(strings.Trim(host, "[]")) {
			return l.handle
		}
	}
	return ""
}

func compileLent(list []policy.Credential) (out []lentFor, err error) {
	for _, c := range list {
		for _, f := range c.For {
			p, err := cell.ParsePlace(f)
			if err != nil || p.String() != f {
				return nil, cell.Errorf(cell.Corrupt, "decide.Compile", "", "cannot use credential %s: %q says not where it may go", c.Handle, f)
			}
			out = append(out, lentFor{c.Handle, p})
		}
	}
	return out, nil
}
