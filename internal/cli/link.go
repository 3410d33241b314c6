package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
)

// attachment is one connection to the stream of a command: a client.Attachment.
type attachment interface {
	Recv(ctx context.Context) (api.Frame, error)
	Send(ctx context.Context, f api.Frame) error
	Close()
}

const (
	// reconnectWindow is how long the client looks for a daemon after losing one.
	reconnectWindow = 30 * time.Second
	// othersStart is the part of reconnectWindow in which the client starts no daemon itself:
	// the supervisor of pando serve starts the next one.
	othersStart = 3 * time.Second
	// inputWindow is the limit of unacknowledged standard input, in bytes.
	inputWindow = 1 << 20
	// resent is the size of a frame of input that is sent again, in bytes.
	resent = 32 << 10
)

// A link is the stream of a command over successive connections. When one breaks, output
// continues at the offset reached, and input at the offset that the command's side acknowledges:
// unacknowledged input is kept and sent again.
type link struct {
	// again attaches again, from offsets of the two outputs. With nil the stream ends when its
	// connection breaks.
	again  func(ctx context.Context, stdout, stderr int64) (attachment, error)
	alive  func(ctx context.Context) bool // reports whether a daemon answers
	ended  func() bool                    // the last daemon was told to end: the client starts none
	what   string                         // name of the run or command that continues
	feeds  bool                           // standard input is passed on
	starts bool                           // its command has just been asked for

	detach   detachKeys // keys that detach; the command has a terminal
	stays    bool       // the command continues without its client: a hang-up detaches
	readOnly bool       // signals and Ctrl-C detach, too
	drops    *dropper   // files that are dropped on the terminal; nil: they are text
	redrawn  func()     // called before a screen that replaces the terminal's contents
	// through is what output passes through before it is shown; nil: nothing.
	through func(io.Writer) io.Writer

	stdout, stderr int64 // bytes received of these outputs; for the goroutine that receives
	broke          bool  // a connection broke; for the same goroutine

	mu       sync.Mutex // guards the fields below
	moved    sync.Cond
	at       attachment // nil while there is no connection
	over     chan struct{}
	closed   bool   // the stream has ended
	detached bool   // the user detached
	had      int64  // bytes of input that the command has acknowledged
	known    bool   // the command's side sends acknowledgements
	kept     []byte // input after had that was sent
	eof      bool   // the end of the input was sent
	blocked  bool   // input waits: the new connection has not acknowledged yet
	sending  bool   // kept is being sent again
	signal   []byte // a signal that could not be sent
	size     []byte // a terminal size that could not be sent
}

func newLink(at attachment, feeds bool) *link {
	l := &link{at: at, feeds: feeds, over: make(chan struct{})}
	l.moved.L = &l.mu
	return l
}

// close ends the stream. Any goroutine may call it, more than once.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.over)
	}
	if l.at != nil {
		l.at.Close()
	}
	l.moved.Broadcast()
}

func (l *link) current() (attachment, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at, l.closed
}

// userDetaches ends the stream when the user detaches.
func (l *link) userDetaches() {
	l.mu.Lock()
	l.detached = true
	l.mu.Unlock()
	l.close()
}

// userDetached reports whether the user has detached.
func (l *link) userDetached() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.detached
}

// recv returns the next frame. When the connection breaks it says so and attaches again.
func (l *link) recv(ctx context.Context, say func(line string)) (api.Frame, error) {
	for {
		at, _ := l.current()
		f, err := at.Recv(ctx)
		if err == nil {
			return f, nil
		}
		if _, closed := l.current(); closed || l.again == nil || ctx.Err() != nil {
			return f, err
		}
		say(fmt.Sprintf("lost the daemon; %s continues, connecting again", l.what))
		if err := l.reconnect(ctx, err); err != nil {
			return f, err
		}
		say("connected again")
	}
}

// reconnect attaches again, within reconnectWindow. It fails with lost when no daemon answers,
// or with the daemon's error.
func (l *link) reconnect(ctx context.Context, lost error) error {
	l.mu.Lock()
	l.at.Close()
	l.at, l.blocked, l.sending, l.broke = nil, true, false, true
	l.mu.Unlock()
	began, wait := time.Now(), 50*time.Millisecond
	for {
		at, err := l.tryAgain(ctx, time.Since(began) < othersStart || l.ended())
		if err == nil {
			l.attached(ctx, at)
			return nil
		}
		e, ok := err.(*api.Error)
		switch {
		case ok && e.Kind != "unavailable" && ctx.Err() == nil && e.Kind != "interrupted":
			return err
		case time.Since(began) > reconnectWindow:
			return lost
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		case <-l.over:
			return lost
		case <-ctx.Done():
			return lost
		}
	}
}

