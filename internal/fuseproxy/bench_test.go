package fuseproxy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// each measures in a mount and in a plain directory.
func each(b *testing.B, f func(b *testing.B, dir string)) {
	bed := newBed(b)
	plain := filepath.Join(filepath.Dir(bed.tree), "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		b.Fatal(err)
	}
	b.Run("plain", func(b *testing.B) { f(b, plain) })
	b.Run("mount", func(b *testing.B) { f(b, bed.mnt) })
}

func BenchmarkStat(b *testing.B) {
	each(b, func(b *testing.B, dir string) {
		write(b, dir+"/d/f", "f")
		var x unix.Stat_t
		for b.Loop() {
			unix.Stat(dir+"/d/f", &x)
		}
	})
}

func BenchmarkStatUncached(b *testing.B) {
	each(b, func(b *testing.B, dir string) {
		write(b, dir+"/d/f", "f")
		var x unix.Statx_t
		for b.Loop() {
			unix.Statx(unix.AT_FDCWD, dir+"/d/f", unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &x)
		}
	})
}

func BenchmarkSequential(b *testing.B) {
	const size = 64 << 20
	buf := make([]byte, 1<<20)
	through := func(b *testing.B, f *os.File, step func([]byte) (int, error)) {
		for range size / len(buf) {
			if _, err := step(buf); err != nil {
				b.Fatal(err)
			}
		}
		f.Close()
	}
	each(b, func(b *testing.B, dir string) {
		b.Run("write", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				f, err := os.Create(dir + "/big")
				if err != nil {
					b.Fatal(err)
				}
				through(b, f, f.Write)
			}
		})
		b.Run("read", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				f, err := os.Open(dir + "/big")
				if err != nil {
					b.Fatal(err)
				}
				unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
				through(b, f, f.Read)
			}
		})
	})
}

func BenchmarkGitStatus(b *testing.B) {
	git := testenv.Program(b, "git")
	each(b, func(b *testing.B, dir string) {
		for i := range 10_000 {
			write(b, fmt.Sprintf("%s/d%d/f%d", dir, i%200, i), "x")
		}
		run(b, dir, git, "init", "-q")
		run(b, dir, git, "add", ".")
		for b.Loop() {
			run(b, dir, git, "status", "--porcelain")
		}
	})
}
