package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// sendWait bounds the wait for the daemon to say that the program was given the text: that of the keeper
// for its screen, and that for another daemon.
const sendWait = 20*time.Second + reconnectWindow

func (a *app) sendCmd() *cobra.Command {
	var noEnter bool
	c := &cobra.Command{
		Use:   "send CELL|RUN TEXT…",
		Short: "Type a line at the terminal of a run",
		Long: `Type TEXT and Enter at the terminal of the run that executes in a cell, as if you were
attached to it: the next task for an agent, an answer to a question. Several words are
one line. It returns when the program has been given the text, and does not wait for
an answer: pando attach shows that. What is sent to an agent that is just starting waits
for its screen, for 20 seconds at most; another program may throw it away.`,
		Example: `  pando send app 'now the documentation'
  pando send app --no-enter y`,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := a.attachable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if run.Phase == "ended" || run.ExitCode != nil {
				return &api.Error{Kind: "conflict", Message: "cannot send to run " + run.ID + ": it has ended", Hint: "start another: pando run --cell " + run.CellName + " -- COMMAND"}
			}
			if !run.TTY {
				return &api.Error{Kind: "conflict", Message: "cannot send to run " + run.ID + ": it has no terminal", Hint: "start it at a terminal, and leave it with the detach keys"}
			}
			keys := []string{strings.Join(args[1:], " "), "\r"}
			if noEnter {
				keys = keys[:1]
			}
			n, err := a.sendKeys(cmd.Context(), run.ID, keys)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"run": run.ID, "bytes": n}, func(io.Writer) { a.say("sent to %s in %s", run.ID, printable(run.CellName)) })
		},
	}
	c.Flags().BoolVar(&noEnter, "no-enter", false, "type TEXT alone")
	return c
}

// sendKeys types each of keys at the terminal of a run, when it has been given the one before, also when
// the daemon ends meanwhile. It returns how many bytes that were.
func (a *app) sendKeys(ctx context.Context, id string, keys []string) (sent int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendWait)
	defer cancel()
	l, err := a.linkTo(ctx, "run", id, client.AttachOptions{Input: true, Screen: true, Name: rand.Text()}, a.client.AttachRun)
	if err != nil {
		return 0, err
	}
	defer l.close()
	return a.typeOver(ctx, l, keys)
}

// typeOver is sendKeys over a stream.
func (a *app) typeOver(ctx context.Context, l *link, keys []string) (sent int64, err error) {
	for _, k := range keys {
		if !l.input(ctx, []byte(k)) {
			return sent, io.ErrUnexpectedEOF // it was closed: it breaks only when it can't be had again
		}
		sent += int64(len(k))
		if err := a.awaitTaken(ctx, l, sent); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// awaitTaken waits until a run's program has been given n bytes of this client.
func (a *app) awaitTaken(ctx context.Context, l *link, n int64) error {
	for {
		f, err := l.recv(ctx, func(line string) { a.say("pando: %s", line) })
		if err != nil {
			return err
		}
		switch f.Type {
		case api.FrameTaken:
			var t api.Taken
			if err := json.Unmarshal(f.Payload, &t); err != nil {
				return fmt.Errorf("cannot read how much was taken: %w", err)
			}
			if l.taken(ctx, t.Bytes); t.Bytes >= n {
				return nil
			}
		case api.FrameExit, api.FrameResult:
			return &api.Error{Kind: "conflict", Message: "cannot send all of the text: the program has ended"}
		case api.FrameError:
			_, err := client.DecodeResult[struct{}](f)
			return err
		}
	}
}
