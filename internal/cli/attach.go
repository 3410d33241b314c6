package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

func (a *app) attachCmd() *cobra.Command {
	var keys string
	var readOnly bool
	c := &cobra.Command{
		Use:   "attach [CELL|RUN]",
		Short: "Attach to a run's terminal, with its last screen",
		Long: `Attach this terminal to that of a run: its last screen is drawn, and you continue
where you or another client left it. Without an argument, attach to the latest run
from this directory; for a cell, to the run that executes now.

A run continues when its client's terminal is closed, its client is killed, or the
daemon ends or is replaced. The detach keys, Ctrl-P Ctrl-Q unless --detach-keys sets
others, leave it on purpose. Several clients may be attached at once: each sees the
screen and may type, and the terminal has the size of the client that attached or was
resized last. With --read-only nothing is typed and nothing resized; Ctrl-C detaches.

The exit code is that of the program when it ends, and 0 when you detach. For a run
without a terminal, its output is shown from the beginning, and nothing is typed.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			leave, err := parseKeys(keys)
			if err != nil {
				return err
			}
			run, err := a.attachable(cmd.Context(), arg(args))
			if err != nil {
				return err
			}
			return a.attachRun(cmd.Context(), run, leave, readOnly)
		},
	}
	detachFlag(c, &keys)
	c.Flags().BoolVar(&readOnly, "read-only", false, "watch only: send no input and no terminal size")
	return c
}

// attachable returns the run that a selector names. For a cell it is the one that executes its
// command, or else the latest.
func (a *app) attachable(ctx context.Context, sel string) (api.Run, error) {
	run, err := a.client.Run(ctx, sel, false)
	if err != nil || run.Phase == phaseExecuting || strings.HasPrefix(sel, "r-") || strings.Contains(sel, ":") {
		return run, err
	}
	runs, err := a.client.Runs(ctx, &run.Cell)
	if err != nil {
		return run, nil // an anonymous cell is removed with its run
	}
	for _, r := range runs {
		if r.Phase == phaseExecuting {
			return r, nil
		}
	}
	return run, nil
}

// phaseExecuting is the phase of a run that executes its command.
const phaseExecuting = "executing"

// attachRun attaches this terminal to a run until the run ends or the user detaches.
func (a *app) attachRun(ctx context.Context, run api.Run, leave detachKeys, readOnly bool) error {
	if run.Phase == "ended" || run.ExitCode != nil {
		return endedAlready(run)
	}
	tty, rows, cols := a.terminal()
	tty = tty && !a.json
	if run.TTY && !tty {
		return &api.Error{Kind: "invalid", Message: "cannot attach to run " + run.ID + ": standard input and output are no terminal",
			Hint: "follow its output: pando logs -f " + run.ID}
	}
	a.bareRun("run "+run.ID, run.Isolation, "is")
	o := client.AttachOptions{Input: run.TTY && !readOnly, Screen: run.TTY, Name: rand.Text()}
	if run.TTY {
		o.Rows, o.Cols = rows, cols
	}
	l, err := a.linkTo(ctx, "run", run.ID, o, a.client.AttachRun)
	if err != nil {
		return err
	}
	l.detach, l.stays, l.readOnly = leave, true, readOnly || !run.TTY
	return a.followRun(ctx, run, l, run.TTY, func(ended api.Run) error {
		return a.runEnded(ctx, ended, api.RunRequest{})
	})
}

// linkTo attaches with attach. When this daemon ends it attaches again at the next one.
func (a *app) linkTo(ctx context.Context, what, id string, o client.AttachOptions, attach func(context.Context, string, client.AttachOptions) (*client.Attachment, error)) (*link, error) {
	at, err := attach(ctx, id, o)
	if err != nil {
		return nil, err
	}
	l := newLink(at, o.Input)
	l.what, l.alive, l.ended = what+" "+id, a.client.Alive, func() bool { return !a.remote && a.home.Holder().Ended }
	l.again = func(ctx context.Context, stdout, stderr int64) (attachment, error) {
		next := o
		// The screen is drawn anew, over messages about the connection.
		next.Screen, next.Stdout, next.Stderr = o.Rows > 0, stdout, stderr
		if o.Rows > 0 {
			if is, rows, cols := a.terminal(); is {
				next.Rows, next.Cols = rows, cols
			}
		}
		return attach(ctx, id, next)
	}
	return l, nil
}

// followRun carries the stream of a run until the run ends or the user detaches. It passes the
// end to end.
func (a *app) followRun(ctx context.Context, run api.Run, l *link, tty bool, end func(api.Run) error) error {
	if tty && l.feeds {
		l.drops = &dropper{sources: append([]string{run.Source}, run.Repositories...), copyIn: func(ctx context.Context, files []droppedFile, dir string) error {
			return a.copyDropped(ctx, run.Cell, files, dir)
		}}
		if a.remote {
			l.drops.sources = nil
		}
	}
	f, err := a.stream(l, tty, a.json)
	switch {
	case errors.Is(err, errDetached):
		a.say("pando: detached; run %s continues: pando attach %s", run.ID, run.ID)
		if c, err := a.client.Cell(ctx, run.Cell); err == nil {
			a.sayListening(ctx, c)
		}
		a.sayLogout(ctx)
		return nil
	case err != nil:
		if code, ok := err.(*exitError); ok {
			return code
		}
		// Only the connection or the daemon is lost; the run continues.
		hint := "follow it with pando logs -f " + run.ID
		if tty {
			hint = "come back to it with pando attach " + run.ID
		}
		return &api.Error{Kind: "unavailable", Message: fmt.Sprintf("lost the daemon while run %s was under way; it continues", run.ID), Hint: hint}
	}
	ended, err := client.DecodeResult[api.Run](f)
	if err != nil {
		return err
	}
	return end(ended)
}

// sayLogout says once in an installation that cells end at the logout of this user, where they do.
func (a *app) sayLogout(ctx context.Context) {
	if a.remote {
		return
	}
	d, err := a.client.Daemon(ctx)
	if err != nil || d.Logout == "" {
		return
	}
	f, err := os.OpenFile(a.home.ToldLogout(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	f.Close()
	a.say("pando: your cells end when you log out; so that they go on: %s", d.Logout)
}

// endedAlready says why a run cannot be attached to any more.
func endedAlready(run api.Run) error {
	how := "it never started"
	if run.ExitCode != nil {
		how = "it has ended (" + howEnded(run) + ")"
	}
	return &api.Error{Kind: "conflict", Message: fmt.Sprintf("cannot attach to run %s: %s", run.ID, how), Hint: "see its output: pando logs " + run.ID}
}
