package cleanup

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestUndoLastFirstAndJoined(t *testing.T) {
	var order []string
	ctx, cancel := context.WithCancel(context.Background())
	work := func() (err error) {
		var s Stack
		defer s.OnError(ctx, &err)
		s.Add("one", func(c context.Context) error { order = append(order, "one"); return c.Err() })
		s.Add("two", func(context.Context) error { order = append(order, "two"); return errors.New("stuck") })
		cancel()
		return errors.New("failed")
	}
	err := work()
	if strings.Join(order, " ") != "two one" {
		t.Errorf("order %v", order)
	}
	if !strings.Contains(err.Error(), `cannot undo "two": stuck`) || strings.Contains(err.Error(), `"one"`) {
		t.Errorf("err = %v", err)
	}
}

func TestNothingUndoneOnSuccess(t *testing.T) {
	ran := false
	func() (err error) {
		var s Stack
		defer s.OnError(context.Background(), &err)
		s.Add("x", func(context.Context) error { ran = true; return nil })
		return nil
	}()
	if ran {
		t.Error("undone although nothing failed")
	}
}
