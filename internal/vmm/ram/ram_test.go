package ram

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

const mib = 1 << 20

// filled is a base of 64 MiB with data from 8 to 12.
func filled(t *testing.T) *os.File {
	t.Helper()
	base := memfd(t, 64*mib)
	_, err := base.WriteAt(bytes.Repeat([]byte("base"), mib), 8*mib)
	must(t, err)
	return base
}

// taken takes the child's memory, with no more written to it than it does by itself.
func (c *child) taken() (*os.File, Stats) {
	c.Helper()
	to := memfd(c, 0)
	before, err := find(c.pid, c.base, c.size)
	must(c, err)
	k, err := Begin(c.Context(), c.pid, c.base, c.size, to, Options{})
	must(c, err)
	s, err := k.Finish(c.Context())
	must(c, err)
	must(c, k.Close())
	c.same(to)
	c.untouched()
	if after, err := find(c.pid, c.base, c.size); err != nil || !slices.Equal(before, after) {
		c.Errorf("its mappings were %v, and are %v (%v)", before, after, err)
	}
	return to, s
}

// untouched fails if anything of a Taking is left in the child.
func (c *child) untouched() {
	c.Helper()
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", c.pid))
	must(c, err)
	for line := range strings.Lines(string(smaps)) {
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && slices.Contains(strings.Fields(flags), "uw") {
			c.Error("its memory is still registered")
		}
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.pid))
	must(c, err)
	for _, task := range tasks {
		if status, err := os.ReadFile(task); err == nil && !bytes.Contains(status, []byte("TracerPid:\t0\n")) {
			c.Errorf("%s is still traced", task)
		}
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.pid))
	must(c, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.Contains(to, "userfaultfd") {
			c.Error("it still has a userfaultfd")
		}
	}
}

// TestTakesWhatIsWrittenMeanwhile takes the memory of a process that never stops to
// write but for the pause, and has more written when the rounds are over: ten times.
func TestTakesWhatIsWrittenMeanwhile(t *testing.T) {
	c := newChild(t, filled(t), "private")
	c.say("write %d %d 3", 4*mib, 8*mib)
	c.say("loop %d %d", 32*mib, 8*mib)
	for i := range 10 {
		to := memfd(t, 0)
		k, err := Begin(t.Context(), c.pid, c.base, c.size, to, Options{})
		must(t, err)
		c.say("write %d %d %d", 2*mib, 3*mib, i)
		c.say("stop")
		s, err := k.Finish(t.Context())
		must(t, err)
		c.same(to)
		c.say("go")
		must(t, k.Close())
		c.untouched()
		if !s.Recorded {
			t.Skipf("needs a kernel that records writes: %s", s.Why)
		}
		if s.Paused < 3*mib || s.Paused > 12*mib {
			t.Errorf("%d bytes were copied in the pause, where 3 MiB to 12 were written", s.Paused)
		}
	}
}

// TestAPauseHoldsOnlyWhatWasWritten, also where much was written before.
func TestAPauseHoldsOnlyWhatWasWritten(t *testing.T) {
	c := newChild(t, memfd(t, 64*mib), "private")
	c.say("write 0 %d 1", 48*mib)
	for i := range 3 {
		to := memfd(t, 0)
		k, err := Begin(t.Context(), c.pid, c.base, c.size, to, Options{})
		must(t, err)
		c.say("touch %d %d %d", 20*mib, 5*pageSize, i+7)
		c.say("touch %d %d %d", 60*mib, 2*pageSize, i+7) // the first time its own
		c.say("read 0 %d", 64*mib)
		s, err := k.Finish(t.Context())
		must(t, err)
		must(t, k.Close())
		c.same(to)
		if s.Recorded && s.Paused != 7*pageSize {
			t.Errorf("%d bytes were copied in the pause, where 7 pages were written", s.Paused)
		}
		if s.Recorded && s.Before < 48*mib {
			t.Errorf("%d bytes were copied before", s.Before)
		}
	}
}

