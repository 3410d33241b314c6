package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
)

// writtenBy are the numbers of files that a cell has written before it is checkpointed.
func (l *lab) writtenBy() []int {
	if l.quick {
		return []int{100, 5_000}
	}
	return []int{100, 50_000}
}

const (
	pausedAt   = "pause, living, files written: "
	pauseMost  = 10.0     // ms
	writtenMin = 40 << 10 // bytes of each file: 2 GiB in 50,000

	// filesCode writes files, twenty in a folder.
	filesCode = `import os, sys
for i in range(int(sys.argv[1])):
    d = "written/%%d" %% (i // 20)
    if i %% 20 == 0: os.makedirs(d)
    with open("%%s/%%d" %% (d, i), "wb") as f: f.write(b"." * %d)
`
	// gapCode writes about every millisecond, and says when it is asked what was its longest gap since
	// it was asked before.
	gapCode = `import os, time
gap, last = 0, time.monotonic()
with open("beats", "ab", buffering=0) as f:
    while True:
        time.sleep(0.001)
        f.write(b"." * 1000)
        now = time.monotonic()
        gap, last = max(gap, now - last), now
        if os.path.exists("ask"):
            os.remove("ask")
            with open("answer.new", "w") as a: a.write(str(gap * 1000))
            os.rename("answer.new", "answer")
            gap, last = 0, time.monotonic()
`
	askCode = "rm -f answer; touch ask; while [ ! -e answer ]; do sleep 0.01; done; cat answer"
)

// pausing measures how long a cell stands still for a checkpoint, as a program in it that writes sees it.
func (l *lab) pausing(ctx context.Context, out *AxisResult, inst *installation) error {
	c := contest{settle: true}
	for _, n := range l.writtenBy() {
		c.cases = append(c.cases, Case{Name: pausedAt + strconv.Itoa(n), What: "the longest gap of a writer that beats every millisecond; three files changed before",
			Goals: []Goal{{Series: byClient, AtMost: pauseMost}}})
	}
	dir, err := l.tree(100, 1<<10)
	if err != nil {
		return err
	}
	made := false
	c.contestants = []contestant{{name: byClient, ours: true, command: "client.Checkpoint, while a process in the cell writes", round: func(ctx context.Context, r *recorder) error {
		for _, n := range l.writtenBy() {
			name := "pausing-" + strconv.Itoa(n)
			if !made {
				if err := inst.writing(ctx, dir, name, n); err != nil {
					return err
				}
			}
			if err := inst.pausedFor(ctx, r, name, pausedAt+strconv.Itoa(n)); err != nil {
				return err
			}
		}
		made = true
		return nil
	}}}
	return l.hold(ctx, out, c)
}

// writing makes a cell that has written n files, with the program that writes, and a first checkpoint, which
// copies all.
func (i *installation) writing(ctx context.Context, dir, name string, n int) error {
	if _, err := i.pando(dir, "run", "--cell", name, "--", "true").run(ctx); err != nil {
		return err
	}
	if _, err := i.exec(ctx, name, "python3", "-c", fmt.Sprintf(filesCode, writtenMin), strconv.Itoa(n)); err != nil {
		return err
	}
	if _, err := i.client.StartExec(ctx, name, api.ExecRequest{Command: []string{"python3", "-c", gapCode}}); err != nil {
		return err
	}
	_, err := i.client.Checkpoint(ctx, name, api.CheckpointRequest{})
	return err
}

// pausedFor records the pause of one checkpoint.
func (i *installation) pausedFor(ctx context.Context, r *recorder, name, of string) error {
	gap := func() (float64, error) {
		b, err := i.exec(ctx, name, "sh", "-c", askCode)
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	}
	_, err := i.exec(ctx, name, "sh", "-c", "for f in written/*/7 written/*/27 written/*/47; do echo "+strconv.Itoa(r.n)+" > $f; done")
	if err != nil {
		return err
	}
	usual, err := gap()
	if err != nil {
		return err
	}
	began := now()
	k, err := i.client.Checkpoint(ctx, name, api.CheckpointRequest{})
	if err != nil {
		return err
	}
	call := began.ms()
	longest, err := gap()
	if err != nil {
		return err
	}
	if k.PauseMS == 0 {
		return errors.New("the cell did not stand still for its checkpoint")
	}
	r.put(of, round(longest))
	r.part(of, "by the daemon's clock", round(k.PauseMS))
	r.part(of, partCall, call)
	r.part(of, "otherwise, beside a command", round(usual))
	return nil
}
