package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (a *app) reportCmd() *cobra.Command {
	var page, markdown, failOn string
	c := &cobra.Command{
		Use: "report [RUN|RACE]", Short: "Report what happened in a run, from its evidence", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		Long: `Report what happened in a run, for a person that was not there: outcome and check, what
changed and what to look at first, findings, output, time and use, network and
credentials, what held the run, what can not be concluded, and how to verify it.

It is drawn from signed evidence when it is asked for. --html writes one page that needs
no network and opens anywhere; --md writes Markdown, for a merge request. Without them a
terminal shows the Markdown. --json has all of it for programs. Of a race it is the comparison of its attempts.`,
		Example: `  pando report --html run.html
  pando report r-1a2b --md - | gh pr comment --body-file -
  pando report --json | jq '.findings[] | select(.severity == "high")'
  pando report --fail-on high && pando accept --apply`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if page != "" && markdown != "" || a.json && page+markdown != "" {
				return usage("give one of --html, --md and --json")
			}
			if len(args) == 1 && strings.HasPrefix(args[0], "x-") && cell.IsID(args[0]) {
				if failOn != "" {
					return usage("--fail-on is for one run: pando race show %s names the winner", printable(args[0]))
				}
				return a.drawComparison(cmd.Context(), args, page, markdown)
			}
			least := api.SeverityWeight(failOn)
			if failOn != "" && least == 0 {
				return usage("--fail-on is info, low, medium or high, not %q", printable(failOn))
			}
			ctx := cmd.Context()
			if failOn != "" || a.json {
				r, err := a.client.Report(ctx, arg(args))
				if err != nil {
					return err
				}
				args = []string{r.Run.ID}
				if a.json {
					if err := a.print(r, nil); err != nil {
						return err
					}
				}
				n := 0
				for _, f := range r.Findings {
					if failOn != "" && api.SeverityWeight(f.Severity) >= least {
						n++
					}
				}
				if why := r.Unjudged(); failOn != "" && why != "" {
					a.say("pando: cannot judge run %s by its findings: %s", r.Run.ID, printable(why))
					a.exit = api.ExitVerifyFailure
				}
				if n > 0 {
					a.say("pando: %s of severity %s or above", plural(n, "finding"), failOn)
					a.exit = api.ExitVerifyFailure
				}
				if a.json {
					return nil
				}
			}
			return a.draw(page, markdown, func(form string) (io.ReadCloser, error) { return a.client.ReportAs(ctx, arg(args), form) })
		},
	}
	c.Flags().StringVar(&page, "html", "", "write it as one page of HTML to this file, or - for stdout")
	c.Flags().StringVar(&markdown, "md", "", "write it as Markdown to this file, or - for stdout")
	c.Flags().StringVar(&failOn, "fail-on", "", "exit with 7 if there is a finding of this severity or above (info, low, medium, high), or the evidence can't be judged")
	complete(c, "fail-on", api.Severities()...)
	return c
}

// draw writes what is drawn in a form: as a page to one file, or as Markdown to another, or shows that.
func (a *app) draw(page, markdown string, as func(form string) (io.ReadCloser, error)) error {
	form, to := "md", markdown
	if page != "" {
		form, to = "html", page
	}
	body, err := as(form)
	if err != nil {
		return err
	}
	defer body.Close()
	switch to {
	case "":
		b, err := io.ReadAll(body)
		if err == nil {
			a.page(string(b), false)
		}
		return err
	case "-":
		_, err := io.Copy(a.stdout, body)
		return err
	}
	return a.saveReport(body, to)
}

func (a *app) compareCmd() *cobra.Command {
	var page, markdown string
	c := &cobra.Command{
		Use: "compare RACE | RUN|CELL|CELL@N RUN|CELL|CELL@N…", Short: "Set the attempts of a race, or runs, cells, checkpoints side by side", ValidArgsFunction: a.completeRuns,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 && !(len(args) == 1 && strings.HasPrefix(args[0], "x-")) {
				return usage("name a race, or two or more runs, cells or checkpoints (CELL@N)")
			}
			return nil
		},
		Long: `Set runs, cells or checkpoints side by side: outcome, check, findings, what they used, and
their files: which are the same in all, which differ, which one of them alone changed.
In a line of files the same letter means the same file.

The changes of a run are from before to after it; those of a cell or a checkpoint are
from its source. A race stands for the runs of its attempts, the best first.`,
		Example: `  pando compare r-1a2b r-3c4d
  pando compare x-5e6f --html race.html
  pando compare try-1 try-2 try-3 --html compare.html
  pando compare web@2 web@5`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if page != "" && markdown != "" || a.json && page+markdown != "" {
				return usage("give one of --html, --md and --json")
			}
			return a.drawComparison(cmd.Context(), args, page, markdown)
		},
	}
	c.Flags().StringVar(&page, "html", "", "write it as one page of HTML to this file, or - for stdout")
	c.Flags().StringVar(&markdown, "md", "", "write it as Markdown to this file, or - for stdout")
	return c
}

// drawComparison writes a comparison as its flags say.
func (a *app) drawComparison(ctx context.Context, of []string, page, markdown string) error {
	if a.json {
		c, err := a.client.Compare(ctx, of)
		if err != nil {
			return err
		}
		return a.print(c, nil)
	}
	return a.draw(page, markdown, func(form string) (io.ReadCloser, error) { return a.client.CompareAs(ctx, of, form) })
}

// saveReport writes a report to a file, in place of an older one: drawn again it is another.
func (a *app) saveReport(body io.Reader, to string) error {
	if st, err := os.Stat(to); err == nil && !st.Mode().IsRegular() {
		return &api.Error{Kind: "conflict", Message: fmt.Sprintf("cannot write %s: it is no regular file", printable(to)), Hint: "choose another file, or - for stdout"}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".pando-report-*")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", to, err)
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, body)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", to, err)
	}
	a.say("%s: open it in a browser", printable(to))
	return nil
}
