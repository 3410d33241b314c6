package staged

import (
	"cmp"
	"context"
	"time"

	"github.com/pando-dev/pando/internal/guest"
)

// A kernel may hang: an emulated machine has been seen to, with one of its processors
// spinning. Whoever started a command in it would wait for ever, so while one runs its
// guest is asked now and then whether it is there, and one that does not answer counts as
// lost.

// deafAfter is how often the patience of a kind must pass before a guest that does not
// answer counts as lost: on a busy host it may only have to wait for a processor.
const deafAfter = 6

// attend asks a guest, until ended is closed.
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

// answers reports whether a guest answers a question in time. While it stands still it
// need not.
func (s *sandbox) answers(ask func(context.Context) error, limit time.Duration) bool {
	before, still := s.stops()
	if still {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if ask(ctx); ctx.Err() == nil { // or it was lost, and who waits for it has heard of that
		return true
	}
	after, still := s.stops()
	return still || after != before
}

// stops is how often the cell was frozen, and whether it is.
func (s *sandbox) stops() (n int, still bool) {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	return s.froze, s.frozen || s.resting
}
