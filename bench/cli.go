package bench

import (
	"context"
	"fmt"
)

var cliAxis = Axis{
	Name:    "cli",
	About:   "the command line alone",
	measure: measureCLI,
}

// cellsListed is how many cells there are when they are listed.
const cellsListed = 10

func measureCLI(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.tree(100, 100)
	if err != nil {
		return err
	}
	for i := range cellsListed {
		if _, err := inst.pando(dir, "run", "--cell", fmt.Sprintf("cell%d", i), "--", "true").run(ctx); err != nil {
			return err
		}
	}
	return l.commandLine(ctx, out, inst, dir)
}

// plain is a contestant that runs one command.
func plain(ours bool, name, what string, c command) contestant {
	return contestant{name: name, ours: ours, command: c.words(), round: func(ctx context.Context, r *recorder) error {
		return r.time(what, func() error { _, err := c.run(ctx); return err })
	}}
}

func (l *lab) commandLine(ctx context.Context, out *AxisResult, inst *installation, dir string) error {
	const version, ls = "version", "ls"
	list := []contestant{
		plain(true, "pando --version", version, inst.pando(dir, "--version")),
		plain(true, "pando ls", ls, inst.pando(dir, "ls")),
	}
	if p := l.find(ctx, "true"); p.why == "" {
		x := plain(false, "true", version, command{args: []string{p.path}})
		x.lacks = []string{"everything: it is what starting any program costs in this harness"}
		x.against = "pando --version"
		list = append(list, x)
	}
	for _, name := range []string{"docker", "podman"} {
		if p := l.daemonOf(ctx, name); p.why != "" {
			out.absent(name+" ps", p.why)
		} else {
			x := plain(false, name+" ps", ls, command{args: []string{p.path, "ps"}})
			x.against = "pando ls"
			list = append(list, x)
		}
	}
	return l.hold(ctx, out, contest{contestants: list, cases: []Case{
		{Name: version, What: "from starting the program to its end", Goals: []Goal{{Series: "pando --version", AtMost: 5}}},
		{Name: ls, What: fmt.Sprintf("the same, daemon up, %d cells", cellsListed), Goals: []Goal{{Series: "pando ls", AtMost: 15}}},
	}})
}
