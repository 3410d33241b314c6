package memory_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/memory"
	"github.com/pando-dev/pando/internal/store/disk"
)

const benchPages = 64 << 20 / page

func openDisk(b *testing.B, dir string) *disk.Store {
	st, err := disk.Open(dir)
	must(b, err)
	b.Cleanup(func() { st.Close() })
	return st
}

func benchLoad(b *testing.B, st memory.Store, root cell.Digest, size int) {
	dir := filepath.Join(b.TempDir(), "image")
	b.SetBytes(int64(size))
	for b.Loop() {
		must(b, memory.LoadDir(context.Background(), st, root, dir))
		b.StopTimer()
		must(b, os.RemoveAll(dir))
		b.StartTimer()
	}
}

// The eighth image of a chain, each a little different from the one before,
// beside the same image alone in a store.
func BenchmarkLoadChain(b *testing.B) {
	chain, flat := openDisk(b, b.TempDir()), openDisk(b, b.TempDir())
	p := pages(1, benchPages)
	var root cell.Digest
	for i := range 8 {
		p = insert(touch(p, uint64(i), benchPages/100), uint64(i), 1000*i)
		if i == 0 {
			root, _ = save(b, chain, image(p))
		} else {
			root, _ = save(b, chain, image(p), root)
		}
	}
	if alone, _ := save(b, flat, image(p)); alone != root {
		b.Fatal("not the same image")
	}
	for range 3 { // alternating: machines drift
		b.Run("flat", func(b *testing.B) { benchLoad(b, flat, root, len(p)) })
		b.Run("eighth", func(b *testing.B) { benchLoad(b, chain, root, len(p)) })
	}
}

func BenchmarkSave(b *testing.B) {
	p := pages(1, benchPages)
	b.Run("first", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			st := openDisk(b, filepath.Join(b.TempDir(), fmt.Sprint(i)))
			b.StartTimer()
			save(b, st, image(p))
		}
	})
	for _, percent := range []int{0, 1, 10} {
		b.Run(fmt.Sprintf("touched%d%%", percent), func(b *testing.B) {
			st := openDisk(b, b.TempDir())
			base, _ := save(b, st, image(p))
			b.SetBytes(int64(len(p)))
			var stats memory.Stats
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				next := bytes.Clone(p)
				if percent > 0 {
					next = touch(p, uint64(i), benchPages*percent/100)
				}
				b.StartTimer()
				_, stats = save(b, st, image(next), base)
			}
			b.ReportMetric(float64(stats.Written)/(1<<20), "written-MiB")
		})
	}
}
