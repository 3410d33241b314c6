package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/catalog"
)

var agentsAxis = Axis{
	Name:    "agents",
	About:   "from starting a coding agent to its first request to the model, in a cell and alone",
	measure: measureAgents,
}

// What the cases are called, and what is measured in them.
const (
	newCell      = ", new cell"
	againIn      = ", again in it"
	caseAtOnce   = "a program that asks at once" // in two cases, as the agents
	caseFirstUse = "first use"
	caseProgress = "first use, until progress is shown"
	agentTask    = "Say hello to the aspens." // by which a request to the model is known
	agentFiles   = 1000
	firstFiles   = 50_000
	agentAtMost  = 1.15
	shownAtMost  = 600 // ms: it is shown after half a second
	atOnceName   = "asks-at-once"
	agentPause   = "300ms" // how long an agent has to end when its cell is stopped
)

func measureAgents(ctx context.Context, l *lab, out *AxisResult) error {
	m, err := startModel()
	if err != nil {
		return err
	}
	defer m.close()
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.own(agentFiles, runAverage)
	if err != nil {
		return err
	}
	for _, a := range catalog.All() { // where their tests find them
		if p := os.Getenv("E2E_" + strings.ToUpper(a.About().Name)); p != "" {
			l.path = filepath.Dir(p) + ":" + l.path
		}
	}
	list, cases, err := l.atOnce(inst, m, dir)
	if err != nil {
		return err
	}
	for _, a := range catalog.All() {
		about := a.About()
		p := l.find(ctx, about.Program)
		if p.why != "" {
			out.absent(about.Title, p.why)
			continue
		}
		ours := "pando " + about.Name
		goals := []Goal{{Series: ours, AtMost: agentAtMost, Of: about.Program}}
		list = append(list, l.inCells(inst, m, dir, l.path, about.Title, ours, about.Name), l.alone(m, dir, p.path, a))
		cases = append(cases,
			Case{Name: about.Title + newCell, What: fmt.Sprintf("%d files, imported before, daemon up: from starting the program to its first request to the model; alone it has the same arguments, variables and files, and a new home", agentFiles), Goals: goals},
			Case{Name: about.Title + againIn, What: "the same once more, in the same cell; alone with the same home", Goals: slices.Clone(goals)})
	}
	if err := l.hold(ctx, out, contest{contestants: list, cases: cases}); err != nil {
		return err
	}
	return l.firstAgent(ctx, out, m)
}

// inCells is an agent in a new cell, which is made with flags, and again in it.
func (l *lab) inCells(inst *installation, m *modelServer, dir, path, title, series, name string, flags ...string) contestant {
	args := []string{name, "--model-url", m.url, "--prompt", agentTask}
	return contestant{name: series, ours: true, command: inst.pando(dir, args...).words(), round: func(ctx context.Context, r *recorder) error {
		cell := fmt.Sprintf("bench-%d", r.n)
		for _, what := range []string{title + newCell, title + againIn} {
			c := inst.pando(dir, append(args, "--cell", cell)...)
			if c.env = append(slices.Clone(c.env), "PATH="+path); what == title+newCell {
				c.args = append(c.args, flags...)
			}
			took, err := m.firstOf(ctx, c, false, nil)
			if err != nil {
				return err
			}
			r.put(what, toMS(took))
			if _, err := inst.pando(dir, "stop", "--timeout", agentPause, cell).run(ctx); err != nil {
				return err
			}
			if err := r.started(ctx, inst, dir, what); err != nil {
				return err
			}
		}
		_, err := inst.pando(dir, "rm", "--yes", cell).run(ctx)
		return err
	}}
}

// started records what the daemon timed of the start of the newest run, which has ended.
func (r *recorder) started(ctx context.Context, inst *installation, dir, what string) error {
	run, err := inst.latest(ctx, dir)
	if err == nil {
		run, err = inst.client.Run(ctx, run.ID, true)
	}
	if err != nil {
		return err
	}
	r.part(what, "import", run.Timings.Import)
	r.part(what, "start", run.Timings.Start)
	return nil
}

// alone is the same program without a cell: with the arguments, variables and files that its
// adapter gives it.
func (l *lab) alone(m *modelServer, dir, program string, a agent.Adapter) contestant {
	about := a.About()
	start := agent.Start{Prompt: agentTask, Model: m.url, Dir: dir, Root: dir}
	start.Login = about.Choose(func(l agent.Login) bool { return l.Credential == "openai" })
	start.Env = append(a.Env(start), cmp.Or(start.Login.Bearer, start.Login.Variables[0])+"=none")
	if start.Login.Reads != "" {
		start.Env = append(start.Env, start.Login.Reads+"=none")
	}
	return contestant{name: about.Program, against: "pando " + about.Name, command: about.Program + ", as pando starts it",
		lacks: []string{"everything that a cell is: its own kernel objects, files, network, checkpoints, record and receipt"},
		round: func(ctx context.Context, r *recorder) error {
			argv, err := a.Command(start)
			if err != nil {
				return err
			}
			home, err := l.fresh("alone")
			if err != nil {
				return err
			}
			defer l.later(home)
			for _, f := range a.Files(start) {
				if err := furnish(home, f); err != nil {
					return err
				}
			}
			c := command{dir: dir, env: append(os.Environ(), append([]string{"HOME=" + home, "PATH=" + l.path}, start.Env...)...), args: append([]string{program}, argv[1:]...)}
			for _, what := range []string{about.Title + newCell, about.Title + againIn} {
				took, err := m.firstOf(ctx, c, false, nil)
				if err != nil {
					return err
				}
				r.put(what, toMS(took))
				if err := l.rest(ctx); err != nil {
					return err
				}
			}
			return nil
		}}
}

