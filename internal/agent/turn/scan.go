package turn

import (
	"bytes"
	"encoding/json"
)

const (
	maxDepth = 16      // containers; what is deeper is passed over
	maxKey   = 32      // bytes of a member's name
	maxText  = 4 << 10 // bytes that are kept of a string

	maxFigure = 1 << 40 // larger numbers are this one
)

// scanner reads JSON (RFC 8259) in pieces, without checking it: what is no JSON gives other events,
// or none. Its memory is bounded whatever it reads.
type scanner struct {
	open func(depth int)             // a container has begun
	shut func(depth int)             // it ends; its frame is still there
	text func(depth int, raw []byte) // a string that is no member's name, cut to maxText, with its escapes
	num  func(depth int, n int64)    // a whole number from 0 on; nil: numbers are passed over

	frames [maxDepth + 1]frame // by depth; 0 is what surrounds the value
	depth  int
	over   int // containers beyond maxDepth that are open

	inside, escaped bool // of a string
	kept            []byte

	figure  int64 // what was read of a number
	figures figures
}

// figures says what the bytes outside strings have been since the last separator.
type figures int

const (
	noFigures    figures = iota
	someFigures          // a whole number
	otherFigures         // a word, a fraction, a negative number
)

// frame is an open container.
type frame struct {
	object bool
	key    string // the name under which it stands in its object; "" in an array
	name   string // the member of it that is being read
	naming bool   // a member's name comes next
}

// at is the frame of a depth.
func (s *scanner) at(depth int) *frame { return &s.frames[depth] }

// Write implements io.Writer. It never fails.
func (s *scanner) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if s.inside {
			p = p[s.str(p):]
			continue
		}
		b := p[0]
		p = p[1:]
		switch b {
		case '"':
			s.inside, s.kept = true, s.kept[:0]
		case '{', '[':
			s.push(b == '{')
		case '}', ']':
			s.numberEnds()
			s.pop()
		case ':':
			s.at(s.depth).naming = false
		case ',':
			s.numberEnds()
			if f := s.at(s.depth); s.over == 0 {
				f.naming = f.object
			}
		default:
			if s.num != nil {
				s.digit(b)
			}
		}
	}
	return n, nil
}

// digit reads a byte outside strings that is no separator.
func (s *scanner) digit(b byte) {
	switch {
	case b <= ' ':
		s.numberEnds()
	case b >= '0' && b <= '9' && s.figures != otherFigures:
		s.figures, s.figure = someFigures, min(s.figure*10+int64(b-'0'), maxFigure)
	default:
		s.figures = otherFigures
	}
}

func (s *scanner) numberEnds() {
	if s.figures == someFigures && s.over == 0 {
		s.num(s.depth, s.figure)
	}
	s.figures, s.figure = noFigures, 0
}

func (s *scanner) push(object bool) {
	if s.depth == maxDepth {
		s.over++
		return
	}
	key := s.at(s.depth).name
	s.depth++
	*s.at(s.depth) = frame{object: object, key: key, naming: object}
	s.open(s.depth)
}

func (s *scanner) pop() {
	switch {
	case s.over > 0:
		s.over--
	case s.depth > 0:
		s.shut(s.depth)
		s.depth--
	}
}

// str reads on in a string, and returns how many bytes it took.
func (s *scanner) str(p []byte) int {
	for i := 0; i < len(p); {
		if s.escaped {
			s.escaped = false
			s.keep(p[i : i+1])
			i++
			continue
		}
		n := bytes.IndexAny(p[i:], `"\`)
		if n < 0 {
			s.keep(p[i:])
			return len(p)
		}
		s.keep(p[i : i+n])
		i += n + 1
		if p[i-1] == '"' {
			s.inside = false
			s.ended()
			return i
		}
		s.keep(p[i-1 : i])
		s.escaped = true
	}
	return len(p)
}

func (s *scanner) keep(b []byte) {
	s.kept = append(s.kept, b[:min(len(b), maxText-len(s.kept))]...)
}

// ended is called at the end of a string.
func (s *scanner) ended() {
	f := s.at(s.depth)
	switch {
	case s.over > 0:
	case f.naming:
		f.name = ""
		if len(s.kept) <= maxKey {
			f.name = string(s.kept)
		}
	default:
		s.text(s.depth, s.kept)
	}
}

// unescape gives the text of a string that may have been cut.
func unescape(raw []byte) (text string) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	for cut := 0; cut < 12 && cut <= len(raw); cut++ { // of a pair of surrogates there may be eleven bytes
		if json.Unmarshal([]byte(`"`+string(raw[:len(raw)-cut])+`"`), &text) == nil {
			return text
		}
	}
	return ""
}
