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
		Use: "report [RUN|CELL|RACE]", Short: "Report what happened in a run or a cell, from its evidence", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		Long: `Report what happened in a run, for a person that was not there: outcome and check, what
changed and what to look at first, findings, output, time and use, network and
credentials, what held the run, what cannot be concluded, and how to verify it.

It is drawn from signed evidence when it is asked for. --html writes one page that needs
no network and opens anywhere; --md writes Markdown, for a merge request. Without them a
terminal shows the Markdown. --json has all of it for programs. Of a race it is the comparison of its attempts.

Of a cell it is all that was done in it since its beginning: every run, command and turn,
what it changed by now against its source, findings over that whole, the network of its
runs together, and the receipts of each. CELL:latest is the newest run of a cell.`,
		Example: `  pando report --html run.html
  pando report r-1a2b --md - | gh pr comment --body-file -
  pando report web --html web.html
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
			if failOn != "" && api.SeverityWeight(failOn) == 0 {
				return usage("--fail-on is info, low, medium or high, not %q", printable(failOn))
			}
			ctx, sel := cmd.Context(), arg(args)
			of := reported{as: a.client.ReportAs, judge: func() (judged, error) {
				r, err := a.client.Report(ctx, sel)
				sel = r.Run.ID
				return judged{r, "run " + sel, r.Findings, r.Unjudged()}, err
			}}
			if isCell(sel) {
				of = reported{as: a.client.CellReportAs, judge: func() (judged, error) {
					r, err := a.client.CellReport(ctx, sel)
					return judged{r, "cell " + sel, r.Findings, r.Unjudged()}, err
				}}
			}
			if failOn != "" || a.json {
				j, err := of.judge()
				if err != nil {
					return err
				}
				if a.json {
					if err := a.print(j.document, nil); err != nil {
						return err
					}
				}
				if failOn != "" {
					a.failOn(j, failOn)
				}
				if a.json {
					return nil
				}
			}
			return a.draw(page, markdown, func(form string) (io.ReadCloser, error) { return of.as(ctx, sel, form) })
		},
	}
	c.Flags().StringVar(&page, "html", "", "write it as one page of HTML to this file, or - for stdout")
	c.Flags().StringVar(&markdown, "md", "", "write it as Markdown to this file, or - for stdout")
	c.Flags().StringVar(&failOn, "fail-on", "", "exit with 7 if there is a finding of this severity or above (info, low, medium, high), or the evidence can't be judged")
	complete(c, "fail-on", api.Severities()...)
	return c
}

// reported is how a report is had: in a form for people, and to judge by it.
type reported struct {
	as    func(ctx context.Context, sel, form string) (io.ReadCloser, error)
	judge func() (judged, error)
}

// judged is a report as a document, and what --fail-on looks at of it.
type judged struct {
	document any
	name     string
	findings []api.RunFinding
	unjudged string
}

// isCell reports whether a selector is a cell's. Runs have ids, or are CELL:latest.
func isCell(sel string) bool {
	return sel != "" && !strings.Contains(sel, ":") && !(strings.HasPrefix(sel, "r-") && cell.IsID(sel))
}

// failOn sets the exit code by the findings of a report.
func (a *app) failOn(j judged, severity string) {
	n := 0
	for _, f := range j.findings {
		if api.SeverityWeight(f.Severity) >= api.SeverityWeight(severity) {
			n++
		}
	}
	if j.unjudged != "" {
		a.say("pando: cannot judge %s by its findings: %s", printable(j.name), printable(j.unjudged))
		a.exit = api.ExitVerifyFailure
	}
	if n > 0 {
		a.say("pando: %s of severity %s or above", plural(n, "finding"), severity)
		a.exit = api.ExitVerifyFailure
	}
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
