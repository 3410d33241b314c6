package microvm

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/vmm/ram"
)

// takeGrace is how long it may take to copy a machine's memory while it runs, and
// while it stands still.
const takeGrace = 5 * time.Minute

// taking is memory that is being captured.
type taking struct {
	*ram.Taking
	base, to *os.File
	id       os.FileInfo // of the file that it goes to
	own      bool        // it is what the machine has of its own, over the base
}

// close ends it: nothing of it is left in the machine's process.
func (t *taking) close() {
	t.Close()
	t.files()
}

// files closes its files.
func (t *taking) files() {
	for _, f := range []*os.File{t.base, t.to} {
		f.Close()
	}
}

// mostOwn is how much of its own a machine may have that copies are given, each its own,
// in bytes: it takes a tenth of a second. What is more is better mapped by all.
const mostOwn = 64 << 20

// Prepare implements staged.Kernel: all memory is copied while the machine runs, and
// what it writes meanwhile is recorded. With own it is only what the machine has written
// since it began, if it began as a copy and that is little.
func (m *machine) Prepare(files []*os.File, own bool) (*os.File, error) {
	m.let()
	t, err := m.begin(files[imageMemory], own)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taking = t
	time.AfterFunc(takeGrace, func() { m.letOne(t) }) // who wanted it has ended before it captured
	if !t.own {
		return nil, nil
	}
	return duplicate(t.base)
}

// begin begins to take the machine's memory into a file.
func (m *machine) begin(to *os.File, own bool) (_ *taking, err error) {
	fault.Step("take the memory of a machine")
	t := &taking{}
	defer func() {
		if err != nil {
			t.files()
		}
	}()
	if t.id, err = to.Stat(); err != nil {
		return nil, err
	}
	if t.to, err = duplicate(to); err != nil { // the caller closes the other
		return nil, err
	}
	m.mu.Lock()
	pid, there := 0, m.ram != nil && m.qemu != nil
	if there {
		pid = m.qemu.PID
		t.base, err = duplicate(m.ram)
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, cell.Errorf(cell.Unavailable, "microvm", "", "the cell's machine is gone")
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeGrace)
	defer cancel()
	if st, err := t.base.Stat(); own && err == nil && st.Mode().IsRegular() { // else it was booted, and all it has is its own
		has, err := ram.Own(pid, t.base, m.like.Memory)
		if err != nil {
			return nil, err
		}
		t.own = has <= mostOwn
	}
	t.Taking, err = ram.Begin(ctx, pid, t.base, m.like.Memory, t.to, ram.Options{Unrecorded: m.unrecorded, Own: t.own})
	return t, err
}

// take completes the memory of a machine that stands still: what was prepared, if it
// was. It says how it was taken, and whether it is only what the machine has of its own.
func (m *machine) take(to *os.File) (how string, own bool, err error) {
	st, err := to.Stat()
	if err != nil {
		return "", false, err
	}
	m.mu.Lock()
	t := m.taking
	m.mu.Unlock()
	if t == nil || !os.SameFile(st, t.id) {
		m.let()
		if t, err = m.begin(to, false); err != nil {
			return "", false, err
		}
		m.mu.Lock()
		m.taking = t
		m.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeGrace)
	defer cancel()
	fault.Step("take the rest of the memory of a machine")
	s, err := t.Finish(ctx)
	return t.how(s), t.own, err
}

// how says in words how memory was taken.
func (t *taking) how(s ram.Stats) string {
	base := ""
	switch {
	case t.own:
		base = "what it began with is shared, "
	case s.BaseBytes > 0:
		base = policy.FormatSize(s.BaseBytes) + " that it began with were copied, "
	}
	if !s.Recorded {
		return fmt.Sprintf("in the pause: %s%s of its own were copied (%s)", base, policy.FormatSize(s.Paused), s.Why)
	}
	return fmt.Sprintf("recorded: %s%s of its own were copied while it ran, %s in the pause", base, policy.FormatSize(s.Before), policy.FormatSize(s.Paused))
}

// let ends what Prepare began.
func (m *machine) let() { m.letOne(nil) }

// letOne ends a taking, if it is still the machine's; nil is whichever is.
func (m *machine) letOne(which *taking) {
	m.closing.Lock()
	defer m.closing.Unlock()
	m.mu.Lock()
	t := m.taking
	if t == nil || which != nil && which != t {
		m.mu.Unlock()
		return
	}
	m.taking = nil
	m.mu.Unlock()
	t.close()
}
