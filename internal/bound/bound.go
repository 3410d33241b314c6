// Package bound limits what parsing untrusted bytes may cost.
//
// It owns the limits that a parser of bytes from a cell, a guest, an image or a
// repository needs: how much input it reads (Reader, ReadAll), and how much the
// input may expand to (Budget, Values), which is counted while expanding and
// before anything is allocated.
//
// It promises that a limit is an error of kind too-large that names the object,
// the limit and its unit, and is never a silent cut: a parser that sees the end
// of a bounded reader has seen the end of its input.
//
// It leaves to the caller what the limits are, and what a result that could not
// be read means.
package bound

import (
	"errors"
	"io"
	"strconv"
	"sync/atomic"

	"github.com/pando-dev/pando/internal/cell"
)

// An Error says that an object exceeds a limit.
type Error struct {
	What  string // the object: ".git/index", "the rules of .gitignore files"
	Limit int64
	Unit  string // of the limit: "bytes", "entries", "steps"
}

func (e *Error) Error() string {
	return "cannot read " + e.What + ": it has more than " + strconv.FormatInt(e.Limit, 10) + " " + e.Unit
}

// Exceeded returns the limit that err is about, nil if it is about none.
func Exceeded(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// Exceed returns the error that an object exceeds a limit.
func Exceed(what string, limit int64, unit string) error {
	return &cell.Error{Op: "bound", Kind: cell.TooLarge, Err: &Error{What: what, Limit: limit, Unit: unit}}
}

// Reader returns r as a reader of at most limit bytes. Beyond them it fails
// with an Error about what, where io.LimitReader reports the end of the input.
func Reader(r io.Reader, what string, limit int64) io.Reader {
	return &reader{r: r, what: what, limit: limit, left: limit}
}

type reader struct {
	r           io.Reader
	what        string
	limit, left int64
}

func (b *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	// One byte beyond the limit tells input that ends there from more input.
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if int64(n) > b.left {
		n, err = int(b.left), Exceed(b.what, b.limit, "bytes")
	}
	b.left -= int64(n)
	return n, err
}

// ReadAll reads r to its end, which must come within limit bytes.
func ReadAll(r io.Reader, what string, limit int64) ([]byte, error) {
	return io.ReadAll(Reader(r, what, limit))
}

// A Budget counts what input expands to: bytes of memory, entries, or steps of
// work. It counts no time, so that a verdict does not depend on load. A nil
// Budget has no limit. It is safe for concurrent use.
type Budget struct {
	what, unit string
	limit      int64
	left       atomic.Int64
}

// NewBudget returns a budget of limit units for an object.
func NewBudget(what string, limit int64, unit string) *Budget {
	b := &Budget{what: what, unit: unit, limit: limit}
	b.left.Store(limit)
	return b
}

// Spend takes n units, or fails. The caller spends before it allocates or
// works. After the first failure nothing can be spent any more.
func (b *Budget) Spend(n int64) error {
	if b == nil {
		return nil
	}
	for {
		left := b.left.Load()
		next := left - n
		if n < 0 || n > left {
			next = -1
		}
		if b.left.CompareAndSwap(left, next) {
			if next < 0 {
				return Exceed(b.what, b.limit, b.unit)
			}
			return nil
		}
	}
}

// Values fails when JSON has more than limit values, which it counts without
// decoding it: "{}," is three bytes, and can be a struct of hundreds.
func Values(b []byte, what string, limit int64) error {
	if int64(len(b)) <= limit {
		return nil
	}
	n, quoted := int64(1), false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	if n > limit {
		return Exceed(what, limit, "values")
	}
	return nil
}
