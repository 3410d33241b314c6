package spawn

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// turnLimit is how long a fork that is a sandbox of its own is left alone with the
// processors before the next one is asked. One that works for longer, or waits for
// something, keeps no other waiting.
const turnLimit = 50 * time.Millisecond

// answerAll lets all forks answer: at once, but for whole sandboxes, of which one begins
// for each processor. Each has processors of its own, which wait for each other, and a
// hundred that all run would spend most of their time so.
func (f *forking) answerAll(ctx context.Context, made []*child) {
	atOnce := len(made)
	if f.par.image != nil {
		atOnce = runtime.GOMAXPROCS(0)
	}
	inTurns(len(made), atOnce, turnLimit, func(i int) { f.answer(ctx, made[i]) })
}

// inTurns calls act for each of n, and returns when all have ended. At most atOnce of them
// have begun less than limit ago.
func inTurns(n, atOnce int, limit time.Duration, act func(i int)) {
	turns := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range n {
		turns <- struct{}{}
		over := sync.OnceFunc(func() { <-turns })
		all.Go(func() {
			defer over()
			defer time.AfterFunc(limit, over).Stop()
			act(i)
		})
	}
	all.Wait()
}

// answer lets a fork evaluate, or run, what was asked for, and tells of it.
func (f *forking) answer(ctx context.Context, ch *child) {
	switch {
	case f.req.Eval != "":
		ch.err = f.evalIn(ctx, ch)
	case len(f.req.Command) > 0:
		ch.err = f.runIn(ctx, ch)
	}
	f.say(ch)
}

func (f *forking) evalIn(ctx context.Context, ch *child) error {
	if err := f.m.cfg.Spend(ch.c); err != nil {
		return err
	}
	var mu sync.Mutex
	var streams [2]strings.Builder
	done, err := f.m.live.Evaluate(ctx, ch.c.ID, ch.w, f.ev, func(l api.StreamLine) {
		mu.Lock()
		defer mu.Unlock()
		for i, b := range [][]byte{l.Stdout, l.Stderr} {
			streams[i].Write(b[:min(len(b), forkOutput-streams[i].Len())])
		}
	})
	if err != nil {
		return err
	}
	mu.Lock()
	ch.res.Stdout, ch.res.Stderr = strings.ToValidUTF8(streams[0].String(), "�"), strings.ToValidUTF8(streams[1].String(), "�")
	mu.Unlock()
	ch.res.Result, err = json.Marshal(done)
	return err
}

// runIn runs the command in a fork to its end.
func (f *forking) runIn(ctx context.Context, ch *child) (err error) {
	m, c := f.m, ch.c
	if err := m.cfg.Spend(c); err != nil {
		return err
	}
	inst, release := m.live.Ref(c.ID)
	if inst == nil {
		return cell.Errorf(cell.Conflict, "spawn.ForkTemplate", "", "cannot run in %s: its interpreter ended", c.Title())
	}
	defer release()
	var logs [3]*os.File
	for i, name := range []string{"stdout", "stderr"} {
		fd, err := unix.MemfdCreate("pando "+name, unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		logs[i] = os.NewFile(uintptr(fd), name)
		defer logs[i].Close()
	}
	env := cell.CommandEnv(append(m.cfg.Env(c), "PANDO_CELL="+c.Title()), f.par.env(), c.Setup.User, false, "")
	proc, err := inst.Start(ctx, "fork-"+string(c.ID), cell.Start{
		Process: cell.Process{Args: f.req.Command, Env: env, Path: cell.Candidates(f.req.Command[0], env, c.Source), Workdir: c.Source},
		Timeout: f.limit, LogLimit: forkOutput,
	}, logs)
	if err != nil {
		return err
	}
	st, err := m.live.WaitFor(ctx, inst, proc)
	if err != nil {
		return err
	}
	ch.res.Stdout, ch.res.Stderr = textOf(logs[0]), textOf(logs[1])
	code := 255
	if st.Exit != nil {
		code = st.Exit.Code
		if st.Exit.Cause != "" {
			ch.res.Error = &api.Error{Kind: api.Kind(cell.Conflict), Message: "cannot say that it ended by itself: " + st.Exit.Cause}
			if st.Exit.Cause == cell.CauseTimeout {
				ch.res.Error = &api.Error{Kind: api.Kind(cell.Timeout), Message: "cannot let it go on: its time is over"}
			}
		}
	}
	ch.res.Exit = &code
	return proc.Forget(ctx)
}

func textOf(f *os.File) string {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, forkOutput)) // in memory
	return strings.ToValidUTF8(string(b), "�")
}

// env is what the user gave the commands of a template's cells.
func (par *warmParent) env() []string { return par.t.Spec.Env }
