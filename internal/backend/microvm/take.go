package microvm

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/vmm/ram"
)

// takeGrace is the time limit for copying a machine's memory, both while it runs and during the
// pause.
const takeGrace = 5 * time.Minute

// taking is a capture of memory in progress.
type taking struct {
	*ram.Taking
	base, to *os.File
	id       os.FileInfo // of the destination
	own      bool        // it is the difference to the base
}

// close ends the capture and removes all of it from the machine's process.
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

// mostOwn is the maximum difference to the base, in bytes, that is copied for each copy. It
// takes a tenth of a second. More is better mapped by all copies.
const mostOwn = 64 << 20

// Prepare implements guestkernel.Kernel. It copies all memory while the machine runs, and records
// later writes. With own it copies only the difference to the base, if the machine began as a
// copy and that is small.
func (m *machine) Prepare(files []*os.File, own bool) (*os.File, error) {
	m.let()
	t, err := m.begin(files[imageMemory], own)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taking = t
	time.AfterFunc(takeGrace, func() { m.letOne(t) }) // the caller died before the capture
	if !t.own {
		return nil, nil
	}
	return duplicate(t.base)
}

// begin starts to copy the machine's memory into a file.
func (m *machine) begin(to *os.File, own bool) (_ *taking, err error) {
	failpoint.Step("take the memory of a machine")
	t := &taking{}
	defer func() {
		if err != nil {
			t.files()
		}
	}()
	if t.id, err = to.Stat(); err != nil {
		return nil, err
	}
	if t.to, err = duplicate(to); err != nil { // the caller closes the other one
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
		return nil, cell.Errorf(cell.Unavailable, "microvm", "", "the cell's machine has ended")
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeGrace)
	defer cancel()
	if st, err := t.base.Stat(); own && err == nil && st.Mode().IsRegular() { // otherwise it was booted, and all memory is its own
		has, err := ram.Own(pid, t.base, m.like.Memory)
		if err != nil {
			return nil, err
		}
		t.own = has <= mostOwn
	}
	t.Taking, err = ram.Begin(ctx, pid, t.base, m.like.Memory, t.to, ram.Options{Unrecorded: m.unrecorded, Own: t.own})
	return t, err
}

// take completes the copy of a stopped machine's memory, with what was prepared, if anything.
// It returns how the memory was copied, and whether it is only the difference to the base.
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
	failpoint.Step("take the rest of the memory of a machine")
	s, err := t.Finish(ctx)
	return t.how(s), t.own, err
}

// how describes how the memory was copied.
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

// let ends what Prepare started.
func (m *machine) let() { m.letOne(nil) }

// letOne ends a capture if it is still the current one; nil ends any.
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
