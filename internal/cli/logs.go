package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

func (a *app) logsCmd() *cobra.Command {
	var follow bool
	var only string
	tail := -1
	c := &cobra.Command{
		Use:   "logs [CELL|RUN]",
		Short: "Show what a run wrote to stdout and stderr",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c, err := a.client.Cell(cmd.Context(), arg(args)); arg(args) != "" && err == nil && c.Serves != nil && c.Runs == 0 {
				return a.serviceLogs(cmd.Context(), &c, follow, only, tail)
			}
			run, err := a.client.Run(cmd.Context(), arg(args), false)
			if err != nil {
				return err
			}
			a.bareRun("run "+run.ID, run.Isolation, "is")
			var from [2]int64 // where to begin in stdout and stderr
			if cmd.Flags().Changed("tail") {
				if tail < 0 {
					return usage("--tail takes a number of lines, not %d", tail)
				}
				for i, name := range []string{"stdout", "stderr"} {
					if from[i], err = a.lastLines(cmd.Context(), run.ID, name, tail); err != nil {
						return err
					}
				}
			}
			if follow && run.Phase != "ended" {
				l, err := a.linkTo(cmd.Context(), "run", run.ID, client.AttachOptions{Stdout: from[0], Stderr: from[1]}, a.client.AttachRun)
				if err != nil {
					return err
				}
				l.stdout, l.stderr = from[0], from[1]
				f, err := a.stream(l, false, false)
				if err != nil {
					return err
				}
				_, err = client.DecodeResult[api.Run](f)
				return err
			}
			for i, name := range []string{"stdout", "stderr"} {
				w := []io.Writer{a.stdout, a.stderr}[i]
				if only != "" && only != name {
					continue
				}
				body, err := a.client.RunFile(cmd.Context(), run.ID, name)
				if slices.ContainsFunc(run.Erased, func(e api.Erased) bool { return e.File == name }) && err != nil {
					return err // it says when it was erased, and why
				}
				if e, ok := err.(*api.Error); ok && e.Kind == "not-found" {
					continue // it never started
				}
				if err != nil {
					return err
				}
				if _, err = io.CopyN(io.Discard, body, from[i]); err == nil {
					_, err = io.Copy(a.followed(w), body)
				}
				body.Close()
				if err != nil {
					return err
				}
				o := run.Output.Stdout
				if name == "stderr" {
					o = run.Output.Stderr
				}
				if o.Kept < o.Bytes {
					a.say("pando: %s of %s were not kept", size(o.Bytes-o.Kept), name)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow until the run ends")
	c.Flags().StringVar(&only, "only", "", "only stdout or stderr")
	c.Flags().IntVarP(&tail, "tail", "n", -1, "begin with the last N lines of each stream")
	complete(c, "only", "stdout", "stderr")
	return c
}

// serviceLogs prints what the service in a cell wrote.
func (a *app) serviceLogs(ctx context.Context, c *api.Cell, follow bool, only string, tail int) error {
	var from [2]int64
	for i, name := range []string{"stdout", "stderr"} {
		if only != "" && only != name {
			continue
		}
		read := func(to func(io.Reader) error) error {
			body, err := a.client.ServiceOutput(ctx, c.ID, name)
			if err != nil {
				return err
			}
			defer body.Close()
			return to(body)
		}
		if tail >= 0 {
			err := read(func(r io.Reader) (err error) { from[i], err = lastLines(r, tail); return err })
			if err != nil {
				return err
			}
		}
		if follow && c.Serves.Running {
			continue
		}
		w := []io.Writer{a.stdout, a.stderr}[i]
		err := read(func(r io.Reader) error {
			if _, err := io.CopyN(io.Discard, r, from[i]); err != nil {
				return err
			}
			_, err := io.Copy(a.followed(w), r)
			return err
		})
		if err != nil {
			return err
		}
	}
	if !follow || !c.Serves.Running {
		return nil
	}
	l, err := a.linkTo(ctx, "command", c.Serves.Exec, client.AttachOptions{Stdout: from[0], Stderr: from[1]}, a.client.AttachExec)
	if err != nil {
		return err
	}
	l.stdout, l.stderr = from[0], from[1]
	_, err = a.stream(l, false, false)
	return err
}

// lastLines returns the offset of the last n lines of a run's stream, in bytes.
func (a *app) lastLines(ctx context.Context, run, name string, n int) (int64, error) {
	body, err := a.client.RunFile(ctx, run, name)
	if e, ok := err.(*api.Error); ok && e.Kind == "not-found" {
		return 0, nil // it never started
	}
	if err != nil {
		return 0, err
	}
	defer body.Close()
	return lastLines(body, n)
}

// lastLines returns the offset of the last n lines in r, in bytes. A line without an end counts
// as one.
func lastLines(r io.Reader, n int) (int64, error) {
	starts := []int64{0} // starts of the lines that may be among the last
	at, buf := int64(0), make([]byte, 64<<10)
	for {
		k, err := r.Read(buf)
		for i, b := range buf[:k] {
			if b != '\n' {
				continue
			}
			if starts = append(starts, at+int64(i)+1); len(starts) > 2*n+2 {
				starts = append(starts[:0], starts[len(starts)-n-1:]...)
			}
		}
		at += int64(k)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if starts[len(starts)-1] == at { // no line follows the last line end
		starts = starts[:len(starts)-1]
	}
	if n == 0 || len(starts) == 0 {
		return at, nil
	}
	return starts[max(len(starts)-n, 0)], nil
}

func (a *app) runsExportCmd() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "export [RUN]", Short: "Export all kept data of a run as a tar archive", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := a.client.Run(cmd.Context(), arg(args), false)
			if err != nil {
				return err
			}
			if out == "" {
				out = run.ID + ".tar"
			}
			body, err := a.client.ExportRun(cmd.Context(), run.ID)
			if err != nil {
				return err
			}
			defer body.Close()
			return a.save(body, out, run.ID)
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "file, or - for stdout (default: RUN.tar)")
	return c
}

// save writes a body to a new file, or to stdout for "-".
func (a *app) save(body io.Reader, out, what string) error {
	if out == "-" {
		_, err := io.Copy(a.stdout, body)
		return err
	}
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		if os.IsExist(err) {
			return &api.Error{Kind: "exists", Message: "cannot write " + out + ": it exists", Hint: "choose another file with --output"}
		}
		return err
	}
	n, err := io.Copy(f, body)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(out)
		return fmt.Errorf("cannot write %s: %w", out, err)
	}
	return a.print(map[string]any{"file": out, "bytes": n}, func(io.Writer) {
		a.say("%s: %s, %s", out, what, strings.TrimSpace(size(n)))
	})
}
