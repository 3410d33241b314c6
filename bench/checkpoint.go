package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

var checkpointAxis = Axis{
	Name:    "checkpoint",
	About:   "keeping a state and coming back to it, until the next command has succeeded",
	measure: measureCheckpoint,
}

// extent is how large a workspace is.
type extent struct {
	name           string
	files, average int
}

func (l *lab) extents() []extent {
	if l.quick {
		return []extent{{"1k files", 1000, 1 << 10}, {"10k files", 10_000, 1 << 10}, {"64 MiB", 64, 1 << 20}}
	}
	return []extent{{"1k files", 1000, 1 << 10}, {"10k files", 10_000, 1 << 10}, {"100k files", 100_000, 1 << 10}, {"1 GiB", 1024, 1 << 20}}
}

// The contestants and what they do.
const (
	byClient    = "client"
	byCommand   = "pando"
	keep        = "checkpoint"
	back        = "restore"
	wake        = "command at rest"
	keepLiving  = "checkpoint, living"
	backLiving  = "restore, living"
	flatAtMost  = 1.3
	atMost      = 5.0
	partDigest  = "digest known"
	partCall    = "call"
	partFreeze  = "of that, moving"
	partCommand = "next command"
)

func named(what string, x extent) string { return what + ", " + x.name }

func measureCheckpoint(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	if err := inst.start(ctx); err != nil {
		return err
	}
	for _, x := range l.extents() {
		if err := l.checkpointing(ctx, out, inst, x); err != nil {
			return err
		}
	}
	if err := l.pausing(ctx, out, inst); err != nil {
		return err
	}
	small, large := l.extents()[0], extent{name: "100k files"}
	for _, what := range []string{keep, back, keepLiving, backLiving} {
		out.relate("flat: "+what, fmt.Sprintf("%s over %s", large.name, small.name), byClient, named(what, large), named(what, small), flatAtMost)
	}
	out.note("before each checkpoint a command changed one file and made another; before each restore, a command changed the file again")
	out.note("under a living writer cp -a and git stash take torn copies: they are not measured there")
	return nil
}

func (l *lab) checkpointing(ctx context.Context, out *AxisResult, inst *installation, x extent) error {
	dir, err := l.tree(x.files, x.average)
	if err != nil {
		return err
	}
	var list []contestant
	for _, c := range []*stateful{
		{name: byClient, keep: inst.keepByClient, back: inst.backByClient, next: inst.exec,
			command: "client.Checkpoint or client.Restore, then a command in the cell, by the client"},
		{name: byCommand, keep: inst.keepByCommand, back: inst.backByCommand, next: inst.execByCommand,
			command: "pando checkpoint CELL or pando restore CELL@N, then pando exec CELL -- cat " + marker},
		{name: byClient, keep: inst.keepByClient, back: inst.backByClient, next: inst.exec, living: true,
			command: "the same, while a process in the cell appends to a file"},
	} {
		c.inst, c.x = inst, x
		c.cell = strings.ReplaceAll(fmt.Sprintf("%s-%s-%t", c.name, x.name, c.living), " ", "-")
		if _, err := inst.pando(dir, "run", "--cell", c.cell, "--", "true").run(ctx); err != nil {
			return err
		}
		list = append(list, contestant{name: c.name, ours: true, command: c.command, round: c.round})
	}
	list = append(list, l.copying(ctx, out, dir, x)...)
	list = append(list, l.stashing(ctx, out, dir, x)...)
	defer func() {
		for _, kind := range []string{"copied-", "stashed-"} {
			l.discard(filepath.Join(l.dir, kind+filepath.Base(dir)))
		}
	}()
	goal := func() []Goal { return []Goal{{Series: byClient, AtMost: atMost}} }
	return l.hold(ctx, out, contest{contestants: list, settle: true, cases: []Case{
		{Name: named(keep, x), What: "cell at rest, from the request until the next command has given what it should", Goals: goal()},
		{Name: named(back, x), What: "the same", Goals: goal()},
		{Name: named(wake, x), What: "what the next command alone needs in a cell at rest"},
		{Name: named(keepLiving, x), What: "under a living process that writes; from the request until the next command", Goals: goal()},
		{Name: named(backLiving, x), What: "the same; its processes end", Goals: goal()},
	}})
}

// stateful is pando as a contestant: a named cell, and one of two ways to
// drive it.
type stateful struct {
	name, command string
	inst          *installation
	cell          string
	x             extent
	living        bool
	keep          func(ctx context.Context, cell string) (api.Checkpoint, error)
	back          func(ctx context.Context, cell string, number int) error
	next          func(ctx context.Context, cell string, args ...string) ([]byte, error)
}

