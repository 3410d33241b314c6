package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
)

func (a *app) execCmd() *cobra.Command {
	var req api.ExecRequest
	var env []string
	var detach, noStdin bool
	c := &cobra.Command{
		Use:   "exec [flags] CELL -- COMMAND…",
		Short: "Run a command in a cell, outside any run",
		Long: `Run a command in a cell, with its exit code. It is not governed: it has no
checkpoint and no receipt of its own. What it changes belongs to the cell and is
part of its next checkpoint.`,
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Command = args[1:]
			if strings.HasPrefix(args[1], "-") { // flags between the cell and the command
				if err := cmd.Flags().Parse(args[1:]); err != nil {
					return fmt.Errorf("%w: %w", errUsage, err)
				}
				if help, _ := cmd.Flags().GetBool("help"); help {
					return cmd.Help()
				}
				req.Command = cmd.Flags().Args()
				if err := nothingEmpty(cmd, nil); err != nil {
					return err
				}
			}
			if len(req.Command) == 0 || req.Command[0] == "" {
				return usage("the command is missing: pando exec CELL -- COMMAND")
			}
			var err error
			if req.Env, err = passEnv(env); err != nil {
				return err
			}
			return a.exec(cmd.Context(), args[0], req, detach, noStdin)
		},
	}
	c.Flags().SetInterspersed(false)
	terminalFlags(c.Flags())
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass your own")
	c.Flags().StringVarP(&req.Workdir, "workdir", "w", "", "where to run (default: the top of the workspace)")
	c.Flags().StringVar(&req.Timeout, "timeout", "", "end it after this time, such as 10m")
	c.Flags().BoolVarP(&noStdin, "no-stdin", "n", false, "do not read standard input, for example in a loop that reads it")
	c.Flags().BoolVarP(&detach, "detach", "d", false, "return when the command has started")
	return c
}

func (a *app) shellCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "shell CELL",
		Short: "Open a shell in a cell",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			// The image's shell: bash if there is one.
			return a.exec(cmd.Context(), args[0], api.ExecRequest{Command: []string{"sh", "-c", "command -v bash >/dev/null && exec bash -i || exec sh -i"}}, false, false)
		},
	}
}

func (a *app) exec(ctx context.Context, sel string, req api.ExecRequest, detach, noStdin bool) error {
	tty := false
	if noStdin {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		defer null.Close()
		a.stdin = null
	}
	if !detach {
		tty, req.Rows, req.Cols = a.terminal()
		tty = tty && !a.json
		req.TTY, req.Attach = tty, true
	}
	req.CallerEnv = termOnly()
	x, err := a.client.StartExec(ctx, sel, req)
	if err != nil {
		return err
	}
	a.bareRun("command "+x.ID, x.Isolation, "is")
	for _, n := range x.Notes {
		a.say("pando: note: %s", n)
	}
	if detach {
		return a.print(x, func(w io.Writer) { fmt.Fprintln(w, x.ID) })
	}
	o := client.AttachOptions{Input: true, Name: rand.Text()}
	if tty {
		o.Rows, o.Cols = req.Rows, req.Cols
	}
	l, err := a.linkTo(ctx, "command", x.ID, o, a.client.AttachExec)
	if err != nil {
		return err
	}
	f, err := a.stream(l, tty, a.json)
	if err != nil {
		return err
	}
	notes := x.Notes
	if x, err = client.DecodeResult[api.Exec](f); err != nil {
		return err
	}
	ended := x.Notes
	x.Notes = append(notes, ended...)
	if x.ExitCode != nil {
		a.exit = *x.ExitCode
	}
	switch {
	case x.Cause == cell.CauseTimeout:
		a.exit = api.ExitTimeout
	case x.Cause == api.CauseDiskLimit && a.exit == 0:
		a.exit = 1
	}
	return a.print(x, func(io.Writer) {
		for _, n := range ended {
			a.say("pando: note: %s", printable(n))
		}
		if x.Cause != "" {
			a.say("pando: the command was ended: %s", x.Cause)
		}
	})
}

// termOnly returns the variables of our environment that an exec needs.
func termOnly() []string {
	if t, ok := os.LookupEnv("TERM"); ok {
		return []string{"TERM=" + t}
	}
	return nil
}

// callerEnv returns the environment of this process, of which the daemon takes the variables for
// tools and terminals. It replaces bytes that are not UTF-8, so that no request fails for a
// variable that the caller did not name.
func callerEnv() []string {
	env := os.Environ()
	for i, v := range env {
		env[i] = strings.ToValidUTF8(v, "\ufffd")
	}
	return env
}
