package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

func (a *app) waitCmd() *cobra.Command {
	var anyOf bool
	c := &cobra.Command{
		Use:   "wait [RUN…]",
		Short: "Wait until runs have ended, and print how",
		Long: `Wait until runs have ended, and print the last line of each, on stdout and in the
order in which they end. The exit code is that of the run; of several, that of the first
that failed. Without a name it is the latest run from this directory.`,
		Example: `  r=$(pando run -d -- make test); pando wait $r
  pando wait --any $(pando runs --json | jq -r '.[] | select(.phase != "ended") | .run')`,
		ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{""}
			}
			runs := make([]api.Run, len(args))
			for i, sel := range args { // report a wrong name before waiting
				var err error
				if runs[i], err = a.client.Run(cmd.Context(), sel, false); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			type end struct {
				run api.Run
				err error
			}
			ends := make(chan end, len(runs))
			for _, r := range runs {
				go func() {
					r, err := a.awaitRun(ctx, r)
					ends <- end{r, err}
				}()
			}
			ended := []api.Run{}
			for range runs {
				e := <-ends
				if e.err != nil {
					if cmd.Context().Err() != nil {
						return &exitError{api.ExitInterrupted}
					}
					return e.err
				}
				ended = append(ended, e.run)
				if code := exitOf(e.run); a.exit == 0 {
					a.exit = code
				}
				if !a.json {
					fmt.Fprintln(a.stdout, marked(endLine(e.run), e.run.Isolation))
				}
				if anyOf {
					break
				}
			}
			if a.json {
				return json.NewEncoder(a.stdout).Encode(ended)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&anyOf, "any", false, "return as soon as one of them has ended")
	return c
}

// endLine is the last line of an ended run.
func endLine(run api.Run) string {
	if run.ExitCode == nil && run.Error != nil {
		return fmt.Sprintf("%s never began: %s", run.ID, printable(run.Error.Message))
	}
	return summary(run)
}

// awaitRun waits for the end of a run, across restarts of the daemon.
func (a *app) awaitRun(ctx context.Context, run api.Run) (api.Run, error) {
	if run.Phase == "ended" {
		return run, nil
	}
	l, err := a.linkTo(ctx, "run", run.ID, client.AttachOptions{Stdout: run.Output.Stdout.Bytes, Stderr: run.Output.Stderr.Bytes}, a.client.AttachRun)
	if err != nil {
		return run, err
	}
	defer l.close()
	l.stdout, l.stderr = run.Output.Stdout.Bytes, run.Output.Stderr.Bytes
	for {
		f, err := l.recv(ctx, func(line string) { a.say("pando: %s", line) })
		if err != nil {
			return run, err
		}
		switch f.Type {
		case api.FrameStdout, api.FrameStderr:
			if _, err := l.output(f); err != nil {
				return run, err
			}
		case api.FrameResult, api.FrameError:
			return client.DecodeResult[api.Run](f)
		}
	}
}
