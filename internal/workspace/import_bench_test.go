package workspace_test

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/overlay"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// bigSource makes a directory with n files of 10 KiB on average, a hundred in
// a folder: 100,000 are 1 GiB.
func bigSource(b *testing.B, n int) string {
	b.Helper()
	dir := b.TempDir()
	r := rand.New(rand.NewSource(1))
	text := make([]byte, 64<<10)
	for i := range text {
		text[i] = "abcdefghijklmnopqrstuvwxyz    \n{}();.=_\"0123456789ABCDEF"[r.Intn(55)]
	}
	for i := range n {
		at := filepath.Join(dir, fmt.Sprintf("pkg%d/mod%d/file%d.go", i%10, i/100, i))
		if i%100 < 10 {
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		size := int(r.ExpFloat64() * 10240)
		from := r.Intn(4096)
		if err := os.WriteFile(at, text[from:from+min(size, 60<<10)], 0o644); err != nil {
			b.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // nothing in it is of this tick any more
	return dir
}

// BenchmarkImport compares the first import, an import of the same again, and
// one after ten changes, with cp -a of the same files in the same run.
func BenchmarkImport(b *testing.B) {
	cp := testenv.Program(b, "cp")
	for _, n := range []int{10_000, 100_000} {
		source := bigSource(b, n)
		b.Run(fmt.Sprintf("%d/cp", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				to, err := os.MkdirTemp(b.TempDir(), "")
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if out, err := exec.Command(cp, "-a", source+"/.", to).CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				b.StopTimer()
				os.RemoveAll(to)
				b.StartTimer()
			}
		})
		var last *workspace.Imported
		b.Run(fmt.Sprintf("%d/first", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				p := overlay.New(b.TempDir(), true)
				b.StartTimer()
				im, err := workspace.Import(context.Background(), workspace.ImportRequest{Source: source, Provider: p, Objects: workspacetest.NewObjects()})
				if err != nil {
					b.Fatal(err)
				}
				if im.Files != n || im.Copied != n {
					b.Fatalf("%d files, %d copied", im.Files, im.Copied)
				}
				b.StopTimer()
				p.Drop(im.State.Layers[0])
				b.StartTimer()
			}
		})
		p := overlay.New(b.TempDir(), true)
		objs := workspacetest.NewObjects()
		again := func(b *testing.B, copied int) {
			im, err := workspace.Import(context.Background(), workspace.ImportRequest{Source: source, Provider: p, Objects: objs, Prev: last})
			if err != nil {
				b.Fatal(err)
			}
			if im.Copied != copied {
				b.Fatalf("%d copied, want %d", im.Copied, copied)
			}
			last = im
		}
		again(b, n)
		b.Run(fmt.Sprintf("%d/again", n), func(b *testing.B) {
			for b.Loop() {
				again(b, 0)
			}
		})
		b.Run(fmt.Sprintf("%d/ten", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				if len(last.State.Layers) > 6 {
					last = nil
					again(b, n)
				}
				for j := range 10 {
					at := filepath.Join(source, fmt.Sprintf("pkg%d/mod%d/file%d.go", j, j, j*101))
					if err := os.WriteFile(at, []byte(fmt.Sprint("changed ", i)), 0o644); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(50 * time.Millisecond)
				b.StartTimer()
				again(b, 10)
			}
		})
	}
}