// TestZerosAreHoles, also where the base has data.
func TestZerosAreHoles(t *testing.T) {
	c := newChild(t, filled(t), "private")
	c.say("write %d %d 3", 10*mib, 4*mib) // some pages of which are zeros
	c.say("zero %d %d", 9*mib, 4*mib)
	c.say("read 0 %d", 64*mib) // which makes pages of the base
	to, s := c.taken()
	var st unix.Stat_t
	must(t, unix.Fstat(int(to.Fd()), &st))
	if got := st.Blocks * 512; got > 2*mib { // 8 to 9 of the base, 13 to 14 of its own
		t.Errorf("an image with 2 MiB of data takes %d bytes (%+v)", got, s)
	}
}

// TestBlankHoles: a page that is written first where the base has a hole exists once,
// what the process has of its own stays, and all of it is taken.
func TestBlankHoles(t *testing.T) {
	base := filled(t)
	c := newChild(t, base, "private")
	c.say("write %d %d 7", 20*mib, pageSize) // before
	if f, err := linux.UserfaultOf(c.pid); err == nil {
		f.Close()
	} else if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skipf("needs threads that can be made to make calls: %v", err)
	}
	n, err := Blank(c.pid, base, c.size)
	must(t, err)
	if n < 50*mib || n > 60*mib {
		t.Errorf("%d bytes are new, of 60 MiB of holes", n)
	}
	if got := c.say("read %d %d", 20*mib, pageSize); got != "7" {
		t.Errorf("what was written before is %s", got)
	}
	has := func() int64 {
		var st unix.Stat_t
		must(t, unix.Fstat(int(base.Fd()), &st))
		return st.Blocks * 512
	}
	had := has()
	c.say("write %d %d 3", 4*mib, 8*mib) // half of it over data
	c.say("write %d %d 3", 24*mib, 40*mib)
	c.say("zero %d %d", 40*mib, mib)
	if got := has(); got != had {
		t.Errorf("its base has %d bytes, and had %d", got, had)
	}
	_, s := c.taken()
	if s.BaseBytes > had {
		t.Errorf("%d bytes of the base were copied, which has %d", s.BaseBytes, had)
	}
}

// TestAMappingInPieces: a process may protect parts of its memory, which makes
// several mappings of one.
func TestAMappingInPieces(t *testing.T) {
	c := newChild(t, filled(t), "private")
	c.say("write 0 %d 5", 64*mib)
	c.say("protect %d %d", 16*mib, 4*mib)
	c.say("protect %d %d", 40*mib, pageSize)
	c.taken()
}

// readingFills reports whether this kernel gives a reader of new memory its own pages,
// where others show it the one of zeros.
func readingFills(t *testing.T, zero *os.File) bool {
	t.Helper()
	page, err := unix.Mmap(int(zero.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must(t, err)
	defer unix.Munmap(page)
	if page[0] != 0 {
		t.Fatal("new memory is not zero")
	}
	pagemap, err := os.Open("/proc/self/pagemap")
	must(t, err)
	defer pagemap.Close()
	fills := false
	at := addressOf(page)
	if scan(own)(pagemap, area{start: at, end: at + uint64(len(page))}, func(uint64, uint64) { fills = true }) != nil {
		return false // nor does it record writes
	}
	return fills
}

// blocks is how much room a file takes, in bytes.
func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	return st.Blocks * 512
}

// TestABlankBase: memory that begins with nothing is the device's.
func TestABlankBase(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	must(t, err)
	defer zero.Close()
	c := newChild(t, zero, "private")
	c.say("write %d %d 5", 3*mib, 5*mib)
	c.say("read 0 %d", 64*mib)
	most := int64(5 * mib)
	if readingFills(t, zero) {
		most = 64 * mib
	}
	if to, s := c.taken(); s.BaseBytes > 0 || s.Recorded && s.Before > most {
		t.Errorf("it was taken by %+v", s)
	} else if n := blocks(t, to); n > 6*mib {
		t.Errorf("%d bytes are kept of 5 MiB", n)
	}
}

// TestHugePages: those are written in whole, and come to pieces.
func TestHugePages(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	must(t, err)
	defer zero.Close()
	c := newChild(t, zero, "huge")
	c.say("write 0 %d 5", 32*mib)
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", c.pid))
	must(t, err)
	if bytes.Contains(smaps, []byte("AnonHugePages:         0 kB")) {
		t.Skip("needs huge pages")
	}
	for i := range 3 {
		to := memfd(t, 0)
		k, err := Begin(t.Context(), c.pid, c.base, c.size, to, Options{})
		must(t, err)
		c.say("touch %d %d %d", 3*mib, 2*pageSize, i)
		s, err := k.Finish(t.Context())
		must(t, err)
		must(t, k.Close())
		c.same(to)
		if s.Recorded && s.Paused != 2*pageSize {
			t.Errorf("%d bytes were copied in the pause, where 2 pages were written", s.Paused)
		}
	}
}

// TestWithoutARecord has the same image, and copies all of it in the pause.
func TestWithoutARecord(t *testing.T) {
	c := newChild(t, filled(t), "private")
	c.say("write %d %d 3", 4*mib, 8*mib)
	must(t, unix.Prlimit(c.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: 0}, nil))
	_, s := c.taken()
	if s.Recorded || s.Why == "" || s.Rounds != 0 || s.Paused != 8*mib {
		t.Errorf("a process that can't have a userfaultfd was taken by %+v", s)
	}
	areas, err := find(c.pid, c.base, c.size)
	must(t, err)
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", c.pid))
	must(t, err)
	k := &Taking{areas: areas, pagemap: pagemap}
	defer k.Close()
	old, _, err := k.pages(readPagemap)
	must(t, err)
	now, n, err := k.pages(scan(own))
	if must(t, err); !slices.Equal(old, now) || n != 8*mib {
		t.Errorf("older kernels find %v, this one %v", old, now)
	}
}

