package cli

import (
	"context"
	"fmt"
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
	// reconnectWindow is how long a daemon is looked for that is gone.
	reconnectWindow = 30 * time.Second
	// othersStart is how much of it passes before the client starts a daemon itself: where
	// one is supervised (pando serve), its supervisor starts the next.
	othersStart = 3 * time.Second
	// inputWindow is how much standard input may be under way, in bytes.
	inputWindow = 1 << 20
	// resent is how much input one frame has that is sent again, in bytes.
	resent = 32 << 10
)

// A link is the stream of a command over connections that follow each other. When one
// breaks, output goes on where it was, and input where the command's side says that it is:
// what is under way is kept until it is known to have arrived.
type link struct {
	// again attaches again, from offsets of the two outputs; nil: the stream ends when its
	// connection breaks.
	again func(ctx context.Context, stdout, stderr int64) (attachment, error)
	alive func(ctx context.Context) bool // a daemon answers
	ended func() bool                    // the last one was told to end: the client starts none
	what  string                         // goes on meanwhile
	feeds bool                           // standard input is passed on

	detach   detachKeys // that leave the command; it has a terminal
	stays    bool       // it goes on without its client: a hang-up leaves it
	readOnly bool       // signals leave it, too, and so does Ctrl-C
	redrawn  func()     // a screen follows that replaces what the terminal shows

	stdout, stderr int64 // of these outputs came; for the goroutine that receives
	broke          bool  // a connection did; the same

	mu      sync.Mutex // guards what follows
	moved   sync.Cond
	at      attachment // nil while there is none
	over    chan struct{}
	closed  bool   // over is
	left    bool   // the user did it
	had     int64  // bytes of input that the command is known to have
	known   bool   // the command's side says so
	kept    []byte // input that follows them, and was sent
	eof     bool   // the input has ended, and that was sent
	hold    bool   // input waits: the new connection does not know what had arrived
	sending bool   // what is kept is being sent again
	signal  []byte // that could not be sent
	size    []byte // of the terminal, the same
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

// leave ends the stream since the user leaves the command.
func (l *link) leave() {
	l.mu.Lock()
	l.left = true
	l.mu.Unlock()
	l.close()
}

// wasLeft reports whether the user has left the command.
func (l *link) wasLeft() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left
}

// recv returns the next frame. It attaches again when the connection breaks, and says so.
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
		say(fmt.Sprintf("lost the daemon; %s goes on, connecting again", l.what))
		if err := l.reconnect(ctx, err); err != nil {
			return f, err
		}
		say("connected again")
	}
}

// reconnect attaches again, within reconnectWindow. It fails with lost when no daemon can be
// reached, or with what the daemon says.
func (l *link) reconnect(ctx context.Context, lost error) error {
	l.mu.Lock()
	l.at.Close()
	l.at, l.hold, l.sending, l.broke = nil, true, false, true
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

// attached takes a new connection into use.
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

// output returns what is new in a frame of output.
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

// screen returns a part of what draws the screen, and goes on from there.
func (l *link) screen(f api.Frame) ([]byte, error) {
	at, b, err := f.OutputData()
	if err == nil && len(b) == 0 && l.redrawn != nil {
		l.redrawn()
	}
	l.stdout = max(l.stdout, at)
	return b, err
}

// missing is how many bytes of output were lost when a connection broke.
func (l *link) missing(o api.Outputs) int64 {
	if !l.broke {
		return 0
	}
	return max(o.Stdout.Bytes-l.stdout, 0) + max(o.Stderr.Bytes-l.stderr, 0)
}

// tell sends a signal, or the size of the terminal: now, or to the next connection.
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

// mayFeed waits until input can be sent, and returns where; nil when the stream has ended.
// The caller holds the lock.
func (l *link) mayFeed() attachment {
	for !l.closed && (l.at == nil || l.hold || l.known && len(l.kept) >= inputWindow) {
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
	// What a connection that breaks has not taken is sent to the next one.
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

// taken notes that the command has bytes of input. To a new connection it sends what follows.
func (l *link) taken(ctx context.Context, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = true
	if n := min(bytes-l.had, int64(len(l.kept))); n > 0 {
		l.kept = l.kept[n:]
		l.had += n
	}
	l.moved.Broadcast()
	if !l.hold || l.sending {
		return
	}
	l.sending = true
	go l.sendAgain(ctx, l.at, slices.Clone(l.kept), l.eof)
}

// sendAgain sends input that was under way when a connection broke, and lets go on with what
// follows.
func (l *link) sendAgain(ctx context.Context, at attachment, text []byte, eof bool) {
	for piece := range slices.Chunk(text, resent) {
		if at.Send(ctx, api.Frame{Type: api.FrameStdin, Payload: piece}) != nil {
			return // the next connection gets it
		}
	}
	if eof && at.Send(ctx, api.Frame{Type: api.FrameStdinEOF}) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == at {
		l.hold, l.sending = false, false
		l.moved.Broadcast()
	}
}
