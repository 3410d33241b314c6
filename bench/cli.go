package bench

import (
	"context"
	"fmt"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

var cliAxis = Axis{
	Name:    "cli",
	About:   "the command line alone, and a command in a cell that lives",
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
	if err := l.commandLine(ctx, out, inst, dir); err != nil {
		return err
	}
	return l.execute(ctx, out, inst, dir)
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

// execute measures a command in a cell that has processes.
func (l *lab) execute(ctx context.Context, out *AxisResult, inst *installation, dir string) error {
	const once, row, name, cell = "execute", "execute, in a row", "client", "cell0"
	if err := inst.keepAlive(ctx, cell); err != nil {
		return err
	}
	typed := inst.pando(dir, "exec", cell, "--", "/bin/true")
	list := repeat([]string{once, row}, contestant{name: name, ours: true, command: "client.StartExec, client.AttachExec until the result"},
		func(ctx context.Context) error { _, err := inst.exec(ctx, cell, "/bin/true"); return err })
	list = append(list, repeat([]string{once, row}, contestant{name: "pando exec", ours: true, command: typed.words()},
		func(ctx context.Context) error { return all(ctx, typed) })...)
	x, end := l.crunExec(ctx, out, inst, dir, once, row)
	defer end()
	list = append(list, x...)
	for _, name := range []string{"docker", "podman"} {
		x, end := l.engineExec(ctx, out, name, inst, dir, once, row)
		defer end()
		list = append(list, x...)
	}
	for i := range list {
		if !list[i].ours {
			list[i].against = "pando exec"
		}
	}
	runs := l.runs
	if !l.quick {
		runs = max(runs, 30) // it is short
	}
	return l.hold(ctx, out, contest{contestants: list, runs: runs, cases: []Case{
		{Name: once, What: fmt.Sprintf("/bin/true in a living cell after %v of rest: client from the request to the exit code, others from starting the program to its end", l.pause),
			Goals: []Goal{{Series: name, AtMost: 2.5}}},
		{Name: row, What: fmt.Sprintf("%d in a row without rest, a tenth of all", inRow)},
	}})
}

// keepAlive starts a process in a cell that outlives everything here.
func (i *installation) keepAlive(ctx context.Context, cell string) error {
	_, err := i.client.StartExec(ctx, cell, api.ExecRequest{Command: []string{"sleep", "86400"}})
	return err
}

// exec runs a command in a cell through the client and returns what it wrote.
func (i *installation) exec(ctx context.Context, cell string, args ...string) ([]byte, error) {
	x, err := i.client.StartExec(ctx, cell, api.ExecRequest{Command: args, Attach: true})
	if err != nil {
		return nil, err
	}
	at, err := i.client.AttachExec(ctx, x.ID, true)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	var wrote []byte
	for {
		f, err := at.Recv(ctx)
		if err != nil {
			return nil, err
		}
		switch f.Type {
		case api.FrameStdout, api.FrameStderr:
			_, b, err := f.OutputData()
			if err != nil {
				return nil, err
			}
			wrote = append(wrote, b...)
		case api.FrameResult, api.FrameError:
			x, err := client.DecodeResult[api.Exec](f)
			if err != nil {
				return nil, err
			}
			if x.ExitCode == nil || *x.ExitCode != 0 {
				return nil, fmt.Errorf("cannot run %v in cell %s: %v: %s", args, cell, x.ExitCode, wrote)
			}
			return wrote, nil
		}
	}
}
