package guestkernel

import (
	"context"
	"testing"
	"time"
)

// A guest that says nothing counts as lost, unless it stands still, or did meanwhile.
func TestAnswers(t *testing.T) {
	const limit = 20 * time.Millisecond
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, x := range map[string]struct {
		ask  func(s *sandbox) func(context.Context) error
		want bool
	}{
		"answers":   {func(*sandbox) func(context.Context) error { return func(context.Context) error { return nil } }, true},
		"is silent": {func(*sandbox) func(context.Context) error { return silent }, false},
		"stands still": {func(s *sandbox) func(context.Context) error {
			s.frozen = true
			return silent
		}, true},
		"rests": {func(s *sandbox) func(context.Context) error {
			s.resting = true
			return silent
		}, true},
		"was frozen and goes on": {func(s *sandbox) func(context.Context) error {
			return func(ctx context.Context) error {
				s.freezing.Lock()
				s.froze++
				s.freezing.Unlock()
				return silent(ctx)
			}
		}, true},
	} {
		s := &sandbox{kind: &Kind{}}
		if got := s.answers(x.ask(s), limit); got != x.want {
			t.Errorf("one that %s: %v, want %v", name, got, x.want)
		}
	}
}
