package cli

import (
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) timelineCmd() *cobra.Command {
	var files bool
	c := &cobra.Command{
		Use: "timeline [CELL]", Short: "Show what was done in a cell, step by step",
		Long: `Show what was done in a cell, oldest first: runs, commands and evaluations beside them,
turns of an agent, and checkpoints that were made by hand. The number of a step is that of
the checkpoint that it began with: web@7 is the state before step 7, for restore, fork and
diff, and pando undo web --to 7 goes back to it. A step with the number of the one before it
began with the same files, or is an evaluation that followed another at once. What was
undone is in brackets. Below a run or a turn of an agent are the tool calls that it reports:
their ends are the agent's word, not what pando saw.
Without a name it is the cell that pando diff shows, which is named on stderr.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client.Cell(cmd.Context(), arg(args))
			if err != nil {
				return err
			}
			list, err := a.client.Steps(cmd.Context(), c.ID)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if len(args) == 0 {
					a.say("cell %s", c.Name)
				}
				if len(list) == 0 {
					a.say("nothing was done in %s yet: pando run --cell %s -- COMMAND", c.Name, c.Name)
					return
				}
				a.drawSteps(w, list, files)
			})
		},
	}
	c.Flags().BoolVar(&files, "files", false, "list the changed files below each step, the first 20 of them")
	return c
}

// drawSteps draws steps as a table, with a line for each day when there are several.
func (a *app) drawSteps(w io.Writer, list []api.Step, files bool) {
	t := a.newTable(w)
	day := ""
	several := list[0].Began.Local().Format(time.DateOnly) != list[len(list)-1].Began.Local().Format(time.DateOnly)
	for _, s := range list {
		if d := s.Began.Local().Format("Mon Jan 2"); several && d != day {
			day = d
			t.row("", day)
		}
		what := s.Kind
		if s.Kind == "tool" {
			what = "  " + printable(s.Tool)
		} else if s.Turn > 0 {
			what += " " + strconv.Itoa(s.Turn)
		}
		if s.Within != "" && s.Within != s.ID {
			what = "  " + what
		}
		text := strings.Join(strings.Fields(s.Text), " ")
		number := "@" + strconv.Itoa(s.Number)
		if s.Number == 0 {
			number = "–"
		}
		ended, lasted := stepEnd(s), ""
		if s.TookMS > 0 {
			lasted = took(s.TookMS)
		}
		if s.Undone {
			number, ended = "("+number+")", strings.TrimSpace(ended+" undone")
		}
		if s.Basis != "" {
			ended = strings.TrimSpace(ended + " (" + s.Basis + ")")
		}
		t.row(number, s.Began.Local().Format("15:04:05"), what, cut(text, 44), ended, lasted, stepWords(s))
		if files {
			for _, f := range s.Changed {
				t.row("", "", "", "  "+strings.ToUpper(f.Status[:1])+" "+f.Path)
			}
			if more := s.Files - len(s.Changed); more > 0 && len(s.Changed) > 0 {
				t.row("", "", "", "  and "+strconv.Itoa(more)+" more")
			}
		}
	}
	t.flush()
}

// stepEnd says how a step ended.
func stepEnd(s api.Step) string {
	switch {
	case s.Running:
		return "goes on"
	case s.Verdict != "":
		if s.ExitCode != nil && *s.ExitCode != 0 {
			return "exit " + strconv.Itoa(*s.ExitCode) + ", " + s.Verdict
		}
		return s.Verdict
	case s.Cause != "":
		return s.Cause
	case s.Signal != "":
		return s.Signal
	case s.ExitCode == nil && s.Kind == "tool":
		return "ok"
	case s.ExitCode == nil && (s.Kind == "exec" || s.Kind == "eval"):
		return "end not known"
	case s.ExitCode == nil:
		return ""
	case s.Kind == "eval" && *s.ExitCode != 0:
		return "exception"
	case *s.ExitCode == 0:
		return "ok"
	}
	return "exit " + strconv.Itoa(*s.ExitCode)
}

// stepWords says what a step changed, and what it spoke with.
func stepWords(s api.Step) string {
	var words []string
	switch {
	case s.Unknown != "":
		words = append(words, "changes not known: "+s.Unknown)
	case s.Files > 0 && len(s.Changed) > 0 && s.Files <= 3:
		var names []string
		for _, f := range s.Changed {
			names = append(names, strings.ToUpper(f.Status[:1])+" "+f.Path)
		}
		words = append(words, strings.Join(names, ", "))
	case s.Files > 0:
		words = append(words, plural(s.Files, "file"))
	}
	if n := len(s.Hosts); n > 2 {
		words = append(words, plural(n, "host"))
	} else if n > 0 {
		words = append(words, strings.Join(s.Hosts, ", "))
	}
	if s.Without != "" {
		words = append(words, "no checkpoint of its own: "+s.Without)
	}
	if s.Denied > 0 {
		words = append(words, strconv.Itoa(s.Denied)+" denied")
	}
	return strings.Join(words, "; ")
}
