package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) drainCmd() *cobra.Command {
	var undo, wait bool
	var timeout time.Duration
	c := &cobra.Command{
		Use: "drain", Short: "Make the daemon refuse new work; running work continues", Args: cobra.NoArgs,
		Long: `Make the daemon refuse new work; running work continues, and can be inspected, stopped and
removed. With --wait the command ends when nothing is under way any more: no run, command,
evaluation or operation. With --timeout it gives up after that time with exit code 124, and
the daemon goes on draining. It does not wait for processes of cells that belong to no
command, such as servers.`,
		Example: `  pando daemon drain --wait --timeout 10m && pando daemon stop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case undo && wait:
				return usage("--undo ends draining: there is nothing to wait for")
			case cmd.Flags().Changed("timeout") && (!wait || timeout <= 0):
				return usage("--timeout takes a time such as 10m, and goes with --wait")
			}
			d, err := a.client.DrainDaemon(cmd.Context(), undo)
			if err != nil {
				return err
			}
			if wait {
				a.say("daemon %d takes no new work", d.PID)
				if d, err = a.awaitIdle(cmd.Context(), d, timeout); err != nil {
					return err
				}
			}
			return a.print(d, func(io.Writer) {
				switch {
				case undo:
					a.say("daemon %d takes work again", d.PID)
				case wait:
					a.say("nothing is under way; %s with processes", plural(d.Alive, "cell"))
				default:
					a.say("daemon %d takes no new work; %d under way, %s with processes", d.PID, d.Working, plural(d.Alive, "cell"))
				}
			})
		},
	}
	c.Flags().BoolVar(&undo, "undo", false, "accept new work again")
	c.Flags().BoolVar(&wait, "wait", false, "wait until nothing is under way")
	c.Flags().DurationVar(&timeout, "timeout", 0, "with --wait: give up after this time, such as 10m (exit code 124)")
	return c
}

// idlePoll is the interval at which a draining daemon is asked for its work in progress.
const idlePoll = 100 * time.Millisecond

// awaitIdle waits until a draining daemon has no work in progress, for at most limit; 0 is
// without limit.
func (a *app) awaitIdle(ctx context.Context, d api.Daemon, limit time.Duration) (api.Daemon, error) {
	c := a.client
	if !a.remote {
		c = a.localClient() // a client that starts no other daemon when this one ends
	}
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	said := -1
	for was := d; ; was = d {
		if d.Working == 0 {
			return d, nil
		}
		if d.Working != said {
			a.say("waiting for runs and commands to end: %d", d.Working)
			said = d.Working
		}
		select {
		case <-ctx.Done():
			return d, &api.Error{Kind: "interrupted", Message: "interrupted; the daemon goes on draining", Hint: "have it take work again: pando daemon drain --undo"}
		case <-late:
			return d, &api.Error{Kind: "timeout", Message: fmt.Sprintf("cannot drain daemon %d within %s: runs and commands that have not ended: %d; it goes on draining", d.PID, limit, d.Working),
				Hint: "see what runs with pando runs and pando ls, and end it with pando stop --all; or have the daemon take work again: pando daemon drain --undo"}
		case <-time.After(idlePoll):
		}
		var err error
		if d, err = c.Daemon(ctx); err != nil && ctx.Err() == nil {
			return was, err
		} else if err != nil {
			d = was // the daemon ended: report that the wait was interrupted
		}
		if d.PID != was.PID || !d.Draining {
			return d, &api.Error{Kind: "conflict", Message: fmt.Sprintf("cannot wait for the end of what is under way: daemon %d takes new work again", d.PID), Hint: "drain it again: pando daemon drain --wait"}
		}
	}
}