func TestRefusals(t *testing.T) {
	base := filled(t)
	c := newChild(t, base, "private")
	shared := newChild(t, base, "shared")
	for name, try := range map[string]struct {
		pid  int
		base *os.File
		size int64
		want cell.Kind
	}{
		"a file that isn't mapped":     {c.pid, filled(t), c.size, cell.Invalid},
		"more than is mapped":          {c.pid, base, c.size + 4096, cell.Invalid},
		"half a page":                  {c.pid, base, c.size - 100, cell.Invalid},
		"a file that is mapped shared": {shared.pid, base, c.size, cell.Invalid},
		"no process":                   {1 << 30, base, c.size, cell.Unavailable},
	} {
		if _, err := Begin(t.Context(), try.pid, try.base, try.size, memfd(t, 0), Options{}); cell.KindOf(err) != try.want {
			t.Errorf("%s: %v, want %s", name, err, try.want)
		}
	}
}

// TestAFullDiskIsAnError, before the pause and in it, and changes nothing.
func TestAFullDiskIsAnError(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	c := newChild(t, filled(t), "private")
	c.say("write %d %d 5", 20*mib, 4*mib)
	to, err := os.Create(dir + "/image")
	must(t, err)
	defer to.Close()
	before := c.say("digest")

	k, err := Begin(t.Context(), c.pid, c.base, c.size, to, Options{})
	must(t, err)
	c.say("write %d %d 5", 32*mib, 20*mib)
	if _, err := k.Finish(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("in the pause it is %v", err)
	}
	must(t, k.Close())
	c.untouched()
	if before == c.say("digest") {
		t.Error("nothing was written")
	}
	if _, err := Begin(t.Context(), c.pid, c.base, c.size, to, Options{}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("before the pause it is %v", err)
	}
	c.untouched()
	c.taken()
}

// TestAStoppedProcess can be taken, and remains stopped.
func TestAStoppedProcess(t *testing.T) {
	c := newChild(t, filled(t), "private")
	c.say("write %d %d 5", 20*mib, 4*mib)
	must(t, c.cmd.Process.Signal(unix.SIGSTOP))
	to := memfd(t, 0)
	k, err := Begin(t.Context(), c.pid, c.base, c.size, to, Options{})
	must(t, err)
	s, err := k.Finish(t.Context())
	must(t, err)
	must(t, k.Close())
	if s.Why != "" {
		t.Errorf("its writes are not recorded: %s", s.Why)
	}
	testenv.Eventually(t, func() bool { // it stops anew, in the kernel, when the tracer lets it go
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid))
		must(t, err)
		return bytes.Contains(status, []byte("T (stopped)"))
	}, "the process remains stopped: that")
	must(t, c.cmd.Process.Signal(unix.SIGCONT))
	c.same(to)
	c.untouched()
}

