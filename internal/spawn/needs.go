package spawn

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What a fork takes, before one of its template was measured. In bytes.
const (
	assumedMemory = 4 << 20
	assumedDisk   = 64 << 10
	assumedImage  = 64 << 20 // memory of a copy, with a kernel of its own
)

// Needs are resources of the host: bytes of memory and of disk, and processes.
type Needs struct {
	Memory, Disk, Processes int64
}

// footprint is what a fork of a template took, as measured, in bytes. 0: not
// measured.
type footprint struct {
	memory, disk int64
}

// reserve finds out what the forks need and what the host has, refuses what is
// beyond it, and promises what they need to no other request until release is called.
func (f *forking) reserve(template string, copied bool) (release func(), err error) {
	m := f.m
	host, err := m.cfg.Host()
	if err != nil {
		return nil, err
	}
	n := int64(f.count)
	m.mu.Lock()
	defer m.mu.Unlock()
	one := footprint{memory: assumedMemory, disk: assumedDisk}
	if copied {
		one.memory = assumedImage
	}
	f.res.Needs.Measured = []string{}
	if was := m.measured[template]; was != nil && was.memory > 0 {
		one.memory = was.memory
		f.res.Needs.Measured = append(f.res.Needs.Measured, "memory")
	}
	if was := m.measured[template]; was != nil && was.disk > 0 {
		one.disk = was.disk
		f.res.Needs.Measured = append(f.res.Needs.Measured, "disk")
	}
	want := Needs{Memory: n * one.memory, Disk: n * one.disk, Processes: n}
	if len(f.req.Command) > 0 {
		want.Processes *= 2
	}
	left := Needs{host.Memory - m.promised.Memory, host.Disk - m.promised.Disk, host.Processes - m.promised.Processes}
	r := &f.res.Needs
	r.Cells, r.Memory, r.MemoryAvailable, r.Disk, r.DiskAvailable, r.Processes, r.ProcessesLeft = f.count, want.Memory, left.Memory, want.Disk, left.Disk, want.Processes, left.Processes
	what := ""
	switch {
	case want.Memory > left.Memory:
		what = fmt.Sprintf("they would take %s of memory, and %s may be used", policy.FormatSize(want.Memory), policy.FormatSize(max(left.Memory, 0)))
	case want.Disk > left.Disk:
		what = fmt.Sprintf("they would take %s of disk, and %s may be used", policy.FormatSize(want.Disk), policy.FormatSize(max(left.Disk, 0)))
	case want.Processes > left.Processes:
		what = fmt.Sprintf("they would be %d processes, and %d more may be", want.Processes, max(left.Processes, 0))
	}
	if what != "" {
		r.Refused = what
		if f.req.DryRun {
			return func() {}, nil
		}
		return nil, cell.Errorf(cell.Unavailable, "spawn.ForkTemplate", "ask for fewer, or remove cells that are not needed: pando ls",
			"cannot make %s%s: %s", countForks(f.count), ofTemplate(template), what)
	}
	if f.req.DryRun {
		return func() {}, nil
	}
	m.promised.Memory += want.Memory
	m.promised.Disk += want.Disk
	m.promised.Processes += want.Processes
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.promised.Memory -= want.Memory
		m.promised.Disk -= want.Disk
		m.promised.Processes -= want.Processes
	}, nil
}

// fit refuses forks that the process that holds their template has no room for, before
// any of them is made, and promises the room to no other request until release is called.
// What was made ahead has its room already.
func (f *forking) fit(ctx context.Context, template string) (release func(), err error) {
	m, id := f.m, f.par.c.ID
	if f.par.image != nil {
		return func() {}, nil
	}
	n := int64(f.count)
	m.mu.Lock()
	if p := m.pools[template]; p != nil && p.cell == id {
		n = max(n-int64(len(p.slots)), 0)
	}
	m.mu.Unlock()
	if n == 0 { // they are made already: no keeper has to be asked
		return func() {}, nil
	}
	left, err := f.par.w.ForksLeft(ctx, f.par.c.Talks())
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if left -= m.fitting[id]; n > left {
		return nil, cell.Errorf(cell.Unavailable, "spawn.ForkTemplate", cell.RoomHint, "cannot make %s%s: its keeper has file descriptors for %d more", countForks(f.count), ofTemplate(template), max(left, 0))
	}
	m.fitting[id] += n
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.fitting[id] -= n; m.fitting[id] == 0 {
			delete(m.fitting, id)
		}
	}, nil
}

// promise is reserve for branches: what they take is what forks are assumed to.
func (m *Manager) promise(count int, copied bool) (release func(), err error) {
	f := &forking{m: m, count: count}
	return f.reserve("", copied)
}

// keepBack is what forks leave of the host's memory, in bytes: its page cache
// and everything else need some, too.
const keepBack = 256 << 20

// Available measures what forks may use of the host. reserve is the part of the disk that stays free, in
// bytes.
func Available(space Space, reserve int64) (Needs, error) {
	var h Needs
	available, _, err := linux.Memory()
	if err != nil {
		return h, err
	}
	h.Memory = available - keepBack
	free, keep, err := space.Free()
	if err != nil {
		return h, err
	}
	h.Disk = free - max(keep, reserve)
	used, most := Processes()
	h.Processes = most - used
	return h, nil
}

// Processes is how many threads there are on the host, and how many there may
// be: by the kernel's limits, and by those of the user that has most of them.
func Processes() (used, most int64) {
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
func (m *Manager) measure(ctx context.Context, template string, made []*child) {
	var memory, disk []int64
	for _, ch := range made[:min(len(made), sampled)] {
		if st, err := ch.w.Warmth(ctx); err == nil && st.Memory > 0 {
			memory = append(memory, st.Memory)
		}
		if n := m.diskOf(ch.c); n > 0 {
			disk = append(disk, n)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.measured[template]
	if was == nil {
		was = &footprint{}
		m.measured[template] = was
	}
	was.memory, was.disk = usual(memory, was.memory), usual(disk, was.disk)
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
func (m *Manager) diskOf(c *state.Cell) int64 {
	sum, err := workspace.DiskUse(m.private(c.ID))
	if err != nil {
		return 0
	}
	p, err := m.cfg.Provider(c.Provider)
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
