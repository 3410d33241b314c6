package isolation

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
)

// BenchmarkCell is what a cell that talks costs more than a silent one, at each
// step; best run with -benchtime=50x on a quiet machine. Medians.
func BenchmarkCell(b *testing.B) {
	for _, kind := range []string{"silent", plain, vethOnly} {
		b.Run(kind, func(b *testing.B) {
			n := NewHost(config(b))
			defer n.Close()
			if kind == vethOnly {
				n.keepers.Backend = kind
			}
			laps := map[string][]float64{}
			for b.Loop() {
				spec := backendtest.Little(b)
				if kind != "silent" {
					spec.Network = backendtest.Allowing(b, "example.com")
				}
				time.Sleep(100 * time.Millisecond) // a keeper is started ahead
				at := time.Now()
				lap := func(step string) {
					laps[step] = append(laps[step], float64(time.Since(at).Microseconds())/1000)
					at = time.Now()
				}
				i, err := n.Create(b.Context(), spec)
				if err != nil {
					b.Fatal(err)
				}
				lap("create-ms")
				for _, step := range []string{"start-ms", "next-ms"} {
					p, err := i.Start(b.Context(), step, cell.Start{Process: cell.Process{Args: []string{"true"}, Path: []string{"/usr/bin/true"}, Workdir: "/work"}}, [3]*os.File{})
					if err != nil {
						b.Fatal(err)
					}
					lap(step)
					if _, err := p.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
					at = time.Now()
				}
				if err := i.Remove(context.Background(), "done"); err != nil {
					b.Fatal(err)
				}
				lap("remove-ms")
			}
			for step, l := range laps {
				slices.Sort(l)
				b.ReportMetric(l[len(l)/2], step)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
