package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
)

// The backends with a kernel of their own for cells have axes of their own, for the
// differences. Everything else is the same code on every backend.
const (
	gvisor  = "gvisor"
	microvm = "microvm"
)

// apart are those backends.
var apart = []string{gvisor, microvm}

// AxesOn lists the axes of a backend; of "", those of the one that pando chooses.
func AxesOn(backend string) ([]Axis, error) {
	if backend == "" {
		return Axes(), nil
	}
	if !slices.Contains(apart, backend) {
		return nil, fmt.Errorf("cannot measure on backend %q: there is the one that pando chooses, and %s", backend, strings.Join(apart, ", "))
	}
	var out []Axis
	for _, a := range Axes() {
		if a.cells != nil {
			a.measure = a.cells
			out = append(out, a)
		}
	}
	return out, nil
}

// Backends are those that can be asked for, each with the names of its axes.
func Backends() map[string][]string {
	out := map[string][]string{}
	for _, b := range apart {
		axes, _ := AxesOn(b)
		out[b] = namesOf(axes)
	}
	return out
}

// Key names an axis among the results: its name, with the backend where one was
// asked for.
func (a *AxisResult) Key() string { return key(a.Axis, a.Backend) }

func key(axis, backend string) string {
	if backend == "" {
		return axis
	}
	return axis + "-" + backend
}

// Keys are the keys of all axes on all backends.
func Keys() (out []string) {
	for _, b := range append([]string{""}, apart...) {
		axes, err := AxesOn(b)
		if err != nil {
			continue
		}
		for _, a := range axes {
			out = append(out, key(a.Name, b))
		}
	}
	return out
}

// on are the flags with which a command chooses the backend that is measured.
func (l *lab) on() []string {
	if l.backend == "" {
		return nil
	}
	return []string{"--backend", l.backend}
}

// run is the command line of a run on that backend.
func (l *lab) run(args ...string) []string { return slices.Concat([]string{"run"}, l.on(), args) }

// checksOf are what doctor finds wrong where a backend does not work.
var checksOf = map[string][]string{gvisor: {gvisor}, microvm: {"qemu", "guest kernel"}}

// works starts the daemon, and reports whether cells of the measured backend run
// here; if not, out says why.
func (i *installation) works(ctx context.Context, out *AxisResult, name string) (bool, error) {
	err := i.start(ctx)
	if err == nil || i.l.backend == "" {
		return err == nil, err
	}
	d, derr := i.client.Doctor(ctx)
	if derr != nil {
		return false, errors.Join(err, derr)
	}
	if _, gerr := os.Stat(filepath.Join(filepath.Dir(i.l.exe), "pando-guest")); i.l.backend == microvm && gerr != nil {
		out.absent(name, "backend microvm does not work here: cannot find pando-guest: "+gerr.Error())
		return false, nil
	}
	for _, c := range d.Checks {
		if slices.Contains(checksOf[i.l.backend], c.Name) && c.Status != "ok" {
			out.absent(name, "backend "+i.l.backend+" does not work here: "+c.Found)
			return false, nil
		}
	}
	return false, err
}

// living is a cell of the measured backend that has an interpreter with numpy.
func (i *installation) living(ctx context.Context, p python, name string, limits ...string) error {
	dir, err := i.l.tree(100, 100)
	if err != nil {
		return err
	}
	c := i.pando(dir, slices.Concat(i.l.run("--cell", name), limits, []string{"--", "true"})...)
	c.env = slices.Concat(p.env, []string{"PANDO_HOME=" + i.dir, "NO_COLOR=1"})
	if _, err := c.run(ctx); err != nil {
		return err
	}
	v, err := i.eval(ctx, name, "1+1")
	if err == nil && v != 2.0 {
		err = fmt.Errorf("1+1 is %v", v)
	}
	return err
}

// inhabited makes an installation in which cells of that backend live with an
// interpreter that has numpy. It is nil, and said in out, where that can't be.
func (l *lab) inhabited(ctx context.Context, out *AxisResult, name string) (p python, inst *installation, err error) {
	p, why := l.python(ctx)
	if why != "" {
		out.absent(name, why)
		return p, nil, nil
	}
	if inst, err = l.install(); err != nil {
		return p, nil, err
	}
	ok, err := inst.works(ctx, out, name)
	if !ok || err != nil {
		return p, nil, errors.Join(err, inst.close(ctx))
	}
	return p, inst, nil
}

// branchOf makes n branches and returns their names.
func (i *installation) branchOf(ctx context.Context, source string, n int) (made []string, res api.BranchResult, err error) {
	res, err = i.client.Branch(ctx, source, api.BranchRequest{Count: n})
	for _, c := range res.Cells {
		made = append(made, c.ID)
	}
	if err == nil && len(made) != n {
		err = fmt.Errorf("%d branches of %d were made", len(made), n)
	}
	return made, res, err
}

// computes evaluates in a cell, and wants that value.
func (i *installation) computes(ctx context.Context, name, code string, want any) error {
	v, err := i.eval(ctx, name, code)
	if err == nil && v != want {
		err = fmt.Errorf("in cell %s, %s is %v, not %v", name, code, v, want)
	}
	return err
}

// Title names an axis for people: "branch", "branch on gvisor".
func (a *AxisResult) Title() string {
	if a.Backend == "" {
		return a.Axis
	}
	return a.Axis + " on " + a.Backend
}
