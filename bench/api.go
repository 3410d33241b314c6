package bench

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

var apiAxis = Axis{
	Name:    "api",
	About:   "what programs do from elsewhere: over REST, as programs written for E2B, as agents over MCP",
	measure: measureAPI,
}

// door is a way for programs to come to cells.
type door struct {
	name    string
	command string // to repeat the measurement
	create  func(ctx context.Context) (cell string, err error)
	remove  func(ctx context.Context, cell string) error
	exec    func(ctx context.Context, cell string) error // /bin/true, until its exit code
	// eval evaluates code with a whole number as its value.
	eval  func(ctx context.Context, cell, code string) (string, error)
	write func(ctx context.Context, cell, path string, b []byte) error
	read  func(ctx context.Context, cell, path string) ([]byte, error)
	fork  func(ctx context.Context, cell string, n int) ([]string, error)
	close func() error
	whole int // bytes of a file that it can read and write at once; 0 for any
}

// forksAtOnce is how many forks are asked for at once.
const forksAtOnce = 10

func measureAPI(ctx context.Context, l *lab, out *AxisResult) error {
	const create, exec, eval, fork = "create", "execute", "evaluate", "fork"
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	if ok, err := inst.works(ctx, out, "REST"); !ok || err != nil {
		return err
	}
	if err := inst.stop(ctx); err != nil {
		return err
	}
	at, err := inst.serve(ctx)
	if err != nil {
		return err
	}
	defer at.close()
	doors, err := at.doors(ctx)
	if err != nil {
		return err
	}
	big := 100 << 20
	if l.quick {
		big = 10 << 20
	}
	sizes := []int{1 << 10, big}
	cases := []Case{
		{Name: create, What: "a cell with an empty workspace, until it can be asked for something"},
		{Name: exec, What: "/bin/true in a cell that lives, until its exit code is known"},
		{Name: eval, What: "n+1 in the interpreter of a cell, until the value is known"},
		{Name: fork, What: fmt.Sprintf("%d forks of the cell as it is now, with its interpreter, in one request", forksAtOnce)},
	}
	for _, n := range sizes {
		cases = append(cases,
			Case{Name: "write " + size(n), What: fmt.Sprintf("a file of %d bytes into the cell", n)},
			Case{Name: "read " + size(n), What: "the same out of it, compared"})
	}
	var list []contestant
	for _, d := range doors {
		defer d.close()
		asked := 0
		list = append(list, contestant{name: d.name, ours: true, command: d.command, round: func(ctx context.Context, r *recorder) (err error) {
			var cell string
			if err := r.time(create, func() (err error) { cell, err = d.create(ctx); return err }); err != nil {
				return err
			}
			all := []string{cell}
			defer func() {
				for _, c := range all {
					if rerr := d.remove(ctx, c); err == nil {
						err = rerr
					}
				}
			}()
			// The first of each is what a cell costs once, and not what is measured.
			question := func() error {
				asked++
				v, err := d.eval(ctx, cell, fmt.Sprintf("%d+1", asked))
				if err == nil && v != fmt.Sprint(asked+1) {
					err = fmt.Errorf("%d+1 is %q", asked, v)
				}
				return err
			}
			if err := d.exec(ctx, cell); err != nil {
				return err
			}
			if err := question(); err != nil {
				return err
			}
			if err := r.time(exec, func() error { return d.exec(ctx, cell) }); err != nil {
				return err
			}
			if err := r.time(eval, question); err != nil {
				return err
			}
			for _, n := range sizes {
				if d.whole > 0 && n > d.whole {
					continue
				}
				b := bytes.Repeat([]byte{byte('a' + r.n%26)}, n)
				if err := r.time("write "+size(n), func() error { return d.write(ctx, cell, "/tmp/measured", b) }); err != nil {
					return err
				}
				var got []byte
				if err := r.time("read "+size(n), func() (err error) { got, err = d.read(ctx, cell, "/tmp/measured"); return err }); err != nil {
					return err
				}
				if !bytes.Equal(got, b) {
					return fmt.Errorf("%d bytes came back as %d others", len(b), len(got))
				}
			}
			return r.time(fork, func() error {
				forks, err := d.fork(ctx, cell, forksAtOnce)
				all = slices.Concat(forks, all)
				if err == nil && len(forks) != forksAtOnce {
					err = fmt.Errorf("there are %d forks", len(forks))
				}
				return err
			})
		}})
	}
	for _, d := range doors {
		if d.whole > 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("%s: answers are bounded, so that a model can read them: at most %d bytes of a file at once", d.name, d.whole))
		}
	}
	return l.hold(ctx, out, contest{contestants: list, cases: cases})
}

func size(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
