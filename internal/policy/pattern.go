package policy

import (
	"strings"

	"github.com/pando-dev/pando/internal/glob"
)

// PathPattern is a pattern of paths, ready to match.
type PathPattern struct {
	text  string
	begin string   // all that comes before the first part with a wildcard
	segs  []string // without the first, empty one; nil for a pattern without wildcards
}

// NewPathPattern makes one of a pattern in its one form.
func NewPathPattern(text string) PathPattern {
	p := PathPattern{text: text}
	if strings.Contains(text, "*") {
		p.segs = strings.Split(text[1:], "/")
		before, _, _ := strings.Cut(text, "*")
		p.begin = before[:strings.LastIndexByte(before, '/')] // /x/** is also /x
	}
	return p
}

// Match reports whether a canonical path matches.
func (p *PathPattern) Match(path string) bool {
	if p.segs == nil {
		return p.text == path
	}
	if path == "" || path[0] != '/' || !strings.HasPrefix(path, p.begin) {
		return false
	}
	return matchSegments(p.segs, path[1:], false)
}

// matchSegments matches the segments of rest. Ended says that rest has no
// segment left, as opposed to one empty segment. It goes back to the latest **
// only, which is enough, so that its time is bounded by the product of both
// lengths.
func matchSegments(segs []string, rest string, ended bool) bool {
	next := func(s string) (seg, tail string, last bool) {
		seg, tail, more := strings.Cut(s, "/")
		return seg, tail, !more
	}
	var starSegs []string
	var starRest string
	starEnded, haveStar := true, false
	for {
		switch {
		case len(segs) > 0 && segs[0] == "**":
			if len(segs) == 1 {
				return true
			}
			segs = segs[1:]
			starSegs, starRest, starEnded, haveStar = segs, rest, ended, true
			continue
		case len(segs) == 0 && ended:
			return true
		case len(segs) > 0 && !ended:
			seg, tail, last := next(rest)
			if MatchSegment(segs[0], seg) {
				segs, rest, ended = segs[1:], tail, last
				continue
			}
		}
		if !haveStar || starEnded {
			return false
		}
		_, starRest, starEnded = next(starRest)
		segs, rest, ended = starSegs, starRest, starEnded
	}
}

// MatchSegment matches one segment; * stands for any characters, and alone for
// at least one.
func MatchSegment(pattern, s string) bool {
	return glob.Match(pattern, s) && (s != "" || pattern != "*")
}
