package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

var importAxis = Axis{
	Name:    "import",
	About:   "bringing a directory in, once and again",
	measure: measureImport,
}

// The cases, and how many files are changed before the last.
const (
	caseNew       = "first"
	caseUnchanged = "again, unchanged"
	caseChanged   = "again, 10 changed"
	changedFiles  = 10
	againAtMost   = 0.2
)

func measureImport(ctx context.Context, l *lab, out *AxisResult) error {
	files, average := 100_000, (1<<30)/100_000
	if l.quick {
		files, average = 5000, 10<<10
	}
	l.log("making a tree: %d files, %s", files, bytesWord(int64(files)*int64(average)))
	source, err := l.own(files, average)
	if err != nil {
		return err
	}
	defer l.discard(source)
	list := []contestant{{name: pandoRun, ours: true, command: "pando run --from SOURCE -- true (installation new, daemon up)", round: func(ctx context.Context, r *recorder) error {
		return l.importing(ctx, r, source, files)
	}}}
	list = append(list, l.copyTree(ctx, out, source, files)...)
	list = append(list, l.syncTree(ctx, out, source, files)...)
	more, err := l.worktree(ctx, out, source, files)
	if err != nil {
		return err
	}
	list = append(list, more...)
	size := fmt.Sprintf("%d files, %s", files, bytesWord(int64(files)*int64(average)))
	return l.hold(ctx, out, contest{contestants: list, settle: true, cases: []Case{
		{Name: caseNew, What: size + ", from starting the program to its end: ours has also started, fingerprinted, digested, run a command and signed a receipt",
			Goals: []Goal{{Series: pandoRun, AtMost: 1, Of: copyAll}}},
		{Name: caseUnchanged, What: "the same directory once more", Goals: []Goal{{Series: pandoRun, AtMost: againAtMost, Of: copyAll}}},
		{Name: caseChanged, What: fmt.Sprintf("after %d of its files were changed", changedFiles), Goals: []Goal{{Series: pandoRun, AtMost: againAtMost, Of: copyAll}}},
	}})
}

// phases does something in the three cases, with the files changed before the
// last.
func phases(r *recorder, change func() error, do func(name string) error) error {
	for _, name := range []string{caseNew, caseUnchanged, caseChanged} {
		if name == caseChanged {
			if err := change(); err != nil {
				return err
			}
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// edit changes some files, spread over the tree, to what they never were.
func edit(dir string, files int, stamp string) error {
	for i := range changedFiles {
		f, err := os.OpenFile(member(dir, i*files/changedFiles), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, "changed", stamp)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) importing(ctx context.Context, r *recorder, source string, files int) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	if err := inst.start(ctx); err != nil {
		return err
	}
	err = phases(r, func() error { return edit(source, files, fmt.Sprint("ours", r.n)) }, func(name string) error {
		c := inst.pando(l.dir, "run", "--from", source, "--", "true")
		if err := r.time(name, func() error { _, err := c.run(ctx); return err }); err != nil {
			return err
		}
		run, err := inst.latest(ctx, source)
		if err == nil {
			r.timings(name, run.Timings)
		}
		return err
	})
	if err != nil {
		return err
	}
	return inst.close(ctx)
}

// copyAll is the peer that goals refer to.
const copyAll = "cp -a"

var lacksOfCopies = []string{"no digest, no evidence", "secrets are copied too", "no command was run"}

func (l *lab) copyTree(ctx context.Context, out *AxisResult, source string, files int) []contestant {
	p := l.find(ctx, "cp")
	if p.why != "" {
		out.absent(copyAll, p.why)
		return nil
	}
	return []contestant{{name: copyAll, against: pandoRun, command: "cp -a SOURCE NEW", lacks: lacksOfCopies, round: func(ctx context.Context, r *recorder) error {
		dir, err := l.fresh("copies")
		if err != nil {
			return err
		}
		defer l.later(dir)
		n := 0
		return phases(r, func() error { return edit(source, files, fmt.Sprint("cp", r.n)) }, func(name string) error {
			n++
			return r.time(name, func() error {
				return all(ctx, command{args: []string{p.path, "-a", source, filepath.Join(dir, fmt.Sprint(n))}})
			})
		})
	}}}
}

func (l *lab) syncTree(ctx context.Context, out *AxisResult, source string, files int) []contestant {
	const name = "rsync -a"
	p := l.find(ctx, "rsync")
	if p.why != "" {
		out.absent(name, p.why)
		return nil
	}
	return []contestant{{name: name, against: pandoRun, command: "rsync -a --delete SOURCE/ COPY/", lacks: append([]string{"one copy, of the newest state only"}, lacksOfCopies...), round: func(ctx context.Context, r *recorder) error {
		dir, err := l.fresh("synced")
		if err != nil {
			return err
		}
		defer l.later(dir)
		return phases(r, func() error { return edit(source, files, fmt.Sprint("rsync", r.n)) }, func(name string) error {
			return r.time(name, func() error {
				return all(ctx, command{args: []string{p.path, "-a", "--delete", source + "/", dir + "/"}})
			})
		})
	}}}
}

func (l *lab) worktree(ctx context.Context, out *AxisResult, source string, files int) ([]contestant, error) {
	const name = "git worktree add"
	p := l.find(ctx, "git")
	if p.why != "" {
		out.absent(name, p.why)
		return nil, nil
	}
	dir, err := l.fresh("repository")
	if err != nil {
		return nil, err
	}
	repo := filepath.Join(dir, "main")
	l.log("making a repository of it")
	if err := l.repository(ctx, p, source, repo); err != nil {
		return nil, err
	}
	return []contestant{{name: name, against: pandoRun, command: "git worktree add --detach NEW", lacks: []string{"only what is committed", "no digest, no evidence", "no command was run"}, round: func(ctx context.Context, r *recorder) error {
		n := 0
		err := phases(r, func() error {
			if err := edit(repo, files, fmt.Sprint("git", r.n)); err != nil {
				return err
			}
			return all(ctx, l.git(p, repo, "commit", "-q", "-a", "-m", fmt.Sprint("round ", r.n)))
		}, func(name string) error {
			n++
			return r.time(name, func() error {
				return all(ctx, l.git(p, repo, "worktree", "add", "-f", "-q", "--detach", filepath.Join(dir, fmt.Sprint(n))))
			})
		})
		for i := range n {
			if derr := l.later(filepath.Join(dir, fmt.Sprint(i+1))); err == nil {
				err = derr
			}
		}
		if err == nil {
			err = all(ctx, l.git(p, repo, "worktree", "prune"))
		}
		return err
	}}}, nil
}
