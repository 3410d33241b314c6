package policy

import (
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// overlap reports whether two rules could match one access. It may say yes
// where no is true (of two patterns of paths it looks at the beginnings only),
// never the other way round.
func overlap(a, b Rule) bool {
	return anyPair(a.Hosts, b.Hosts, hostsOverlap) && portsOverlap(a.Ports, b.Ports) &&
		anyPair(a.Methods, b.Methods, func(x, y string) bool { return x == y }) && anyPair(a.Paths, b.Paths, pathsOverlap)
}

// anyPair reports whether match holds for a pair; an empty list is everything.
func anyPair(a, b []string, match func(x, y string) bool) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(x string) bool { return slices.ContainsFunc(b, func(y string) bool { return match(x, y) }) })
}

func hostsOverlap(a, b string) bool {
	na, isA := ParseRange(a)
	nb, isB := ParseRange(b)
	if isA || isB {
		return isA && isB && na.Overlaps(nb)
	}
	if a == b {
		return true
	}
	if a == cell.HostName || b == cell.HostName {
		return false // no pattern speaks of it
	}
	if a == "*" || b == "*" {
		return true
	}
	sa, wildA := strings.CutPrefix(a, "*")
	sb, wildB := strings.CutPrefix(b, "*")
	switch {
	case wildA && wildB:
		return strings.HasSuffix(sa, sb) || strings.HasSuffix(sb, sa)
	case wildA:
		return strings.HasSuffix(b, sa)
	case wildB:
		return strings.HasSuffix(a, sb)
	}
	return false
}

func portsOverlap(a, b []string) bool {
	sa, _ := ParseSpans(a)
	sb, _ := ParseSpans(b)
	if len(sa) == 0 || len(sb) == 0 {
		return true
	}
	return slices.ContainsFunc(sa, func(x Span) bool {
		return slices.ContainsFunc(sb, func(y Span) bool { return x.From <= y.To && y.From <= x.To })
	})
}

func pathsOverlap(a, b string) bool {
	pa, _, wildA := strings.Cut(a, "*")
	pb, _, wildB := strings.Cut(b, "*")
	switch {
	case !wildA && !wildB:
		return a == b
	case !wildA:
		p := NewPathPattern(b)
		return p.Match(a)
	case !wildB:
		p := NewPathPattern(a)
		return p.Match(b)
	}
	// /x/** is also /x.
	pa, pb = strings.TrimSuffix(pa, "/"), strings.TrimSuffix(pb, "/")
	return strings.HasPrefix(pa, pb) || strings.HasPrefix(pb, pa)
}

// placeWithin reports whether all of a place lies in another. It may say no
// where yes is true.
func placeWithin(inner, outer string) bool {
	a, err1 := cell.ParsePlace(inner)
	b, err2 := cell.ParsePlace(outer)
	if err1 != nil || err2 != nil || a.Scheme != b.Scheme || a.Port != b.Port || a.Host != b.Host && !b.HoldsHost(strings.TrimPrefix(a.Host, "*.")) {
		return false
	}
	if len(b.Methods) > 0 && (len(a.Methods) == 0 || slices.ContainsFunc(a.Methods, func(m string) bool { return !slices.Contains(b.Methods, m) })) {
		return false
	}
	if a.Path == b.Path || b.Path == "/**" {
		return true
	}
	base, ok := strings.CutSuffix(b.Path, "/**")
	return ok && !strings.Contains(base, "*") && (a.Path == base || strings.HasPrefix(a.Path, base+"/"))
}