// TestGivenUp: a caller that has enough gets its reason, and nothing is left.
func TestGivenUp(t *testing.T) {
	c := newChild(t, filled(t), "private")
	c.say("write 0 %d 5", 32*mib)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	k, err := Begin(ctx, c.pid, c.base, c.size, memfd(t, 0), Options{})
	must(t, err)
	c.say("write 0 %d 6", 32*mib)
	cancel(enough)
	if _, err := k.Finish(ctx); !errors.Is(err, enough) {
		t.Errorf("a Taking that is given up ends with %v", err)
	}
	if _, err := k.Finish(t.Context()); cell.KindOf(err) != cell.Conflict {
		t.Errorf("and may be finished again: %v", err)
	}
	must(t, k.Close())
	must(t, k.Close())
	if _, err := Begin(ctx, c.pid, c.base, c.size, memfd(t, 0), Options{}); !errors.Is(err, enough) {
		t.Errorf("a Taking that is given up begins with %v", err)
	}
	c.untouched()
	c.taken()
}

// TestAProcessThatEnds ends between Begin and Finish: there is no image of it.
func TestAProcessThatEnds(t *testing.T) {
	c, k := begunChild(t, Options{})
	c.say("write 0 %d 6", 32*mib)
	c.end()
	if s, err := k.Finish(t.Context()); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("the memory of a process that has ended is %+v, %v", s, err)
	}
}

// TestX48AProcessThatEndsIsNoImage has a process end at each point of Finish, on kernels
// that list no pages of such a process and report success, as well.
func TestX48AProcessThatEndsIsNoImage(t *testing.T) {
	none := func(*os.File, area, func(start, end uint64)) error { return nil }
	for _, o := range []Options{{}, {Unrecorded: true}, {Own: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			t.Run("before the pages are listed", func(t *testing.T) {
				c, k := begunChild(t, o)
				c.end()
				s, err := k.finish(t.Context(), none)
				noImage(t, s, err)
			})
			t.Run("after the last page", func(t *testing.T) {
				c, k := begunChild(t, o)
				s, err := k.finish(t.Context(), func(*os.File, area, func(start, end uint64)) error {
					c.end()
					return nil
				})
				noImage(t, s, err)
			})
			t.Run("after the pages were listed", func(t *testing.T) {
				c, k := begunChild(t, o)
				s, err := k.finish(t.Context(), func(pagemap *os.File, a area, add func(start, end uint64)) error {
					defer c.end()
					return all(pagemap, a, add)
				})
				noImage(t, s, err)
			})
			t.Run("not at all", func(t *testing.T) {
				_, k := begunChild(t, o)
				_, err := k.finish(t.Context(), none)
				must(t, err)
			})
		})
	}
}

// TestX48AnotherProgramIsNoImage has a process execute another program: the process is
// there still, and its memory is not.
func TestX48AnotherProgramIsNoImage(t *testing.T) {
	c, k := begunChild(t, Options{Unrecorded: true})
	if got := c.say("exec"); got != "ready" {
		t.Fatalf("the child says %q", got)
	}
	s, err := k.finish(t.Context(), func(*os.File, area, func(start, end uint64)) error { return nil })
	noImage(t, s, err)
}

func noImage(t *testing.T, s Stats, err error) {
	t.Helper()
	if cell.KindOf(err) != cell.Unavailable || !strings.Contains(err.Error(), "it has ended") {
		t.Errorf("the memory of a process that has ended is %+v, %v", s, err)
	}
}

// begunChild is a process with a capture of its memory in progress.
func begunChild(t *testing.T, o Options) (*child, *Taking) {
	t.Helper()
	c := newChild(t, filled(t), "private")
	c.say("write 0 %d 5", 32*mib)
	k, err := Begin(t.Context(), c.pid, c.base, c.size, memfd(t, 0), o)
	must(t, err)
	t.Cleanup(func() { k.Close() })
	return c, k
}
