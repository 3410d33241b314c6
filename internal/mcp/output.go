package mcp

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/pando-dev/pando/api"
)

// kept bounds the outputs that a server keeps for further reads, in bytes.
const kept = 64 << 20

// most bounds the kept part of one output, in bytes.
const most = 8 << 20

// outputs are texts that were longer than their answers.
type outputs struct {
	mu    sync.Mutex // guards the fields below
	texts map[string][]byte
	order []string // oldest first
	bytes int
}

// put stores a text and returns its address.
func (o *outputs) put(b []byte) (uri string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.texts == nil {
		o.texts = map[string][]byte{}
	}
	id := strings.ToLower(rand.Text()[:16]) // unguessable, so that only its owner can read it
	o.texts[id], o.order, o.bytes = b, append(o.order, id), o.bytes+len(b)
	for o.bytes > kept {
		o.bytes -= len(o.texts[o.order[0]])
		delete(o.texts, o.order[0])
		o.order = o.order[1:]
	}
	return "pando://outputs/" + id
}

func (o *outputs) get(id string) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b, ok := o.texts[id]; ok {
		return b, nil
	}
	return nil, &api.Error{Kind: "not-found", Message: fmt.Sprintf("cannot read output %s: it is no longer kept", id),
		Hint: "have the command write to a file in the cell, and read that"}
}

// atOnce bounds the commands and evaluations of a server in progress; others wait.
const atOnce = 64

// collecting bounds the output that all of them hold together, in bytes, beside the maxLimit
// that each stream always has.
const collecting = 128 << 20

// room is the rest of collecting.
type room struct {
	mu   sync.Mutex // guards left
	left int
}

// take reserves up to n bytes, and returns the number reserved.
func (r *room) take(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, r.left)
	r.left -= n
	return n
}

// collect returns collectors for the streams of a command, when there are fewer than atOnce;
// done releases them.
func (s *Server) collect(ctx context.Context, c *call) (out, errs *collector, done func(), err error) {
	select {
	case s.busy <- struct{}{}:
	default:
		c.tell(fmt.Sprintf("waiting: %d others are running", atOnce))
		select {
		case s.busy <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, nil, context.Cause(ctx)
		}
	}
	out, errs = &collector{room: &s.room}, &collector{room: &s.room}
	return out, errs, func() {
		s.room.take(-out.taken - errs.taken)
		<-s.busy
	}, nil
}

// collector keeps the beginning of a command's stream, up to most, and its end.
type collector struct {
	room  *room // nil: unlimited
	taken int   // of room, in bytes
	b     []byte
	end   []byte // the last bytes that b has no room for
	bytes int64
}

func (c *collector) add(b []byte) {
	c.bytes += int64(len(b))
	n := min(max(most-len(c.b), 0), len(b))
	if own := max(maxLimit-len(c.b), 0); c.room != nil && n > own {
		more := 0
		if len(c.end) == 0 { // no byte before it is missing
			more = c.room.take(n - own)
		}
		n = own + more
		c.taken += more
	}
	c.b = append(c.b, b[:n]...)
	if c.end = append(c.end, b[n:]...); len(c.end) > 2*maxLimit {
		c.end = append([]byte(nil), c.end[len(c.end)-maxLimit:]...)
	}
}

// tail returns the last n bytes, or fewer when they are not kept.
func (c *collector) tail(n int) []byte {
	b := c.end
	if c.bytes == int64(len(c.b)+len(c.end)) { // no byte between them is missing
		b = append(append([]byte(nil), c.b[max(len(c.b)-n, 0):]...), c.end...)
	}
	return b[max(len(b)-n, 0):]
}

// shown is a text in an answer.
type shown struct {
	Text  string `json:"text"`
	Bytes int64  `json:"bytes"`          // of the whole text
	Rest  string `json:"rest,omitempty"` // the resource with the whole text, when this is only a part
	Note  string `json:"note,omitempty"`
}

// limitOf returns the requested length of a text.
func limitOf(asked int) int {
	switch {
	case asked <= 0:
		return Limit
	case asked > maxLimit:
		return maxLimit
	}
	return asked
}

// show cuts an output to its beginning and end. uri is the resource with all of it; "" keeps it
// here.
func (s *Server) show(c *collector, limit int, uri string) shown {
	if c.bytes <= int64(limit) {
		return shown{Text: valid(c.b), Bytes: c.bytes}
	}
	if uri == "" {
		uri = s.out.put(c.b)
	}
	head, tail := c.b[:limit*2/3], c.tail(limit/3)
	left := c.bytes - int64(len(head)+len(tail))
	note := fmt.Sprintf("%d of %d bytes are left out here; read %s with offset %d for them", left, c.bytes, uri, len(head))
	if int64(len(c.b)) < c.bytes {
		note += fmt.Sprintf(" (there are its first %d bytes)", len(c.b))
	}
	return shown{Text: cutEnd(head) + "\n… " + note + " …\n" + cutBegin(tail), Bytes: c.bytes, Rest: uri, Note: note}
}

// first cuts a text after its beginning.
func first(text string, limit int, uri string) shown {
	if len(text) <= limit {
		return shown{Text: text, Bytes: int64(len(text))}
	}
	head := cutEnd([]byte(text[:limit]))
	note := fmt.Sprintf("%d of %d bytes are left out here; read %s with offset %d for them", len(text)-len(head), len(text), uri, len(head))
	return shown{Text: head + "\n… " + note, Bytes: int64(len(text)), Rest: uri, Note: note}
}

// cutEnd drops an incomplete character at the end.
func cutEnd(b []byte) string {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				b = b[:len(b)-i]
			}
			break
		}
	}
	return valid(b)
}

// cutBegin drops an incomplete character at the beginning.
func cutBegin(b []byte) string {
	for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	return valid(b)
}

// valid returns text that JSON can hold.
func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
