package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// contest is work that several contestants do in the same rounds.
type contest struct {
	cases       []Case // without series
	contestants []contestant
	runs        int  // 0: the lab's
	settle      bool // write what is dirty before each
}

// contestant is one way of doing the work.
type contestant struct {
	name    string
	ours    bool
	command string   // to repeat the measurement
	lacks   []string // what it doesn't do that ours does
	against string   // the series of ours that it is compared with
	every   int      // takes part in every so many rounds alone; 0: in all
	// round does the work once and records what it measured.
	round func(ctx context.Context, r *recorder) error
}

// recorder takes the samples of one contestant in one round.
type recorder struct {
	n      int // of the round; 0 is thrown away
	series map[string]*Series
	order  *[]string
}

// time measures do and records it in a case.
func (r *recorder) time(name string, do func() error) error {
	t := time.Now()
	if err := do(); err != nil {
		return err
	}
	r.put(name, toMS(time.Since(t)))
	return nil
}

// put records a sample that was measured otherwise.
func (r *recorder) put(name string, ms float64) {
	if r.n == 0 {
		return
	}
	s := r.of(name)
	s.Samples = append(s.Samples, ms)
}

// part records a part of the latest sample.
func (r *recorder) part(name, part string, ms float64) {
	if r.n == 0 {
		return
	}
	s := r.of(name)
	i := slices.IndexFunc(s.Parts, func(p Part) bool { return p.Name == part })
	if i < 0 {
		s.Parts = append(s.Parts, Part{Name: part})
		i = len(s.Parts) - 1
	}
	s.Parts[i].Samples = append(s.Parts[i].Samples, ms)
}

func (r *recorder) of(name string) *Series {
	s := r.series[name]
	if s == nil {
		s = &Series{Samples: []float64{}}
		r.series[name] = s
		*r.order = append(*r.order, name)
	}
	return s
}

// hold lets the contestants alternate and adds their cases to out. A peer that
// fails is absent from there on, with the reason; if one of ours fails, that
// is an error.
func (l *lab) hold(ctx context.Context, out *AxisResult, c contest) (err error) {
	runs := c.runs
	if runs == 0 {
		runs = l.runs
	}
	taken := make([]map[string]*Series, len(c.contestants))
	gone := make([]bool, len(c.contestants))
	for i := range taken {
		taken[i] = map[string]*Series{}
	}
	var order []string
	var failed error
	defer func() { err = errors.Join(err, l.clear()) }()
	for n := 0; n <= runs && failed == nil; n++ {
		l.log("%s: round %d of %d", out.Axis, n, runs)
		for k := range c.contestants {
			i := (k + n) % len(c.contestants)
			if gone[i] || c.contestants[i].every > 1 && n%c.contestants[i].every != 0 {
				continue
			}
			if c.settle {
				if err := l.settle(); err != nil {
					return err
				}
			}
			if err := l.rest(ctx); err != nil {
				return err
			}
			err := c.contestants[i].round(ctx, &recorder{n: n, series: taken[i], order: &order})
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil {
				continue
			}
			if c.contestants[i].ours {
				failed = errors.Join(failed, fmt.Errorf("%s, round %d: %w", c.contestants[i].name, n, err))
				continue
			}
			gone[i] = true
			out.absent(c.contestants[i].name, firstLine("it failed: "+err.Error()))
		}
	}
	for _, spec := range c.cases {
		for i, x := range c.contestants {
			s := taken[i][spec.Name]
			if s == nil || gone[i] {
				continue
			}
			s.Name, s.Ours, s.Command, s.Lacks, s.Against = x.name, x.ours, x.command, x.lacks, x.against
			s.Summary = Summarize(s.Samples)
			for j := range s.Parts {
				s.Parts[j].Summary = Summarize(s.Parts[j].Samples)
			}
			spec.Series = append(spec.Series, *s)
		}
		if spec.Unit == "" {
			spec.Unit = "ms"
		}
		if spec.Goals == nil {
			spec.Goals = []Goal{}
		}
		if len(spec.Series) > 0 {
			out.Cases = append(out.Cases, spec)
		}
	}
	for _, name := range order {
		if !slices.ContainsFunc(c.cases, func(s Case) bool { return s.Name == name }) {
			return fmt.Errorf("case %q was recorded but never declared", name)
		}
	}
	return failed
}

// rest waits between samples.
func (l *lab) rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(l.pause):
		return nil
	}
}
