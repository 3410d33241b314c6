package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var sshAxis = Axis{
	Name:    "ssh",
	About:   "commands and files in a cell by SSH, beside pando's own verbs",
	measure: measureSSH,
}

const (
	sshCommand = "command"
	sshOne     = "one file, 64 MiB"
	sshMany    = "1,000 files"
)

func measureSSH(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	for _, name := range []string{"ssh", "rsync"} {
		if p := l.find(ctx, name); p.why != "" {
			out.absent(name, p.why)
			return nil
		}
	}
	many, err := l.tree(1000, 1<<10)
	if err != nil {
		return err
	}
	dir, err := l.fresh("ssh")
	if err != nil {
		return err
	}
	size := 64 << 20
	if l.quick {
		size = 1 << 20
	}
	if err := put(dir, "one", strings.Repeat("0123456789abcdef", size/16)); err != nil {
		return err
	}
	if _, err := inst.pando(dir, "run", "--cell", "web", "--", "true").run(ctx); err != nil {
		return err
	}
	text, err := inst.pando(dir, "ssh-config").run(ctx)
	if err != nil {
		return err
	}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return err
	}
	host := func(args ...string) command { return command{dir: dir, env: inst.env, args: args} }
	own := func(args ...string) command { return inst.pando(dir, args...) }
	where := filepath.Join(dir, "in")
	round := func(do func(n int) [3]command) func(context.Context, *recorder) error {
		return func(ctx context.Context, r *recorder) error {
			for i, c := range do(r.n) {
				if err := r.time([]string{sshCommand, sshOne, sshMany}[i], func() error { return all(ctx, c) }); err != nil {
					return err
				}
			}
			return nil
		}
	}
	list := []contestant{
		{name: "ssh, scp, rsync", ours: true, command: "ssh web.pando true; scp one web.pando:in; rsync -a tree/ web.pando:tree",
			round: round(func(n int) [3]command {
				return [3]command{host("ssh", "-F", config, "web.pando", "true"), host("scp", "-q", "-F", config, "one", "web.pando:"+where),
					host("rsync", "-a", "-e", "ssh -F "+config, many+"/", fmt.Sprintf("web.pando:%s-ssh-%d", where, n))}
			})},
		{name: "pando exec, cp", ours: true, command: "pando exec web -- true; pando cp one web:in; pando cp tree web:tree",
			round: round(func(n int) [3]command {
				return [3]command{own("exec", "web", "--", "true"), own("cp", "one", "web:"+where), own("cp", many, fmt.Sprintf("web:%s-cp-%d", where, n))}
			})},
	}
	return l.hold(ctx, out, contest{contestants: list, cases: []Case{
		{Name: sshCommand, What: "`true` in a cell at rest or alive, as it is after the round before"},
		{Name: sshOne, What: "into the cell"},
		{Name: sshMany, What: "a tree of small files into a new folder of the cell"},
	}})
}
