package guestkernel

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
)

// deaf is a kernel with a guest that never answers. It notes when it was booted.
type deaf struct {
	Kernel
	at    []time.Time
	ends  []int // of its connections
	stall time.Duration
}

func (d *deaf) Boot(_ *isolation.Stage, conn *os.File, _ []*os.File) (<-chan error, error) {
	d.at = append(d.at, time.Now())
	fd, err := unix.Dup(int(conn.Fd()))
	d.ends = append(d.ends, fd)
	time.Sleep(d.stall)
	return nil, err
}

func (d *deaf) Said() string { return "nothing" }

// A kernel with a silent guest is booted again as often as its kind says. Each
// has more time than the one before: it may hang, or its host be busy.
func TestAgain(t *testing.T) {
	const patience = 20 * time.Millisecond
	d := &deaf{}
	s := &sandbox{kind: &Kind{Name: "deaf", Title: "it", Patience: patience, Again: 2}, kernel: d}
	err := s.boot(nil)
	for _, fd := range d.ends {
		unix.Close(fd)
	}
	d.at = append(d.at, time.Now())
	if cell.KindOf(err) != cell.Timeout || len(d.at) != 4 {
		t.Fatalf("it was booted %d times: %v", len(d.at)-1, err)
	}
	for i := range 3 {
		if took, want := d.at[i+1].Sub(d.at[i]), patience<<i; took < want {
			t.Errorf("try %d had %v, not %v", i+1, took, want)
		}
	}
}

// A keeper that stood still until the guest's time was over, and the time of the greeting
// too, has another kernel booted.
func TestAgainAfterAStandstill(t *testing.T) {
	d := &deaf{stall: 1100 * time.Millisecond}
	s := &sandbox{kind: &Kind{Name: "deaf", Title: "it", Patience: time.Millisecond, Again: 3}, kernel: d}
	err := s.boot(nil)
	for _, fd := range d.ends {
		unix.Close(fd)
	}
	if cell.KindOf(err) != cell.Timeout || len(d.at) != 4 {
		t.Fatalf("it was booted %d times: %v", len(d.at), err)
	}
}
