package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
)

// interpreters are the languages that cells evaluate. Package repl, which needs Linux,
// implements them.
var interpreters = []string{"python", "node", "java"}

func (a *app) evalCmd() *cobra.Command {
	var req api.EvalRequest
	var save string
	c := &cobra.Command{
		Use:   "eval [flags] CELL [CODE]",
		Short: "Evaluate code in a cell's interpreter, which keeps its state",
		Long: `Evaluate code in a cell's interpreter. Variables, modules and open files last from one
evaluation to the next. A cell without an interpreter gets one, of Python or of --kind,
and keeps it.

CODE is the code itself, @FILE, or - for standard input. Without it, at a terminal,
you get a prompt. The value of a last expression is printed as the language shows it;
--json prints it with its type, also values that JSON lacks (NaN, large integers,
bytes).

Exceptions are printed on stderr, and the exit code is 1. The time limit interrupts
the evaluation: the exit code is 124, and the interpreter can be used again. --fresh
ends the cell's interpreter and starts a new one, unless an evaluation is under way.
Other processes of the cell continue, except in a fork or branch: its processes end
with its old interpreter. Files stay. Like a command of ` + "`pando exec`" + `, an
evaluation has no checkpoint and no receipt of its own.`,
		Example: `  pando eval web 'x = 41'
  pando eval web 'x + 1'
  pando eval --kind node api 'const x = await fetch(url); x.status'
  pando eval web @analysis.py --timeout 10m --save figures`,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				code, err := a.code(args[1], "code")
				if err != nil {
					return err
				}
				req.Code = code
				return a.evalOnce(cmd.Context(), args[0], req, save)
			}
			if tty, _, _ := a.terminal(); tty && !a.json {
				return a.prompt(cmd.Context(), args[0], req, save)
			}
			if term.IsTerminal(int(a.stdin.Fd())) {
				return usage("the code is missing: pando eval CELL CODE")
			}
			code, err := a.code("-", "code")
			if err != nil {
				return err
			}
			req.Code = code
			return a.evalOnce(cmd.Context(), args[0], req, save)
		},
	}
	c.Flags().StringVar(&req.Timeout, "timeout", "", "interrupt it after this time, such as 10m (default: 1m)")
	c.Flags().BoolVar(&req.Fresh, "fresh", false, "start a new interpreter; the state of the old one is lost")
	c.Flags().StringVar(&req.Kind, "kind", "", "language of the interpreter: "+strings.Join(interpreters, ", ")+" (default: that of the cell, else python)")
	complete(c, "kind", interpreters...)
	c.Flags().StringVar(&save, "save", "", "write figures and other rich results into this directory")
	return c
}

// evalOnce evaluates code, prints the result, and sets the exit code.
func (a *app) evalOnce(ctx context.Context, sel string, req api.EvalRequest, save string) error {
	res, ev, err := a.evaluate(ctx, sel, req)
	if err != nil {
		return err
	}
	a.exit = evalExit(ev)
	if a.json {
		if err := a.print(res, nil); err != nil {
			return err
		}
		return a.saveRich(ev, save, io.Discard)
	}
	return a.showEvaluated(sel, ev, save)
}

// evaluate runs one evaluation and prints its output as it comes.
func (a *app) evaluate(ctx context.Context, sel string, req api.EvalRequest) (res api.EvalResult, ev cell.Evaluated, err error) {
	stdout := a.stdout
	if a.json {
		stdout = a.stderr
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var got [2]int64 // bytes of stdout and stderr
	write := func(i int, w io.Writer) func([]byte) {
		return func(b []byte) {
			got[i] += int64(len(b))
			if _, err := w.Write(b); err != nil && errors.Is(err, syscall.EPIPE) {
				cancel(err) // the output has no reader any more
			}
		}
	}
	res, err = a.client.Eval(ctx, sel, req, client.Listener{Stdout: write(0, a.followed(stdout)), Stderr: write(1, a.followed(a.stderr))})
	if err != nil {
		if errors.Is(context.Cause(ctx), syscall.EPIPE) {
			err = &exitError{api.ExitInterrupted}
		}
		return res, ev, err
	}
	if !a.bare { // once at a prompt
		a.bareRun("cell "+res.Name, res.Isolation, "is")
	}
	for _, n := range res.Notes {
		a.say("pando: note: %s", printable(n))
	}
	if err := json.Unmarshal(res.Result, &ev); err != nil {
		return res, ev, &api.Error{Kind: "internal", Message: "cannot read the evaluation's result: " + err.Error()}
	}
	for i, wrote := range []int64{ev.Stdout, ev.Stderr} {
		if left := wrote - got[i]; left > 0 {
			a.say("pando: %s more of %s were left out: have the code write to a file", size(left), []string{"stdout", "stderr"}[i])
		}
	}
	return res, ev, nil
}

// evalExit returns the exit code of an evaluation.
func evalExit(ev cell.Evaluated) int {
	switch {
	case ev.Cause == cell.CauseTimeout || ev.Cause == cell.CauseStuck:
		return api.ExitTimeout
	case ev.Cause == cell.CauseInterrupted:
		return api.ExitInterrupted
	case !ev.OK:
		return 1
	}
	return 0
}

// showEvaluated prints a value on stdout, and an error on stderr.
func (a *app) showEvaluated(sel string, ev cell.Evaluated, save string) error {
	if e := ev.Error; e != nil {
		text := e.Traceback
		if text == "" {
			text = e.Type + ": " + e.Message
		}
		io.WriteString(a.stderr, a.cursor.line(a.text(strings.TrimRight(text, "\n"), a.isTTY)))
	}
	switch ev.Cause {
	case "":
	case cell.CauseTimeout:
		a.say("pando: the evaluation reached its time limit and was interrupted; the interpreter can be used again")
	case cell.CauseStuck:
		a.say("pando: the evaluation reached its time limit and cannot be interrupted: pando eval --fresh %s CODE ends it and starts a new interpreter", sel)
	case cell.CauseInterrupted:
		a.say("pando: interrupted")
	case cell.CauseEnded:
		if ev.Error != nil && ev.Error.Message == cell.CauseRemoved { // by another caller
			a.say("pando: cell %s was removed meanwhile", sel)
			break
		}
		a.say("pando: the interpreter has ended: pando eval --fresh %s CODE starts another", sel)
	default:
		a.say("pando: the evaluation was ended: %s", printable(ev.Cause))
	}
	if !ev.OK {
		a.sayMissing(ev.MissingCalls)
	}
	if err := a.saveRich(ev, save, a.stderr); err != nil {
		return err
	}
	if v := ev.Value; v != nil {
		fmt.Fprintln(a.followed(a.stdout), a.text(v.Repr, a.terminalOut))
		if v.Cut > 0 {
			a.say("pando: %d more characters were left out", v.Cut)
		}
	}
	return nil
}

// text returns text from a cell: escaped for a terminal, otherwise unchanged.
func (a *app) text(s string, terminal bool) string {
	if !terminal {
		return s
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		parts := strings.Split(l, "\t")
		for j := range parts {
			parts[j] = printable(parts[j])
		}
		lines[i] = strings.Join(parts, "\t")
	}
	return strings.Join(lines, "\n")
}
