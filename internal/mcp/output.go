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

// kept is how many bytes of outputs a server holds for who wants to read on.
const kept = 64 << 20

// most is how many bytes of one output are held.
const most = 8 << 20

// outputs are texts that were longer than their answers.
type outputs struct {
	mu    sync.Mutex // guards what follows
	texts map[string][]byte
	order []string // oldest first
	bytes int
}

// put keeps a text and returns its address.
func (o *outputs) put(b []byte) (uri string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.texts == nil {
		o.texts = map[string][]byte{}
	}
	id := strings.ToLower(rand.Text()[:16]) // whoever does not know it does not read it
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

// atOnce is how many commands and evaluations a server has under way; more of them
// wait.
const atOnce = 64

// collecting is how many bytes of output all of them hold together, beside the
// maxLimit that each stream may have whatever the others do.
const collecting = 128 << 20

// room is what is left of collecting.
type room struct {
	mu   sync.Mutex // guards left
	left int
}

// take returns how many of n bytes there is room for.
func (r *room) take(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, r.left)
	r.left -= n
	return n
}

// collect returns collectors for the streams of a command, when there are fewer
// than atOnce; done lets go of them.
func (s *Server) collect(ctx context.Context, c *call) (out, errs *collector, done func(), err error) {
	select {
	case s.busy <- struct{}{}:
	default:
		c.tell(fmt.Sprintf("waiting: %d others are under way", atOnce))
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

// collector takes what a command writes to a stream: its beginning, up to most,
// and its end.
type collector struct {
	room  *room // nil: there is enough
	taken int   // of room, in bytes
	b     []byte
	end   []byte // the last of what b has no room for
	bytes int64
}

func (c *collector) add(b []byte) {
	c.bytes += int64(len(b))
	n := min(max(most-len(c.b), 0), len(b))
	if own := max(maxLimit-len(c.b), 0); c.room != nil && n > own {
		more := 0
		if len(c.end) == 0 { // nothing is missing before it
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

// tail is the last n bytes, or fewer when they are not kept.
func (c *collector) tail(n int) []byte {
	b := c.end
	if c.bytes == int64(len(c.b)+len(c.end)) { // nothing is missing between them
		b = append(append([]byte(nil), c.b[max(len(c.b)-n, 0):]...), c.end...)
	}
	return b[max(len(b)-n, 0):]
}

// shown is a text as an answer has it.
type shown struct {
	Text  string `json:"text"`
	Bytes int64  `json:"bytes"`          // of all of it
	Rest  string `json:"rest,omitempty"` // the resource that has all of it, when this is not all
	Note  string `json:"note,omitempty"`
}

// limitOf is how much of a text a caller wants.
func limitOf(asked int) int {
	switch {
	case asked <= 0:
		return Limit
	case asked > maxLimit:
		return maxLimit
	}
	return asked
}

// show cuts what a command wrote: the beginning and the end say most. uri is the
// resource that has the rest; "" to keep it here.
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

// first cuts a text behind its beginning.
func first(text string, limit int, uri string) shown {
	if len(text) <= limit {
		return shown{Text: text, Bytes: int64(len(text))}
	}
	head := cutEnd([]byte(text[:limit]))
	note := fmt.Sprintf("%d of %d bytes are left out here; read %s with offset %d for them", len(text)-len(head), len(text), uri, len(head))
	return shown{Text: head + "\n… " + note, Bytes: int64(len(text)), Rest: uri, Note: note}
}

// cutEnd leaves out a rune that was cut at the end.
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

// cutBegin leaves out the rest of a rune that was cut at the beginning.
func cutBegin(b []byte) string {
	for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	return valid(b)
}

// valid is text that JSON can say.
func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
