package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestHeard: a pause is what lies between two beats as they arrive, a beat that has not
// come yet is part of it, and what was told once isn't told again.
func TestHeard(t *testing.T) {
	ctx := t.Context()
	h := &heard{}
	if _, _, err := h.beaten(ctx); err == nil {
		t.Error("a heart that was never heard has a longest gap")
	}
	h = &heard{}
	began := time.Now().Add(-100 * time.Millisecond)
	for _, at := range []int{0, 1, 3, 63, 64} {
		h.beat(began.Add(time.Duration(at) * time.Millisecond))
	}
	longest, median, err := h.beaten(ctx)
	if err != nil || longest != 60 || median != 2 {
		t.Errorf("the longest is %v, the median %v, %v", longest, median, err)
	}
	if longest, _, err = h.beaten(ctx); err != nil || longest < 36 {
		t.Errorf("a beat that is late is not part of it: %v, %v", longest, err)
	}
	h.fail(errors.New("it has stopped"))
	if _, _, err := h.beaten(ctx); err == nil {
		t.Error("a heart that has stopped has a longest gap")
	}
}

// TestListenEnds: the listener is gone when end returns, and says why nothing is heard.
func TestListenEnds(t *testing.T) {
	beats := make(chan struct{}, 1)
	h := listen(t.Context(), func(ctx context.Context) error {
		select {
		case <-beats:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, func() {})
	beats <- struct{}{}
	if err := h.awaitBeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.end()
	if _, _, err := h.beaten(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}
