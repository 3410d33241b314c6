package vmmtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/ram"
)

// A Way is a driver's own method to take a running machine's memory into a file. It returns the
// pause and the number of bytes written.
type Way func(ctx context.Context, m vmm.Machine, to *os.File) (pause time.Duration, n int64, err error)

// BenchPauses measures the capture of a machine with dirty memory of several sizes, in MiB,
// that writes a page per millisecond: the pause, the longest delay of that page, the total
// time, and the bytes copied in the pause and in total. Figures are medians. Images are in
// memory, on TMPDIR, and on a file system with reflinks, if one can be made.
func BenchPauses(t *testing.B, d vmm.Driver, accel vmm.Accel, ways map[string]Way) {
	s := newSuite(t, d, accel)
	places := map[string]func() *os.File{
		"memory": func() *os.File { return memoryFile(t) },
		"tmpdir": func() *os.File { return diskFile(t, t.TempDir()) },
	}
	xfs := reflinks(t)
	if xfs != "" {
		places["xfs"] = func() *os.File { return diskFile(t, xfs) }
	}
	for _, mib := range []int{16, 256, 1024} {
		t.Run(fmt.Sprintf("%dMiB", mib), func(t *testing.B) {
			k := s.bench(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*patience)
			defer cancel()
			k.ctx, k.size = ctx, int64(mib+256)<<20
			for _, place := range []string{"memory", "tmpdir", "xfs"} {
				if file := places[place]; file != nil {
					t.Run(place, func(t *testing.B) { k.pauses(t, mib, file, ways) })
				}
			}
			if xfs != "" {
				t.Run("xfs/cloned", func(t *testing.B) { k.clones(t, mib, diskFile(t, xfs), xfs) })
			}
		})
	}
}

// pauses measures all ways for one destination.
func (k *bench) pauses(t *testing.B, mib int, file func() *os.File, ways map[string]Way) {
	b, base := k.beating(mib)
	t.Run("in-the-pause", func(t *testing.B) {
		b.measure(t, file, func(to *os.File) cost {
			x := b.takeStopped(base, to)
			return cost{x.pause, x.Before, x.Before}
		})
	})
	t.Run("recorded", func(t *testing.B) {
		b.measure(t, file, func(to *os.File) cost {
			x := b.take(base, to)
			return cost{x.pause, x.Paused, x.Before + x.Paused}
		})
	})
	for name, way := range ways {
		t.Run(name, func(t *testing.B) {
			b.measure(t, file, func(to *os.File) cost {
				pause, n, err := way(b.ctx, b.m, to)
				b.must(err)
				return cost{pause, 0, n}
			})
		})
	}
	image := file()
	defer image.Close()
	x := b.take(base, image)
	b.kill()
	c := k.child(image)
	defer c.kill()
	c.load(x.devices)
	t.Run("recorded-copy", func(t *testing.B) {
		c.measure(t, file, func(to *os.File) cost {
			x := c.take(image, to)
			return cost{x.pause, x.Paused, x.BaseBytes + x.Before + x.Paused}
		})
	})
}

// takeStopped takes the memory of a machine that is stopped first.
func (b *box) takeStopped(base, to *os.File) (x taken) {
	b.Helper()
	began := time.Now()
	b.must(b.m.Stop(b.ctx))
	var devices bytes.Buffer
	b.must(b.m.Save(b.ctx, &devices))
	k, err := ram.Begin(b.ctx, b.cmd.Process.Pid, base, b.size, to, ram.Options{Unrecorded: true})
	b.must(err)
	defer k.Close()
	x.Stats, err = k.Finish(b.ctx)
	b.must(err)
	b.must(b.m.Continue(b.ctx))
	x.pause = time.Since(began)
	return x
}

// clones measures a machine with a file as shared memory, which the file system clones in the
// pause.
func (k *bench) clones(t *testing.B, mib int, base *os.File, dir string) {
	defer base.Close()
	k.must(base.Truncate(k.size))
	b := k.start(k.spec(base))
	defer b.kill()
	b.ask(fmt.Sprintf("dirty %d", mib), "dirty")
	b.ask("beat", "beating")
	b.measure(t, func() *os.File { return diskFile(k, dir) }, func(to *os.File) cost {
		b.must(base.Sync()) // otherwise the clone syncs it, in the pause
		began := time.Now()
		b.must(b.m.Stop(b.ctx))
		var devices bytes.Buffer
		b.must(b.m.Save(b.ctx, &devices))
		b.must(unix.IoctlFileClone(int(to.Fd()), int(base.Fd())))
		b.must(b.m.Continue(b.ctx))
		return cost{time.Since(began), 0, 0}
	})
}

// cost is the cost of one image: bytes copied in the pause and in total.
type cost struct {
	pause      time.Duration
	paused, in int64
}

// measure takes images, and reports medians.
func (b *box) measure(t *testing.B, file func() *os.File, take func(to *os.File) cost) {
	var pauses, gaps, totals, paused, all []float64
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for t.Loop() {
		to := file()
		b.gap()
		began := time.Now()
		c := take(to)
		total := time.Since(began)
		gap := max(b.gap(), b.longest)
		b.longest = 0
		to.Close()
		pauses, gaps, totals = append(pauses, ms(c.pause)), append(gaps, ms(gap)), append(totals, ms(total))
		paused, all = append(paused, float64(c.paused)/(1<<20)), append(all, float64(c.in)/(1<<20))
	}
	for _, x := range []struct {
		unit string
		of   []float64
	}{{"pause-ms", pauses}, {"gap-ms", gaps}, {"total-ms", totals}, {"paused-MiB", paused}, {"copied-MiB", all}} {
		slices.Sort(x.of)
		t.ReportMetric(x.of[len(x.of)/2], x.unit)
	}
	t.ReportMetric(0, "ns/op")
}

func memoryFile(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "image")
}

// diskFile returns an unnamed file in a directory.
func diskFile(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(dir, "image")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// reflinks makes a file system with reflinks in a file, or returns "" if it cannot.
func reflinks(t testing.TB) string {
	t.Helper()
	testenv.Root(t)
	mkfs, err := exec.LookPath("mkfs.xfs")
	if err != nil {
		t.Logf("without reflinks: %v", err)
		return ""
	}
	disk, dir := t.TempDir()+"/disk", t.TempDir()
	for _, cmd := range []string{"truncate -s 16G " + disk, mkfs + " -q " + disk, "mount -o loop " + disk + " " + dir} {
		args := strings.Fields(cmd)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Logf("without reflinks: %v: %s", err, out)
			return ""
		}
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