func (s *stateful) round(ctx context.Context, r *recorder) error {
	keeping, going := named(keep, s.x), named(back, s.x)
	if s.living {
		keeping, going = named(keepLiving, s.x), named(backLiving, s.x)
		x := api.ExecRequest{Command: []string{"sh", "-c", "while :; do echo beat >> beats; sleep 0.01; done"}}
		if _, err := s.inst.client.StartExec(ctx, s.cell, x); err != nil {
			return err
		}
	}
	want := strconv.Itoa(r.n)
	if err := s.write(ctx, want, "made-"+want); err != nil {
		return err
	}
	began := time.Now()
	k, err := s.keep(ctx, s.cell)
	call := time.Since(began)
	if err == nil {
		err = s.read(ctx, want)
	}
	if err != nil {
		return err
	}
	total := time.Since(began)
	digest, err := s.digest(ctx, k, began, call)
	if err != nil {
		return err
	}
	r.put(keeping, toMS(total))
	r.part(keeping, partCall, toMS(call))
	if k.TookMS > 0 {
		r.part(keeping, partFreeze, k.TookMS)
		r.part(keeping, partDigest, toMS(digest))
	}
	r.part(keeping, partCommand, toMS(total-call))
	if err := s.write(ctx, "changed", "unwanted"); err != nil {
		return err
	}
	began = time.Now()
	err = s.back(ctx, s.cell, k.Number)
	call = time.Since(began)
	if err == nil {
		err = s.read(ctx, want)
	}
	if err != nil {
		return err
	}
	total = time.Since(began)
	r.put(going, toMS(total))
	r.part(going, partCall, toMS(call))
	r.part(going, partCommand, toMS(total-call))
	// Always from the same depth: layers don't pile up over the rounds.
	if err := s.inst.backByClient(ctx, s.cell, 1); err != nil || s.living {
		return err
	}
	return r.time(named(wake, s.x), func() error { return s.read(ctx, "0") })
}

// write changes the workspace, and waits until the cell is at rest again.
func (s *stateful) write(ctx context.Context, text, made string) error {
	_, err := s.inst.exec(ctx, s.cell, "sh", "-c", fmt.Sprintf("echo %s > %s && echo %s > %s", text, marker, text, made))
	if err != nil || s.living {
		return err
	}
	return s.inst.awaitRest(ctx, s.cell)
}

// read runs the next command and looks at what it says.
func (s *stateful) read(ctx context.Context, want string) error {
	b, err := s.next(ctx, s.cell, "cat", marker)
	if err == nil && strings.TrimSpace(string(b)) != want {
		err = fmt.Errorf("the next command found %q, not %q", strings.TrimSpace(string(b)), want)
	}
	return err
}

// digest returns when, after began, the checkpoint's digest was known.
func (s *stateful) digest(ctx context.Context, k api.Checkpoint, began time.Time, call time.Duration) (time.Duration, error) {
	if k.TreeDigest != "" {
		return call, nil
	}
	for ctx.Err() == nil {
		list, err := s.inst.client.History(ctx, s.cell)
		if err != nil {
			return 0, err
		}
		for _, h := range list {
			if h.Number == k.Number && h.TreeDigest != "" {
				return time.Since(began), nil
			}
		}
		time.Sleep(time.Millisecond)
	}
	return 0, context.Cause(ctx)
}

