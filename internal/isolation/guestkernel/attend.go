package guestkernel

import (
	"cmp"
	"context"
	"time"

	"github.com/pando-dev/pando/internal/guest"
)

// A kernel may hang: an emulated machine has done so, with one processor spinning. A command in
// it would never return. So while a command runs, the guest is polled, and counts as lost if it
// does not answer.

// deafAfter is the number of Kind.Patience periods after which a silent guest counts as lost.
// On a busy host it may only wait for a processor.
const deafAfter = 6

// attend polls a guest until ended is closed.
func (s *sandbox) attend(g *guest.Client, ended <-chan struct{}) {
	every := cmp.Or(s.kind.Patience, bootGrace)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-g.Done():
			return
		case <-tick.C:
		}
		ask := func(ctx context.Context) error {
			_, err := g.Processes(ctx)
			return err
		}
		if !s.answers(ask, deafAfter*every) {
			s.deaf.Store(true)
			g.Close()
			return
		}
	}
}

// answers reports whether a guest answers a question in time. A paused guest need not.
func (s *sandbox) answers(ask func(context.Context) error, limit time.Duration) bool {
	before, still := s.stops()
	if still {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if ask(ctx); ctx.Err() == nil { // or it was lost, which its waiters already know
		return true
	}
	after, still := s.stops()
	return still || after != before
}

// stops returns how often the cell was frozen, and whether it is frozen now.
func (s *sandbox) stops() (n int, still bool) {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	return s.froze, s.frozen || s.resting
}
