package proto

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// What a program decides on crosses the socket: the kind, the subject and the system's error,
// but no file of the other process is taken for one of this.
func TestErrorsCrossTheSocket(t *testing.T) {
	over := func(err error) error {
		b, _ := json.Marshal(Wire(err))
		var w WireError
		if err := json.Unmarshal(b, &w); err != nil {
			t.Fatal(err)
		}
		return fmt.Errorf("cannot go on: %w", w.Err("x"))
	}
	full := cell.Errorf(cell.Unavailable, "x", "free some", "cannot write: %w", unix.ENOSPC)
	twice := over(over(full))
	if !errors.Is(twice, unix.ENOSPC) || errors.Is(twice, unix.EIO) || cell.KindOf(twice) != cell.Unavailable || cell.HintOf(twice) != "free some" || cell.ErrnoOf(twice) != unix.ENOSPC {
		t.Errorf("%v, errno %d", twice, cell.ErrnoOf(twice))
	}
	if err := over(cell.Errorf(cell.Denied, "x", "", "cannot start: it got out").About(cell.Canary)); cell.SubjectOf(err) != cell.Canary {
		t.Errorf("%v is about %q", err, cell.SubjectOf(err))
	}
	if err := over(fmt.Errorf("cannot open: %w", fs.ErrNotExist)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.Errno(0)) {
		t.Errorf("%v is an error of this process", err)
	}
	if err := over(unix.ENOENT); errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
}
