package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pando-dev/pando/api"
)

var ipythonAxis = Axis{
	Name:    "ipython",
	About:   "what IPython costs where code asks for it: a template with its shell beside one without",
	measure: measureIPython,
}

// The contestants, and what begins IPython's shell.
const (
	plainPython  = "python"
	withIPython  = "ipython"
	beginIPython = "get_ipython()"
)

func measureIPython(ctx context.Context, l *lab, out *AxisResult) error {
	const build, memory, first, one, row = "build", "memory of the template", "first evaluation", "evaluate", "evaluate, in a row"
	many := 100
	if l.quick {
		many = 10
	}
	forks := fmt.Sprintf("%d forks", many)
	p, why := l.python(ctx, "IPython")
	if why != "" {
		out.absent(withIPython, why)
		return nil
	}
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	inst.env = append(inst.env, noPool)
	if ok, err := inst.works(ctx, out, plainPython); !ok || err != nil {
		return err
	}
	seen := map[string]bool{}
	var list []contestant
	for _, x := range []struct{ name, setup, first string }{
		{plainPython, setupCode, "1+1"},
		{withIPython, setupCode + "; " + beginIPython, beginIPython + "; 1+1"},
	} {
		asked := 0
		ask := func(ctx context.Context, cell string) error {
			asked++
			v, err := inst.eval(ctx, cell, fmt.Sprintf("1+%d", asked))
			if err == nil && v != float64(asked+1) {
				err = fmt.Errorf("1+%d is %v", asked, v)
			}
			return err
		}
		list = append(list, contestant{name: x.name, ours: true, command: "client.Create, Eval; BuildTemplate, ForkTemplate (" + noPool + "), Eval with the set-up " + x.setup, round: func(ctx context.Context, r *recorder) (err error) {
			if err := inst.coldEval(ctx, r, first, x.first); err != nil {
				return err
			}
			var t api.Template
			err = r.time(build, func() (err error) {
				t, err = inst.build(ctx, p, x.name, func(req *api.TemplateRequest) { req.Setup = x.setup })
				return err
			})
			if err != nil {
				return err
			}
			defer func() {
				_, rerr := inst.client.RemoveTemplate(ctx, x.name, api.TemplateRemoval{Cascade: true})
				err = errors.Join(err, rerr)
			}()
			if t, err = inst.client.Template(ctx, x.name); err != nil {
				return err
			}
			r.put(memory, round(float64(t.Memory)/(1<<20)))
			f, err := inst.fork(ctx, x.name, many, seen)
			defer func() { err = errors.Join(err, inst.remove(ctx, f.cells)) }()
			if err != nil {
				return err
			}
			r.put(forks, f.ms)
			r.part(forks, "last answer", f.last)
			if err := l.rest(ctx); err != nil {
				return err
			}
			if err := r.time(one, func() error { return ask(ctx, f.cells[0]) }); err != nil {
				return err
			}
			began := time.Now()
			for range evalsInRow {
				if err := ask(ctx, f.cells[0]); err != nil {
					return err
				}
			}
			r.put(row, toMS(time.Since(began))/evalsInRow)
			return nil
		}})
	}
	return l.hold(ctx, out, contest{contestants: list, cases: []Case{
		{Name: build, What: "a template with numpy, until it is warm; with IPython its set-up also begins the shell"},
		{Name: memory, What: "what is resident of its interpreter then", Unit: "MiB"},
		{Name: forks, What: "of it, until the last has answered, none made ahead"},
		{Name: first, What: "in a cell that was just created, without a template: the interpreter starts and evaluates 1+1, and before that begins the shell"},
		{Name: one, What: fmt.Sprintf("1+n in a fork after %v of rest", l.pause)},
		{Name: row, What: fmt.Sprintf("the same %d times without rest, a hundredth of all", evalsInRow)},
	}})
}

// coldEval measures the first evaluation of a cell, which is 2.
func (i *installation) coldEval(ctx context.Context, r *recorder, name, code string) (err error) {
	made, err := i.client.Create(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.remove(ctx, []string{made.ID})) }()
	return r.time(name, func() error {
		v, err := i.eval(ctx, made.ID, code)
		if err == nil && v != 2.0 {
			err = fmt.Errorf("%s is %v", code, v)
		}
		return err
	})
}
