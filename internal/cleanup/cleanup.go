// Package cleanup is the undo stack: what was done is taken back last first
// when something later fails. It leaves to the caller what an undo does.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Grace is how long one undo may take when the work's own context is gone.
const Grace = 20 * time.Second

// Stack holds undo functions. The zero Stack is empty and ready. It is not
// safe for concurrent use.
type Stack struct {
	undos []undo
}

type undo struct {
	name string
	f    func(context.Context) error
}

// Add puts f on top. name appears in the error when f fails.
func (s *Stack) Add(name string, f func(context.Context) error) {
	s.undos = append(s.undos, undo{name, f})
}

// OnError runs the stack, last first, when *err is not nil, and joins what
// could not be undone to it. Use it deferred. Undos run without ctx's
// cancellation, each with Grace.
func (s *Stack) OnError(ctx context.Context, err *error) {
	if *err == nil {
		return
	}
	*err = errors.Join(*err, s.Run(ctx))
}

// Run undoes everything, last first, and empties the stack.
func (s *Stack) Run(ctx context.Context) error {
	var failed []error
	for i := len(s.undos) - 1; i >= 0; i-- {
		u := s.undos[i]
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), Grace)
		if err := u.f(c); err != nil {
			failed = append(failed, fmt.Errorf("cannot undo %q: %w", u.name, err))
		}
		cancel()
	}
	s.undos = nil
	return errors.Join(failed...)
}
