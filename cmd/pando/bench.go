//go:build linux

package main

import (
	"context"
	"io"

	"github.com/pando-dev/pando/bench"
	"github.com/pando-dev/pando/internal/cli"
)

// harness is package bench as the command line knows it.
type harness struct{}

// Axes implements cli.Bench.
func (harness) Axes() (out [][2]string) {
	for _, a := range bench.Axes() {
		out = append(out, [2]string{a.Name, a.About})
	}
	return out
}

// Backends implements cli.Bench.
func (harness) Backends() map[string][]string { return bench.Backends() }

// Measure implements cli.Bench.
func (harness) Measure(ctx context.Context, r cli.BenchRequest) (cli.BenchResult, error) {
	res, err := bench.Run(ctx, bench.Options{
		Axes: r.Axes, Backend: r.Backend, Runs: r.Runs, Quick: r.Quick, Keep: r.Keep, Dir: r.Dir, N: r.N, Limit: r.Limit, Log: r.Log, Version: version,
	})
	if res == nil {
		return nil, err
	}
	return res, err
}

// Load implements cli.Bench.
func (harness) Load(args []string, out io.Writer) error { return bench.Load(args, out) }
