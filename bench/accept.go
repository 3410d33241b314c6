package bench

import (
	"context"
	"fmt"
	"path/filepath"
)

var acceptAxis = Axis{
	Name:    "accept",
	About:   "taking a result: into the source, merged with what the source became, its commits, and of several repositories, beside git",
	measure: measureAccept,
}

const (
	accepted      = "accept"
	acceptMerged  = "accept, merge"
	acceptFetched = "fetch"
	acceptRun     = "run"
	acceptWith    = "run with two repositories"

	acceptFiles   = 1000
	acceptChanged = 10
	acceptGit     = "git"
)

func measureAccept(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	p := l.find(ctx, "git")
	if p.why != "" {
		out.absent(acceptGit, p.why)
		return nil
	}
	files, err := l.tree(acceptFiles, 1<<10)
	if err != nil {
		return err
	}
	dir, err := l.fresh("accept")
	if err != nil {
		return err
	}
	source, further, from, work := filepath.Join(dir, "source"), filepath.Join(dir, "further"), filepath.Join(dir, "from"), filepath.Join(dir, "work")
	for _, repo := range []string{source, further, from} {
		if err := l.repository(ctx, p, files, repo); err != nil {
			return err
		}
		if err := put(repo, "merged.txt", "first\n\n\n\n\nlast\n"); err != nil {
			return err
		}
		if err := l.commit(ctx, p, repo); err != nil {
			return err
		}
	}
	if err := all(ctx, l.git(p, dir, "clone", "-q", from, work)); err != nil {
		return err
	}
	ours := contestant{name: byCommand, ours: true, command: "pando run, accept --apply, accept --apply --merge, fetch", round: func(ctx context.Context, r *recorder) error {
		name := fmt.Sprint("accept-", r.n)
		do := func(args ...string) error { return all(ctx, inst.pando(source, args...)) }
		timed := func(what string, args ...string) error { return r.time(what, func() error { return do(args...) }) }
		if err := do("run", "--cell", name, "--", "sh", "-c", changing(r.n)); err != nil {
			return err
		}
		if err := timed(accepted, "accept", "--apply", name); err != nil {
			return err
		}
		if err := do("run", "--cell", name, "--", "sed", "-i", fmt.Sprintf("1s/.*/first %d/", r.n), "merged.txt"); err != nil {
			return err
		}
		if err := all(ctx, command{dir: source, args: []string{"sed", "-i", fmt.Sprintf("$s/.*/last %d/", r.n), "merged.txt"}}); err != nil {
			return err
		}
		if err := timed(acceptMerged, "accept", "--apply", "--merge", name); err != nil {
			return err
		}
		if err := do("run", "--cell", name, "--", "git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-a", "-m", "round"); err != nil {
			return err
		}
		if err := timed(acceptFetched, "fetch", name); err != nil {
			return err
		}
		if err := do("rm", "--yes", name); err != nil {
			return err
		}
		if err := l.commit(ctx, p, source); err != nil {
			return err
		}
		if err := timed(acceptRun, "run", "--", "true"); err != nil {
			return err
		}
		return timed(acceptWith, "run", "--with", further, "--", "true")
	}}
	git := contestant{name: acceptGit, against: byCommand, command: "git fetch, merge --ff-only, merge, in a clone",
		lacks: []string{"no ignored files and no work that is in no commit", "no check of what would execute on the host, of secrets, or of what the source has beside commits", "no receipt, no undo after power loss"},
		round: func(ctx context.Context, r *recorder) error {
			if err := all(ctx, command{dir: from, args: []string{"sh", "-c", changing(r.n)}}); err != nil {
				return err
			}
			if err := l.commit(ctx, p, from); err != nil {
				return err
			}
			if err := r.time(acceptFetched, func() error { return all(ctx, l.git(p, work, "fetch", "-q")) }); err != nil {
				return err
			}
			if err := r.time(accepted, func() error { return all(ctx, l.git(p, work, "merge", "-q", "--ff-only", "@{u}")) }); err != nil {
				return err
			}
			for repo, line := range map[string]string{from: "1s/.*/first %d/", work: "$s/.*/last %d/"} {
				if err := all(ctx, command{dir: repo, args: []string{"sed", "-i", fmt.Sprintf(line, r.n), "merged.txt"}}); err != nil {
					return err
				}
				if err := l.commit(ctx, p, repo); err != nil {
					return err
				}
			}
			if err := all(ctx, l.git(p, work, "fetch", "-q")); err != nil {
				return err
			}
			if err := r.time(acceptMerged, func() error { return all(ctx, l.git(p, work, "merge", "-q", "--no-edit", "@{u}")) }); err != nil {
				return err
			}
			return all(ctx, l.git(p, from, "pull", "-q", "--ff-only", work, "HEAD"))
		}}
	what := fmt.Sprintf("of %d files, in a repository of %d", acceptChanged, acceptFiles)
	return l.hold(ctx, out, contest{contestants: []contestant{ours, git}, settle: true, cases: []Case{
		{Name: accepted, What: "a change " + what + ", into the source"},
		{Name: acceptMerged, What: "one file, of which the source changed another line"},
		{Name: acceptFetched, What: "one commit, as a branch of the source's"},
		{Name: acceptRun, What: "`pando run -- true` in one repository"},
		{Name: acceptWith, What: "`pando run --with DIR -- true`"},
	}})
}

// changing is a shell command that changes files of a tree.
func changing(n int) string {
	return fmt.Sprintf("for f in $(git ls-files | head -n %d); do echo %d >> $f; done", acceptChanged, n)
}

// commit commits all that there is.
func (l *lab) commit(ctx context.Context, p *program, repo string) error {
	return all(ctx, l.git(p, repo, "add", "-A"), l.git(p, repo, "commit", "-q", "-m", "round", "--allow-empty"))
}