func (i *installation) awaitRest(ctx context.Context, cell string) error {
	for ctx.Err() == nil {
		c, err := i.client.Cell(ctx, cell)
		if err != nil {
			return err
		}
		if c.State == "idle" {
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	return context.Cause(ctx)
}

func (i *installation) keepByClient(ctx context.Context, cell string) (api.Checkpoint, error) {
	return i.client.Checkpoint(ctx, cell, api.CheckpointRequest{})
}

func (i *installation) backByClient(ctx context.Context, cell string, number int) error {
	_, err := i.client.Restore(ctx, cell, api.RestoreRequest{Number: number, Lose: true})
	return err
}

// keepByCommand knows the number of the checkpoint alone: what it says is for
// people.
func (i *installation) keepByCommand(ctx context.Context, cell string) (k api.Checkpoint, err error) {
	c := i.pando(i.dir, "checkpoint", cell, "--json")
	b, err := c.run(ctx)
	if err != nil {
		return k, err
	}
	k, err = decode[api.Checkpoint](b)
	return api.Checkpoint{Number: k.Number, TreeDigest: "not asked"}, err
}

func (i *installation) backByCommand(ctx context.Context, cell string, number int) error {
	_, err := i.pando(i.dir, "restore", "--yes", fmt.Sprintf("%s@%d", cell, number)).run(ctx)
	return err
}

func (i *installation) execByCommand(ctx context.Context, cell string, args ...string) ([]byte, error) {
	return i.pando(i.dir, append([]string{"exec", cell, "--"}, args...)...).run(ctx)
}

// copying is `cp -a` as a contestant: a state is a copy of everything.
func (l *lab) copying(ctx context.Context, out *AxisResult, source string, x extent) []contestant {
	const name = "cp -a"
	p, cat := l.find(ctx, "cp"), l.find(ctx, "cat")
	if p.why != "" || cat.why != "" {
		out.absent(name, "cp or cat: "+p.why+cat.why)
		return nil
	}
	work := filepath.Join(l.dir, "copied-"+filepath.Base(source))
	cp := func(from, to string) command { return command{args: []string{p.path, "-a", from, to}} }
	return []contestant{{name: name, against: byCommand, command: "cp -a WORK SAVED; cat " + marker + " (back: mv WORK AWAY; cp -a SAVED WORK; cat " + marker + ")",
		lacks: []string{"no digest, no evidence", "twice the space for each state", "no isolation of the next command"},
		round: func(ctx context.Context, r *recorder) error {
			if _, err := os.Stat(work); err != nil {
				if err := all(ctx, cp(source, work)); err != nil {
					return err
				}
			}
			saved, away := work+".saved", work+".away"
			m := &manual{cat: cat.path, work: work, x: x}
			err := m.round(ctx, r, func() error { return all(ctx, cp(work, saved)) }, func() error {
				if err := os.Rename(work, away); err != nil {
					return err
				}
				return all(ctx, cp(saved, work))
			})
			for _, d := range []string{saved, away} {
				if derr := l.later(d); err == nil {
					err = derr
				}
			}
			return err
		}}}
}

// manual is a state kept by hand, and the next command on the host.
type manual struct {
	cat, work string
	x         extent
}

func (m *manual) round(ctx context.Context, r *recorder, keeping, going func() error) error {
	want := strconv.Itoa(r.n)
	next := func() error {
		b, err := command{dir: m.work, args: []string{m.cat, marker}}.run(ctx)
		if err == nil && strings.TrimSpace(string(b)) != want {
			err = fmt.Errorf("the next command found %q, not %q", b, want)
		}
		return err
	}
	if err := m.write(want, "made-"+want); err != nil {
		return err
	}
	if err := r.time(named(keep, m.x), func() error {
		if err := keeping(); err != nil {
			return err
		}
		return next()
	}); err != nil {
		return err
	}
	if err := m.write("changed", "unwanted"); err != nil {
		return err
	}
	return r.time(named(back, m.x), func() error {
		if err := going(); err != nil {
			return err
		}
		return next()
	})
}

func (m *manual) write(text, made string) error {
	for _, name := range []string{marker, made} {
		if err := os.WriteFile(filepath.Join(m.work, name), []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stashing is `git stash` as a contestant.
func (l *lab) stashing(ctx context.Context, out *AxisResult, source string, x extent) []contestant {
	const name = "git stash"
	p, cat := l.find(ctx, "git"), l.find(ctx, "cat")
	if p.why != "" || cat.why != "" {
		out.absent(name, p.why+cat.why)
		return nil
	}
	work := filepath.Join(l.dir, "stashed-"+filepath.Base(source))
	git := func(args ...string) command { return l.git(p, work, args...) }
	return []contestant{{name: name, against: byCommand,
		command: "git stash push -u; git stash apply; cat " + marker + " (back: git stash push -u; git stash apply stash@{1}; cat " + marker + ")",
		lacks:   []string{"no ignored files, times, empty folders, extended attributes", "no evidence", "no isolation of the next command"},
		round: func(ctx context.Context, r *recorder) error {
			if _, err := os.Stat(work); err != nil {
				if err := l.repository(ctx, p, source, work); err != nil {
					return err
				}
			}
			m := &manual{cat: cat.path, work: work, x: x}
			err := m.round(ctx, r, func() error {
				return all(ctx, git("stash", "push", "-q", "-u"), git("stash", "apply", "-q"))
			}, func() error {
				return all(ctx, git("stash", "push", "-q", "-u"), git("stash", "apply", "-q", "stash@{1}"))
			})
			if err != nil {
				return err
			}
			return all(ctx, git("reset", "-q", "--hard"), git("clean", "-q", "-f", "-d"), git("stash", "clear"))
		}}}
}

// git is host git on a repository of our own making, whatever its user has
// configured.
func (l *lab) git(p *program, dir string, args ...string) command {
	env := []string{"PATH=" + l.path, "HOME=" + l.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C"}
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		env = append(env, "GIT_"+role+"_NAME=bench", "GIT_"+role+"_EMAIL=bench@localhost")
	}
	return command{dir: dir, env: env, args: append([]string{p.path, "-c", "gc.auto=0", "-c", "core.looseCompression=1"}, args...)}
}

// repository makes a repository with the files of source, committed.
func (l *lab) repository(ctx context.Context, p *program, source, work string) error {
	if err := os.CopyFS(work, os.DirFS(source)); err != nil {
		return err
	}
	return all(ctx, l.git(p, work, "init", "-q"), l.git(p, work, "add", "-A"), l.git(p, work, "commit", "-q", "-m", "base"))
}
