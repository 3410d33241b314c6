package server

import (
	"slices"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// view says how a client sees the output of a terminal.
type view int

const (
	noScreen    view = iota // bytes alone; where some are no longer kept, a gap
	redraws                 // the screen, where bytes are no longer kept
	screenFirst             // the screen, and what comes after it
)

// viewOf is how the client that sent this request sees a terminal.
func viewOf(req *proto.Attachment) view {
	switch {
	case req.Screen:
		return screenFirst
	case req.Size != nil:
		return redraws
	}
	return noScreen
}

// size is that of the terminal of one client.
type size struct{ api.Resize }

// sizes are those of the terminals of a process's clients, the latest last: that is the size
// of the process's own terminal. The zero value has none.
type sizes struct {
	mu   sync.Mutex // guards what follows, and the order of changes
	list []*size
}

// set makes r the size of at, and of the process's terminal.
func (z *sizes) set(at *size, r api.Resize, apply func(api.Resize)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	at.Resize = r
	z.list = append(slices.DeleteFunc(z.list, func(s *size) bool { return s == at }), at)
	apply(r)
}

// leave forgets the size of a client that is gone. The latest of the others becomes that of
// the process's terminal.
func (z *sizes) leave(at *size, apply func(api.Resize)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	was := len(z.list)
	latest := was > 0 && z.list[was-1] == at
	z.list = slices.DeleteFunc(z.list, func(s *size) bool { return s == at })
	if n := len(z.list); latest && n > 0 {
		apply(z.list[n-1].Resize)
	}
}

// resize changes the size of the screen that is kept, if one is.
func (o *Output) resize(r api.Resize) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.screen != nil {
		o.screen.Resize(r.Rows, r.Cols)
	}
}
