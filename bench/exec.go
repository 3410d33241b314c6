package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

var execAxis = Axis{
	Name:    "exec",
	About:   "a command in a cell that lives",
	measure: measureExec,
	cells:   measureExec,
}

func measureExec(ctx context.Context, l *lab, out *AxisResult) error {
	const once, row, name, cell = "execute", "execute, in a row", "client", "lives"
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.tree(100, 100)
	if err != nil {
		return err
	}
	if ok, err := inst.works(ctx, out, name); !ok || err != nil {
		return err
	}
	if _, err := inst.pando(dir, l.run("--cell", cell, "--", "true")...).run(ctx); err != nil {
		return err
	}
	if err := inst.keepAlive(ctx, cell); err != nil {
		return err
	}
	typed := inst.pando(dir, "exec", cell, "--", "/bin/true")
	list := slices.Concat(
		repeat([]string{once, row}, contestant{name: name, ours: true, command: "client.RunExec"},
			func(ctx context.Context) error { return inst.whole(ctx, cell, "/bin/true") }),
		repeat([]string{once, row}, contestant{name: "client, attached", ours: true, command: "client.StartExec, client.AttachExec until the result"},
			func(ctx context.Context) error { _, err := inst.exec(ctx, cell, "/bin/true"); return err }),
		repeat([]string{once, row}, contestant{name: "pando exec", ours: true, command: typed.words()},
			func(ctx context.Context) error { return all(ctx, typed) }))
	switch l.backend {
	case microvm:
	case gvisor:
		x, end := l.runscExec(ctx, out, inst, dir, once, row)
		defer end()
		list = append(list, x...)
	default:
		x, end := l.crunExec(ctx, out, inst, dir, once, row)
		defer end()
		list = append(list, x...)
		for _, name := range []string{"docker", "podman"} {
			x, end := l.engineExec(ctx, out, name, inst, dir, once, row)
			defer end()
			list = append(list, x...)
		}
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

// whole runs a command in a cell, as one exchange.
func (i *installation) whole(ctx context.Context, cell string, args ...string) error {
	x, err := i.client.RunExec(ctx, cell, api.ExecRequest{Command: args})
	if err == nil && (x.ExitCode == nil || *x.ExitCode != 0) {
		err = fmt.Errorf("cannot run %v in cell %s: %v: %s", args, cell, x.ExitCode, x.Stderr)
	}
	return err
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
	at, err := i.client.AttachExec(ctx, x.ID, client.AttachOptions{Input: true})
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
