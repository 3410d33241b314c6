package secret

import (
	"encoding/binary"
	"sync"
)

// A Finding says that content holds what looks like a live token. It never
// holds the token.
type Finding struct {
	What string // "GitHub token"
	At   int64  // where it begins, in bytes from the beginning
}

// Why says why the content stays out, for people.
func (f Finding) Why() string { return f.What + " inside" }

// A Scanner looks for live tokens in content that is written to it in pieces
// of any size: the pieces make no difference to what is found. It looks at
// bytes as they are: not into archives, nor through base64 or UTF-16.
//
// A Scanner is for one goroutine. It borrows 64 KiB from its first Write until
// Findings.
type Scanner struct {
	named bool   // the file's name promises credentials
	buf   []byte // the piece of content from base on
	base  int64
	next  int // where in buf the next token may begin
	limit int // how many findings are enough
	found []Finding
}

// A token is judged by what stands in its neighbourhood, this far.
const (
	scanBehind = 1 << 10
	scanAhead  = 1 << 10
	scanBuffer = 64 << 10
)

// NewScanner returns a Scanner that stops looking after limit findings. Reset
// tells it what file it begins with.
func NewScanner(limit int) *Scanner { return &Scanner{limit: limit} }

var scanBuffers = sync.Pool{New: func() any { return new([scanBuffer]byte) }}

// Reset forgets everything, to begin with the file at path. In a file that is
// called "credentials.json" a field "password" counts; elsewhere it does not.
func (s *Scanner) Reset(path string) {
	_, s.named = promising(path)
	s.release()
	s.base, s.next, s.found = 0, 0, nil
}

// Write takes the next piece. It never fails.
func (s *Scanner) Write(p []byte) (int, error) {
	n := len(p)
	if s.buf == nil && n > 0 {
		s.buf = scanBuffers.Get().(*[scanBuffer]byte)[:0]
	}
	for len(p) > 0 && len(s.found) < s.limit {
		room := copy(s.buf[len(s.buf):cap(s.buf)], p)
		s.buf, p = s.buf[:len(s.buf)+room], p[room:]
		if len(s.buf) < cap(s.buf) {
			break
		}
		s.scan(len(s.buf) - scanAhead)
		drop := s.next - scanBehind
		s.buf = s.buf[:copy(s.buf, s.buf[drop:])]
		s.base += int64(drop)
		s.next -= drop
	}
	return n, nil
}

// Findings ends the content and returns what was found, in order. Only Reset
// may follow.
func (s *Scanner) Findings() []Finding {
	s.scan(len(s.buf))
	s.release()
	return s.found
}

func (s *Scanner) release() {
	if s.buf != nil {
		scanBuffers.Put((*[scanBuffer]byte)(s.buf[:scanBuffer]))
		s.buf = nil
	}
}

// scan looks for tokens that begin in buf[next:to].
func (s *Scanner) scan(to int) {
	if s.next >= to || len(s.found) >= s.limit {
		return
	}
	s.found = scanShapes(s.buf, s.base, s.next, to, s.named, s.limit, s.found)
	s.next = to
}

// Scan looks for live tokens in the content of the file at path.
func Scan(path string, content []byte) []Finding {
	_, named := promising(path)
	return scanShapes(content, 0, 0, len(content), named, maxFindings, nil)
}

// maxFindings is enough for any report.
const maxFindings = 16

// scanShapes appends to found the tokens with an anchor that begins in b[from:to]; b begins
// at base in the content.
func scanShapes(b []byte, base int64, from, to int, named bool, limit int, found []Finding) []Finding {
	f := fileFilter()
	for at := from; at < to && len(found) < limit; at++ {
		var anchors []scanAnchor
		at, anchors = f.next(b, at, to)
		for _, a := range anchors {
			start := at - a.rare
			if (a.shape.named && !named) || start < 0 || len(b)-start < len(a.text) || string(b[start:start+len(a.text)]) != a.text {
				continue
			}
			// The same neighbourhood, however the content was cut.
			lo, hi := max(0, at-scanBehind), min(len(b), at+scanAhead)
			if n, ok := a.shape.at(b[lo:hi], start-lo, len(a.text)); ok {
				found = append(found, Finding{a.shape.what, base + int64(lo+n)})
			}
		}
	}
	return found
}

// A scanTable finds the places where an anchor may be. Three bytes of each
// anchor, its rarest, are hashed into it. The hash of the three bytes at place
// k of the eight in v is bits 8k to 8k+13 of v^v>>10, so that one word gives
// six hashes.
type scanTable struct {
	buckets [1 << scanBits]uint8 // where in three and anchors; 0 is nothing
	three   []uint32             // the three bytes
	anchors [][]scanAnchor       // those with them
}

const (
	scanBits = 14
	scanMask = 1<<scanBits - 1
)

type scanAnchor struct {
	text  string
	rare  int // where its three rare bytes are
	shape *shape
	row   int // of shape
}

// The filters of the uses.
var (
	fileFilter    = sync.OnceValue(func() *scanTable { return newScanTable(files) })
	textFilter    = sync.OnceValue(func() *scanTable { return newScanTable(texts) })
	requestFilter = sync.OnceValue(func() *scanTable { return newScanTable(requests) })
)

func newScanTable(u use) *scanTable {
	f := &scanTable{three: []uint32{0}, anchors: [][]scanAnchor{nil}}
	for i := range shapes() {
		s := &shapes()[i]
		if s.not&u != 0 {
			continue
		}
		for _, text := range s.anchors {
			v := threeBytes(text[s.rare:])
			n := &f.buckets[scanHash(v)]
			if *n == 0 {
				*n = uint8(len(f.three))
				f.three = append(f.three, v)
				f.anchors = append(f.anchors, nil)
			}
			if f.three[*n] != v {
				panic("secret: the hash of two anchors is the same; choose another rare for " + text)
			}
			f.anchors[*n] = append(f.anchors[*n], scanAnchor{text, s.rare, s, i})
		}
	}
	return f
}

func threeBytes[T string | []byte](b T) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
}

func scanHash(v uint32) uint32 { return (v ^ v>>10) & scanMask }

// next returns the first place from at on, and before to, where an anchor may
// be, and the anchors; none if there is no such place.
func (f *scanTable) next(b []byte, at, to int) (int, []scanAnchor) {
	t := &f.buckets
	for at+8 <= len(b) && at < to {
		v := binary.LittleEndian.Uint64(b[at:])
		h := v ^ v>>10
		if t[h&scanMask]|t[h>>8&scanMask]|t[h>>16&scanMask]|t[h>>24&scanMask]|t[h>>32&scanMask]|t[h>>40&scanMask] == 0 {
			at += 6
			continue
		}
		for end := min(at+6, to); at < end; at++ {
			if n := t[h&scanMask]; n != 0 && f.three[n] == uint32(v&0xffffff) {
				return at, f.anchors[n]
			}
			v, h = v>>8, h>>8
		}
	}
	for ; at < to && at+3 <= len(b); at++ {
		v := threeBytes(b[at:])
		if n := t[scanHash(v)]; n != 0 && f.three[n] == v {
			return at, f.anchors[n]
		}
	}
	return to, nil
}