func (l *link) tryAgain(ctx context.Context, others bool) (attachment, error) {
	if others && !l.alive(ctx) {
		return nil, &api.Error{Kind: "unavailable", Message: "no daemon answers"}
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectWindow) // for the connection alone
	defer cancel()
	return l.again(ctx, l.stdout, l.stderr)
}

// attached starts to use a new connection.
func (l *link) attached(ctx context.Context, at attachment) {
	l.mu.Lock()
	l.at = at
	signal, size := l.signal, l.size
	l.signal, l.size = nil, nil
	if l.closed {
		at.Close()
	}
	l.moved.Broadcast()
	l.mu.Unlock()
	if size != nil {
		at.Send(ctx, api.Frame{Type: api.FrameResize, Payload: size})
	}
	if signal != nil {
		at.Send(ctx, api.Frame{Type: api.FrameSignal, Payload: signal})
	}
}

// output returns the new part of a frame of output.
func (l *link) output(f api.Frame) ([]byte, error) {
	at, b, err := f.OutputData()
	if err != nil {
		return nil, err
	}
	seen := &l.stdout
	if f.Type == api.FrameStderr {
		seen = &l.stderr
	}
	end := at + int64(len(b))
	b = b[min(max(*seen-at, 0), int64(len(b))):]
	*seen = max(*seen, end)
	return b, nil
}

// screen returns a part of a redrawn screen, and sets the offsets to its end.
func (l *link) screen(f api.Frame) ([]byte, error) {
	at, b, err := f.OutputData()
	if err == nil && len(b) == 0 && l.redrawn != nil {
		l.redrawn()
	}
	l.stdout = max(l.stdout, at)
	return b, err
}

// missing returns the number of output bytes that were lost when a connection broke.
func (l *link) missing(o api.Outputs) int64 {
	if !l.broke {
		return 0
	}
	return max(o.Stdout.Bytes-l.stdout, 0) + max(o.Stderr.Bytes-l.stderr, 0)
}

// tell sends a signal or the terminal's size, now or on the next connection.
func (l *link) tell(ctx context.Context, f api.Frame) {
	l.mu.Lock()
	at := l.at
	l.mu.Unlock()
	if at != nil && at.Send(ctx, f) == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Type == api.FrameSignal {
		l.signal = f.Payload
	} else {
		l.size = f.Payload
	}
}

// mayFeed waits until input can be sent, and returns the connection; nil when the stream has
// ended. The caller holds mu.
func (l *link) mayFeed() attachment {
	for !l.closed && (l.at == nil || l.blocked || l.known && len(l.kept) >= inputWindow) {
		l.moved.Wait()
	}
	if l.closed {
		return nil
	}
	return l.at
}

// input sends input. It reports whether more can be sent.
func (l *link) input(ctx context.Context, b []byte) bool {
	l.mu.Lock()
	at := l.mayFeed()
	if at != nil {
		l.kept = append(l.kept, b...)
	}
	l.mu.Unlock()
	if at == nil {
		return false
	}
	// Input that a broken connection has not taken is sent on the next one.
	return at.Send(ctx, api.Frame{Type: api.FrameStdin, Payload: b}) == nil || l.again != nil
}

// inputEnds sends the end of the input.
func (l *link) inputEnds(ctx context.Context) {
	l.mu.Lock()
	at := l.mayFeed()
	l.eof = at != nil
	l.mu.Unlock()
	if at != nil {
		at.Send(ctx, api.Frame{Type: api.FrameStdinEOF})
	}
}

// taken notes that the command has bytes of input. On a new connection it sends the rest again.
func (l *link) taken(ctx context.Context, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = true
	if n := min(bytes-l.had, int64(len(l.kept))); n > 0 {
		l.kept = l.kept[n:]
		l.had += n
	}
	l.moved.Broadcast()
	if !l.blocked || l.sending {
		return
	}
	l.sending = true
	go l.sendAgain(ctx, l.at, slices.Clone(l.kept), l.eof)
}

// sendAgain sends unacknowledged input on a new connection, and then unblocks mayFeed.
func (l *link) sendAgain(ctx context.Context, at attachment, text []byte, eof bool) {
	for piece := range slices.Chunk(text, resent) {
		if at.Send(ctx, api.Frame{Type: api.FrameStdin, Payload: piece}) != nil {
			return // the next connection sends it
		}
	}
	if eof && at.Send(ctx, api.Frame{Type: api.FrameStdinEOF}) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == at {
		l.blocked, l.sending = false, false
		l.moved.Broadcast()
	}
}
