package guest

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkTrue is a command that does nothing, from Start to Release.
func BenchmarkTrue(b *testing.B) {
	for _, w := range []struct {
		name string
		bed  func(testing.TB) *bed
	}{{"linux", onLinux}, {"gvisor", inGvisor}} {
		b.Run(w.name, func(b *testing.B) {
			g := w.bed(b)
			n := 0
			for b.Loop() {
				n++
				c := sh(fmt.Sprint(n), "")
				c.Process.Args, c.Process.Path = []string{"true"}, []string{"/bin/true"}
				p, err := g.Start(g.ctx, c, [3]*os.File{}, nil)
				if err != nil {
					b.Fatal(err)
				}
				p.Wait(func() {})
				p.Release()
			}
		})
	}
}

// BenchmarkForkExec is the same without any of it.
func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		p.Wait()
	}
}
