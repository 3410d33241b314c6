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
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
)

// python is an interpreter with numpy, and more if that is asked for, for pando and for its
// peers.
type python struct {
	path string
	env  []string // in which "python3" is that one
}

// python finds one that has modules beside numpy, or says why there is none.
func (l *lab) python(ctx context.Context, modules ...string) (python, string) {
	modules = append([]string{"numpy"}, modules...)
	has := strings.Join(modules, " and ")
	why := "no python3 with " + has + " is installed"
	for _, dir := range append(filepath.SplitList(l.path), "/usr/bin") {
		at := filepath.Join(dir, "python3")
		if st, err := os.Stat(at); err != nil || st.IsDir() {
			continue
		}
		if _, err := (command{args: []string{at, "-c", "import " + strings.Join(modules, ", ")}}).run(ctx); err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(at); err != nil || !strings.HasPrefix(real, "/usr/") {
			why = at + " has " + has + ", but cells see what lies below /usr"
			continue
		}
		p := python{path: at}
		for _, kv := range os.Environ() {
			if !strings.HasPrefix(kv, "PANDO_") && !strings.HasPrefix(kv, "PATH=") && !strings.HasPrefix(kv, "PYTHON") {
				p.env = append(p.env, kv)
			}
		}
		p.env = append(p.env, "PATH="+dir+":/usr/bin:/bin")
		return p, ""
	}
	return python{}, why
}

// Names of what is forked, and what is asked of each cell. The answer has what
// numpy computed, and numbers that no two cells may share.
const (
	templateName = "warm"
	setupCode    = "import numpy, uuid"
	answerCode   = "[numpy.zeros(5).tolist(), numpy.random.random(), uuid.uuid4().hex]"
	coldCode     = "import numpy, uuid, json; print(json.dumps(" + answerCode + "))"
)

// warmed makes an installation with a template. It is nil, and said in out, where
// that can't be.
func (l *lab) warmed(ctx context.Context, out *AxisResult, name, env string, change ...func(*api.TemplateRequest)) (p python, inst *installation, err error) {
	p, why := l.python(ctx)
	if why != "" {
		out.absent(name, why)
		return p, nil, nil
	}
	if inst, err = l.install(); err != nil {
		return p, nil, err
	}
	if env != "" {
		inst.env = append(inst.env, env)
	}
	var t api.Template
	ok, err := inst.works(ctx, out, name)
	if err == nil && !ok {
		return p, nil, inst.close(ctx)
	}
	if err == nil {
		t, err = inst.build(ctx, p, templateName, change...)
	}
	if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == api.Kind(cell.Unsupported) {
		out.absent(name, e.Message)
		return p, nil, inst.close(ctx)
	}
	if err != nil {
		return p, nil, errors.Join(err, inst.close(ctx))
	}
	out.note("the template: %s with numpy", t.Version)
	return p, inst, nil
}

// build makes a template.
func (i *installation) build(ctx context.Context, p python, name string, change ...func(*api.TemplateRequest)) (api.Template, error) {
	dir, err := i.l.tree(100, 100)
	if err != nil {
		return api.Template{}, err
	}
	req := api.TemplateRequest{Name: name, From: dir, Backend: i.l.backend, Warm: "python", Setup: setupCode, CallerEnv: p.env, CallerDir: dir}
	for _, c := range change {
		c(&req)
	}
	return i.client.BuildTemplate(ctx, req, client.Listener{})
}

// forked is what came of one fork that was timed.
type forked struct {
	ms, last, ready float64 // until the call came back; the last answer; the last cell was ready
	hits            int
	cells           []string
}

// fork makes n cells, which each answer, and checks that the answers are right
// and that no two are the same; seen has those of earlier forks.
func (i *installation) fork(ctx context.Context, template string, n int, seen map[string]bool) (f forked, err error) {
	began := now()
	answered := 0
	res, err := i.client.ForkTemplate(ctx, template, api.WarmForkRequest{Count: n, Eval: answerCode}, client.Listener{
		Fork: func(api.WarmFork) { answered++; f.last = began.ms() },
	})
	f.ms = began.ms()
	for _, w := range res.Forks {
		f.cells = append(f.cells, w.Cell.ID)
	}
	if err != nil {
		return f, err
	}
	f.hits, f.ready = res.Hits, res.ReadyMS
	if answered != n || len(res.Forks) != n {
		return f, fmt.Errorf("%d cells of %d answered", answered, n)
	}
	for _, w := range res.Forks {
		if w.Error != nil {
			return f, fmt.Errorf("cell %s: %s", w.Cell.Name, w.Error.Message)
		}
		if err := distinct(w.Result, seen); err != nil {
			return f, fmt.Errorf("cell %s: %w", w.Cell.Name, err)
		}
	}
	return f, nil
}

// evaluated is the part of an evaluation's result that is looked at here.
type evaluated struct {
	OK    bool `json:"ok"`
	Value struct {
		JSON any `json:"json"`
	} `json:"value"`
	Error struct {
		Traceback string `json:"traceback"`
	} `json:"error"`
}

// distinct checks one answer, and that none was like it.
func distinct(result []byte, seen map[string]bool) error {
	x, err := decode[evaluated](result)
	if err != nil {
		return err
	}
	return fresh(x.Value.JSON, seen, string(result))
}

// fresh checks the list that answerCode makes.
func fresh(v any, seen map[string]bool, said string) error {
	list, _ := v.([]any)
	if len(list) != 3 || fmt.Sprint(list[0]) != "[0 0 0 0 0]" {
		return fmt.Errorf("it answered %.300s", said)
	}
	for _, v := range list[1:] {
		key := fmt.Sprint(v)
		if seen[key] {
			return fmt.Errorf("it answered what another had: %.300s", said)
		}
		seen[key] = true
	}
	return nil
}

// eval evaluates code in a cell, and wants it to work.
func (i *installation) eval(ctx context.Context, cell, code string) (any, error) {
	r, err := i.client.Eval(ctx, cell, api.EvalRequest{Code: code, Timeout: "5m"}, client.Listener{})
	if err != nil {
		return nil, err
	}
	x, err := decode[evaluated](r.Result)
	if err == nil && !x.OK {
		err = fmt.Errorf("cannot evaluate %q: %s", code, x.Error.Traceback)
	}
	return x.Value.JSON, err
}

// remove removes cells, several at once: no clock runs.
func (i *installation) remove(ctx context.Context, cells []string) error {
	return each(4, slices.Values(cells), func(id string) error {
		_, err := i.client.Remove(ctx, id, false)
		return err
	})
}
