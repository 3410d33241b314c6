package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

func (a *app) logsCmd() *cobra.Command {
	var follow bool
	var only string
	c := &cobra.Command{
		Use:   "logs [CELL|RUN]",
		Short: "Show what a run wrote to stdout and stderr",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := a.client.Run(cmd.Context(), arg(args), false)
			if err != nil {
				return err
			}
			a.bareRun("run "+run.ID, run.Isolation, "is")
			if follow && run.Phase != "ended" {
				at, err := a.client.AttachRun(cmd.Context(), run.ID, false, 0, 0)
				if err != nil {
					return err
				}
				f, err := a.stream(newLink(at, false), false, false)
				if err != nil {
					return err
				}
				_, err = client.DecodeResult[api.Run](f)
				return err
			}
			for name, w := range map[string]io.Writer{"stdout": a.stdout, "stderr": a.stderr} {
				if only != "" && only != name {
					continue
				}
				body, err := a.client.RunFile(cmd.Context(), run.ID, name)
				if e, ok := err.(*api.Error); ok && e.Kind == "not-found" {
					continue // it never started
				}
				if err != nil {
					return err
				}
				_, err = io.Copy(a.followed(w), body)
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
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run ends")
	c.Flags().StringVar(&only, "only", "", "only stdout or stderr")
	complete(c, "only", "stdout", "stderr")
	return c
}

func (a *app) runsExportCmd() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "export [RUN]", Short: "Export everything kept of a run as a tar archive", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
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