// furnish makes one file of an agent's home.
func furnish(home string, f agent.File) error {
	path := filepath.Join(home, f.Path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return os.Symlink(f.Link, path)
	}
	return os.WriteFile(path, f.Make(nil), 0o600)
}

// atOnce are the contestants of a program that asks its model as soon as it can, so that what
// pando adds is not hidden in the start of a large program.
func (l *lab) atOnce(inst *installation, m *modelServer, dir string) ([]contestant, []Case, error) {
	path, err := l.plantAtOnce(dir)
	if err != nil {
		return nil, nil, err
	}
	ours := l.inCells(inst, m, dir, path, caseAtOnce, "pando "+agentOfAtOnce+", at once", agentOfAtOnce, "--with-secret", atOnceName)
	c := command{dir: dir, env: append(os.Environ(), "ANTHROPIC_BASE_URL="+m.url), args: []string{filepath.Join(l.dir, "at-once", "bin", agentOfAtOnce)}}
	alone := contestant{name: "alone", against: ours.name, command: "the same program", lacks: []string{"everything: it is what starting a program costs"},
		round: func(ctx context.Context, r *recorder) error {
			took, err := m.firstOf(ctx, c, false, nil)
			if err == nil {
				r.put(caseAtOnce+newCell, toMS(took))
			}
			return err
		}}
	return []contestant{ours, alone}, []Case{
		{Name: caseAtOnce + newCell, What: fmt.Sprintf("what pando itself takes: %d files, imported before, daemon up, a shell and a small program in the place of %s", agentFiles, agentOfAtOnce)},
		{Name: caseAtOnce + againIn, What: "the same once more, in the same cell"},
	}, nil
}

// agentOfAtOnce is the agent in the place of which the program is started that asks at once.
const agentOfAtOnce = "claude"

// plantAtOnce puts the program that asks at once into a tree, and a script in the place of the agent
// before all others on its PATH.
func (l *lab) plantAtOnce(dir string) (path string, err error) {
	if err := copyProgram(filepath.Join(filepath.Dir(l.exe), "pando-bench"), filepath.Join(dir, atOnceName)); err != nil {
		return "", err
	}
	// What lies beside bin comes along into the cell, so it has a folder of its own.
	bin := filepath.Join(l.dir, "at-once", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	script := "#!/bin/sh\nexec ./" + atOnceName + " load requests \"$ANTHROPIC_BASE_URL" + atOncePath + "\" 1 1\n"
	return bin + ":" + l.path, os.WriteFile(filepath.Join(bin, agentOfAtOnce), []byte(script), 0o755)
}

// firstAgent measures the first start ever: no state, no daemon, a large repository, at a terminal.
func (l *lab) firstAgent(ctx context.Context, out *AxisResult, m *modelServer) error {
	files := firstFiles
	if l.quick {
		files = 5000
	}
	dir, err := l.own(files, 2<<10)
	if err != nil {
		return err
	}
	defer l.discard(dir)
	path, err := l.plantAtOnce(dir)
	if err != nil {
		return err
	}
	args := []string{agentOfAtOnce, "--model-url", m.url, "--with-secret", atOnceName, "--prompt", agentTask}
	ours := "pando " + agentOfAtOnce
	return l.hold(ctx, out, contest{settle: true, contestants: []contestant{{name: ours, ours: true, command: "PANDO_HOME=(new) pando " + strings.Join(args[:3], " "), round: func(ctx context.Context, r *recorder) error {
		inst, err := l.install()
		if err != nil {
			return err
		}
		defer inst.close(ctx)
		inst.env = append(inst.env, "PATH="+path)
		var said []byte
		shown := time.Duration(0)
		took, err := m.firstOf(ctx, inst.pando(dir, args...), true, func(at time.Duration, text []byte) {
			if said = append(said, text...); shown == 0 && drawn().Match(said) {
				shown = at
			}
		})
		if err != nil {
			return err
		}
		if shown == 0 && took > time.Second {
			return fmt.Errorf("it took %v, and no progress was shown: %q", took, bytes.TrimSpace(said))
		}
		r.put(caseFirstUse, toMS(took))
		if shown > 0 {
			r.put(caseProgress, toMS(shown))
		}
		if _, err := inst.pando(dir, "stop", "--timeout", agentPause, "--all").run(ctx); err != nil {
			return err
		}
		return errors.Join(r.started(ctx, inst, dir, caseFirstUse), inst.close(ctx))
	}}}, cases: []Case{
		{Name: caseFirstUse, What: fmt.Sprintf("no state, no daemon, %d files, at a terminal: from starting the program to the first request to the model", files)},
		{Name: caseProgress, What: "of that, until a line of progress is on the terminal", Goals: []Goal{{Series: ours, AtMost: shownAtMost}}},
	}})
}

// drawn matches a line of progress.
func drawn() *regexp.Regexp { return regexp.MustCompile(`\r\x1b\[K[a-z]`) }
