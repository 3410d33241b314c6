// Package bench measures pando, and beside it the programs people would use
// instead, and says which goals are met.
//
// It owns the harness: installations of its own below a temporary directory
// (never the user's), trees of files, peers, the alternation of all of them,
// statistics, and the document that comes out. It drives the executable itself
// and the Go client, from outside, as a user does.
//
// It promises: every contestant of a case is measured in the same run, one
// round after another, each round beginning with another one; a first round
// that is thrown away; every sample in the document; nothing counted that did
// not give the right answer; a peer that is not there, or failed, named with
// the reason. When Run returns nothing is left: no process, no file (unless
// Keep).
//
// It leaves to the caller: a quiet machine. The load is in the document.
//
// An axis is one file (cli.go is the shortest) and one line in the table
// below.
package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/sibling"
)

// An Axis is one thing that is measured.
type Axis struct {
	Name  string // as in `pando bench NAME`
	About string // one sentence
	// measure adds cases, absences and notes to out. What it adds before it
	// fails is kept.
	measure func(ctx context.Context, l *lab, out *AxisResult) error
	cells   func(ctx context.Context, l *lab, out *AxisResult) error // on a backend that is asked for; nil if nothing differs there
}

// Axes lists all axes in the order of PERFORMANCE.md.
func Axes() []Axis {
	return []Axis{runAxis, checkpointAxis, importAxis, gatewayAxis, ledgerAxis, policyAxis, execAxis, spawnAxis, evalAxis, branchAxis, chainAxis, densityAxis, ipythonAxis, apiAxis, crowdAxis, agentsAxis, cachesAxis, acceptAxis, sshAxis, servicesAxis, stepsAxis, raceAxis, replayAxis, cliAxis}
}

// Enough is the least number of runs for a published result.
const Enough = 10

// Options say what is measured and how.
type Options struct {
	Axes    []string      // names; "all" is all of them
	Backend string        // of the cells: "gvisor", "microvm", or "" for the one that pando chooses
	Exe     string        // the pando that is measured (default: this executable)
	Version string        // of it
	Runs    int           // rounds that count (default: 10; quick: 3)
	N       []int         // spawn: how many cells at once (default: 1, 10, 100, 1000; quick: 1, 10)
	Limit   int           // density: how many cells at most (default: no bound; quick: 50)
	Quick   bool          // small trees, few rounds: to see that it works
	Keep    bool          // leave installations and trees where they are
	Dir     string        // where to make them (default: the directory for temporary files)
	Path    string        // where to look for peers (default: $PATH)
	Log     func(string)  // progress, one line; nil for none
	Pause   time.Duration // between samples, so that what one leaves to be done doesn't burden the next (default: 150 ms)
}

// Run measures. The result is complete, as far as it goes, also when there is
// an error; an axis that failed says so in the result too.
func Run(ctx context.Context, o Options) (*Result, error) {
	axes, err := choose(o.Axes, o.Backend)
	if err != nil {
		return nil, err
	}
	l, err := newLab(o)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	r := &Result{
		Schema: Schema, Started: began.UTC().Truncate(time.Second), Axes: []AxisResult{},
		Settings: Settings{Runs: l.runs, Quick: o.Quick, Warmup: 1, PauseMS: toMS(l.pause)},
		Machine:  thisMachine(l.dir),
		Versions: map[string]string{"pando": o.Version, "go": runtime.Version()},
	}
	var failed []error
	for _, a := range axes {
		l.log("%s: %s", a.Name, a.About)
		out := AxisResult{Axis: a.Name, Backend: o.Backend, About: a.About, LoadBefore: load(), Cases: []Case{}, Absent: []Absent{}, Notes: []string{}}
		stolen, t := stealTime(), time.Now()
		if err := a.measure(ctx, l, &out); err != nil {
			out.Error = err.Error()
			failed = append(failed, fmt.Errorf("cannot measure %s: %w", a.Name, err))
		}
		if j := r.Machine.Journal; j != nil && !*j {
			out.note(slowInodes)
		}
		out.TookS = round(time.Since(t).Seconds())
		out.LoadAfter, out.StealPercent = load(), stealTime().since(stolen)
		out.decide()
		r.Axes = append(r.Axes, out)
		if ctx.Err() != nil {
			break
		}
	}
	for name, p := range l.programs {
		if p.version != "" {
			r.Versions[name] = p.version
		}
	}
	r.TookS = round(time.Since(began).Seconds())
	return r, errors.Join(append(failed, l.close(ctx))...)
}

// choose resolves names of axes on a backend.
func choose(names []string, backend string) (out []Axis, err error) {
	all, err := AxesOn(backend)
	if err != nil {
		return nil, err
	}
	list := strings.Join(namesOf(all), ", ")
	for _, n := range names {
		if n == "all" {
			return all, nil
		}
		i := slices.IndexFunc(all, func(a Axis) bool { return a.Name == n })
		if i < 0 {
			if backend != "" && slices.Contains(Names(), n) {
				return nil, fmt.Errorf("cannot measure %s on backend %s: it is the same code there; the axes of that backend are %s", n, backend, list)
			}
			return nil, fmt.Errorf("cannot measure %q: the axes are %s", n, list)
		}
		if !slices.ContainsFunc(out, func(a Axis) bool { return a.Name == n }) {
			out = append(out, all[i])
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("cannot measure nothing: the axes are %s", list)
	}
	return out, nil
}

// Names lists the names of all axes.
func Names() []string { return namesOf(Axes()) }

func namesOf(axes []Axis) (out []string) {
	for _, a := range axes {
		out = append(out, a.Name)
	}
	return out
}

// exe is the executable that is measured: the one beside this program.
func (o Options) exe() (string, error) {
	if o.Exe != "" {
		return o.Exe, nil
	}
	return sibling.Find("pando")
}
