package engine

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What a fork takes, before one of its template was measured. In bytes.
const (
	assumedMemory = 4 << 20
	assumedDisk   = 64 << 10
	assumedWhole  = 64 << 20 // memory of a copy, with a kernel of its own
)

// needs are resources of the host.
type needs struct {
	memory, disk, processes int64
}

// footprint is what a fork of a template took, as measured, in bytes. 0: not
// measured.
type footprint struct {
	memory, disk int64
}

// reserve finds out what the forks need and what the host has, refuses what is
// beyond it, and promises the rest to nobody else until release is called.
func (f *forking) reserve(template string, whole bool) (release func(), err error) {
	e := f.e
	host, err := e.hostHas()
	if err != nil {
		return nil, err
	}
	n := int64(f.count)
	e.mu.Lock()
	defer e.mu.Unlock()
	one := footprint{memory: assumedMemory, disk: assumedDisk}
	if whole {
		one.memory = assumedWhole
	}
	f.res.Needs.Measured = []string{}
	if m := e.measured[template]; m != nil && m.memory > 0 {
		one.memory = m.memory
		f.res.Needs.Measured = append(f.res.Needs.Measured, "memory")
	}
	if m := e.measured[template]; m != nil && m.disk > 0 {
		one.disk = m.disk
		f.res.Needs.Measured = append(f.res.Needs.Measured, "disk")
	}
	want := needs{memory: n * one.memory, disk: n * one.disk, processes: n}
	if len(f.req.Command) > 0 {
		want.processes *= 2
	}
	left := needs{host.memory - e.promised.memory, host.disk - e.promised.disk, host.processes - e.promised.processes}
	r := &f.res.Needs
	r.Cells, r.Memory, r.MemoryAvailable, r.Disk, r.DiskAvailable, r.Processes, r.ProcessesLeft = f.count, want.memory, left.memory, want.disk, left.disk, want.processes, left.processes
	what := ""
	switch {
	case want.memory > left.memory:
		what = fmt.Sprintf("they would take %s of memory, and %s may be used", policy.FormatSize(want.memory), policy.FormatSize(max(left.memory, 0)))
	case want.disk > left.disk:
		what = fmt.Sprintf("they would take %s of disk, and %s may be used", policy.FormatSize(want.disk), policy.FormatSize(max(left.disk, 0)))
	case want.processes > left.processes:
		what = fmt.Sprintf("they would be %d processes, and %d more may be", want.processes, max(left.processes, 0))
	}
	if what != "" {
		r.Refused = what
		if f.req.DryRun {
			return func() {}, nil
		}
		return nil, cell.Errorf(cell.Unavailable, "engine.ForkTemplate", "ask for fewer, or remove cells that nobody needs: pando ls",
			"cannot make %s%s: %s", countForks(f.count), ofTemplate(template), what)
	}
	if f.req.DryRun {
		return func() {}, nil
	}
	e.promised.memory += want.memory
	e.promised.disk += want.disk
	e.promised.processes += want.processes
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.promised.memory -= want.memory
		e.promised.disk -= want.disk
		e.promised.processes -= want.processes
	}, nil
}

// fit refuses forks that the process that holds their template has no room for, before
// any of them is made, and promises the room to nobody else until release is called.
// What was made ahead has its room already.
func (f *forking) fit(ctx context.Context, template string) (release func(), err error) {
	e, id := f.e, f.par.c.ID
	if f.par.whole != nil {
		return func() {}, nil
	}
	n := int64(f.count)
	e.mu.Lock()
	if p := e.pools[template]; p != nil && p.cell == id {
		n = max(n-int64(len(p.slots)), 0)
	}
	e.mu.Unlock()
	if n == 0 { // they are made already: nobody has to be asked
		return func() {}, nil
	}
	left, err := f.par.w.ForksLeft(ctx, f.par.c.Talks())
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if left -= e.fitting[id]; n > left {
		return nil, cell.Errorf(cell.Unavailable, "engine.ForkTemplate", cell.RoomHint, "cannot make %s%s: its keeper has file descriptors for %d more", countForks(f.count), ofTemplate(template), max(left, 0))
	}
	e.fitting[id] += n
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.fitting[id] -= n; e.fitting[id] == 0 {
			delete(e.fitting, id)
		}
	}, nil
}

// promise is reserve for branches: what they take is what forks are assumed to.
func (e *Engine) promise(count int, whole bool) (release func(), err error) {
	f := &forking{e: e, count: count}
	return f.reserve("", whole)
}

// keepBack is what forks leave of the host's memory, in bytes: its page cache
// and everything else need some, too.
const keepBack = 256 << 20

// hostHasNow measures what forks may use of the host.
func (e *Engine) hostHasNow() (needs, error) {
	var h needs
	available, _, err := linux.Memory()
	if err != nil {
		return h, err
	}
	h.memory = available - keepBack
	free, keep, err := e.gc.Free()
	if err != nil {
		return h, err
	}
	h.disk = free - max(keep, gc.ReserveSize)
	used, most := processes()
	h.processes = most - used
	return h, nil
}

// processes is how many threads there are on the host, and how many there may
// be: by the kernel's limits, and by the user's own, who has most of them.
func processes() (used, most int64) {
	b, _ := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(b)); len(fields) > 3 {
		_, all, _ := strings.Cut(fields[3], "/")
		used, _ = strconv.ParseInt(all, 10, 64)
	}
	most = 1 << 22
	for _, name := range []string{"kernel/pid_max", "kernel/threads-max", "user/max_user_namespaces", "user/max_pid_namespaces", "user/max_net_namespaces", "user/max_mnt_namespaces"} {
		b, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			most = min(most, n)
		}
	}
	var lim unix.Rlimit
	if os.Getuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &lim) == nil && lim.Cur < uint64(most) {
		most = int64(lim.Cur)
	}
	return used, most
}

// sampled is how many forks of a batch are measured.
const sampled = 3

// measure notes what forks of a template take, by a sample of them.
func (e *Engine) measure(ctx context.Context, template string, made []*child) {
	var memory, disk []int64
	for _, ch := range made[:min(len(made), sampled)] {
		if st, err := ch.w.Warmth(ctx); err == nil && st.Memory > 0 {
			memory = append(memory, st.Memory)
		}
		if n := e.diskOf(ch.c); n > 0 {
			disk = append(disk, n)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.measured[template]
	if m == nil {
		m = &footprint{}
		e.measured[template] = m
	}
	m.memory, m.disk = usual(memory, m.memory), usual(disk, m.disk)
}

// usual is what a sample took on average, or three quarters of what was usual
// before: what was once much may be so again.
func usual(sample []int64, before int64) int64 {
	if len(sample) == 0 {
		return before
	}
	sum := int64(0)
	for _, n := range sample {
		sum += n
	}
	return max(sum/int64(len(sample)), before*3/4)
}

// diskOf is what a fork has written, in bytes; 0 if that can't be seen.
func (e *Engine) diskOf(c *state.Cell) int64 {
	sum, err := workspace.DiskUse(e.private(c.ID))
	if err != nil {
		return 0
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return 0
	}
	for _, g := range c.Gens() {
		n, err := p.Size(g.Layer)
		if err != nil {
			return 0
		}
		sum += n
	}
	return sum
}

func ofTemplate(name string) string {
	if name == "" {
		return ""
	}
	return " of template " + name
}

// countForks is so many forks in words.
func countForks(n int) string {
	if n == 1 {
		return "1 fork"
	}
	return fmt.Sprintf("%d forks", n)
}
