package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
)

func (a *app) forkCmd() *cobra.Command {
	var req api.WarmForkRequest
	var files bool
	var turn int
	c := &cobra.Command{
		Use:   "fork [flags] TEMPLATE|CELL[@N] [-- COMMAND…]",
		Short: "Make new cells from a template with its memory, or from a checkpoint",
		Long: `Make new cells. Forks of a template begin with its memory and its files, and answer at
once: --eval evaluates code in each, -- COMMAND runs a command in each, and the
answers are printed as a table. Before any fork is made, the resources that all will
need are printed and compared with those of this host.

Forks of a cell have its files as of a checkpoint, and no processes. If the checkpoint
has memory (pando checkpoint, of a running cell on gvisor or microvm), its processes
continue in each fork, unless --files is given. With --files a cell can be forked while
something runs in it, too: the forks have the files of now. With --turn they begin where
a turn of the cell's agent began, with its home, so each can take up the conversation
there. pando branch forks a running cell with its memory.`,
		Example: `  pando fork pyagent -n 100 --eval 'numpy.zeros(5).tolist()'
  pando fork tests -n 16 --name shard -- sh -c 'pytest $(sed -n ${PANDO_CELL##*-}p shards)'
  pando fork web@3 --name try
  pando fork app --turn 3 -n 3`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeForkable,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("count") && req.Count < 1 {
				return usage("-n must be at least 1")
			}
			req.Command = args[1:]
			if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
				return usage("it takes one template or cell; write the command after --")
			}
			if len(req.Command) > 0 && cmd.Flags().Changed("eval") {
				return usage("give --eval or a command, not both")
			}
			ctx := cmd.Context()
			if cmd.Flags().Changed("turn") && turn < 1 {
				return usage("--turn must be at least 1; pando history shows the turns")
			}
			if !strings.Contains(args[0], "@") && turn == 0 {
				var err error
				if req.Eval, err = a.code(req.Eval, "code"); err != nil {
					return err
				}
				err = a.forkTemplate(ctx, args[0], req)
				if e, ok := err.(*api.Error); !ok || e.Kind != "not-found" && e.Kind != "invalid" { // it is a template
					return err
				}
				if _, terr := a.client.Template(ctx, args[0]); terr == nil {
					return err
				}
			}
			for _, f := range []string{"eval", "timeout", "rm", "dry-run"} {
				if cmd.Flags().Changed(f) {
					return a.noTemplate(ctx, args[0], "--"+f)
				}
			}
			if len(req.Command) > 0 {
				return a.noTemplate(ctx, args[0], "a command")
			}
			return a.forkCell(ctx, args[0], req, api.ForkRequest{Files: files, Turn: turn})
		},
	}
	c.Flags().StringVar(&req.Name, "name", "", "name of the new cell, or the prefix of several")
	c.Flags().IntVarP(&req.Count, "count", "n", 1, "number of forks")
	c.Flags().StringVar(&req.Eval, "eval", "", "code to evaluate in each; @FILE for a file's, - for standard input's")
	c.Flags().StringVar(&req.Timeout, "timeout", "", "limit of each evaluation or command, such as 10s")
	c.Flags().BoolVar(&req.Remove, "rm", false, "remove each cell when it has answered")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print the resources that they would need")
	c.Flags().StringVar(&req.Certify, "certify", "", certifyHelp)
	c.Flags().StringVar(&req.AtFork, "at-fork", "", atForkHelp)
	c.Flags().IntVar(&turn, "turn", 0, "fork a cell as of the beginning of this turn of its agent")
	c.Flags().BoolVar(&files, "files", false, "fork the files alone, of a checkpoint with memory or of a cell in which something runs")
	return c
}

const certifyHelp = "strict: refuse copies that inherit generators of random numbers"

const atForkHelp = "command that a shell runs in each copy before anything else of it goes on"

// sayGenerators names the random number generators that copies share with their source, and
// those that each copy seeds anew.
func (a *app) sayGenerators(inherited, renewed []string) {
	for _, s := range inherited {
		a.say("inherited: %s: it may draw the same random numbers as in the source", printable(s))
	}
	for _, s := range renewed {
		a.say("renewed: %s: it seeds itself anew in each copy", printable(s))
	}
}

// sayNotes prints the differences from the source.
func (a *app) sayNotes(notes []string) {
	for _, s := range notes {
		a.say("note: %s", printable(s))
	}
}

// noTemplate explains why an action for templates is impossible here.
func (a *app) noTemplate(ctx context.Context, sel, what string) error {
	name, _, _ := strings.Cut(sel, "@")
	if _, err := a.client.Cell(ctx, name); err != nil {
		if e, ok := err.(*api.Error); ok && e.Kind == "not-found" {
			return &api.Error{Kind: "not-found", Message: fmt.Sprintf("cannot fork %s: there is no template and no cell of that name", printable(sel)),
				Hint: "run `pando template ls` and `pando ls` to see what there is"}
		}
		return err
	}
	return &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot fork %s with %s: it is a cell, and forks of its files have no interpreter", printable(sel), what),
		Hint: fmt.Sprintf("fork it with its memory: pando branch %s; or build a template: pando template build NAME", printable(name))}
}

// forkCell makes cells from a checkpoint, which req or the selector names.
func (a *app) forkCell(ctx context.Context, sel string, w api.WarmForkRequest, req api.ForkRequest) error {
	req.Name, req.Count, req.Certify, req.AtFork = w.Name, w.Count, w.Certify, w.AtFork
	name, num, has := strings.Cut(sel, "@")
	if has && num != "latest" {
		n, err := strconv.Atoi(num)
		if err != nil || n < 1 {
			return usage("%q is no checkpoint; write CELL@N", sel)
		}
		req.Number = n
	}
	res, err := a.client.Fork(ctx, name, req)
	if e, ok := err.(*api.Error); ok && e.Kind == "not-found" && !has {
		if _, cerr := a.client.Cell(ctx, name); cerr != nil { // else it is of a turn
			return a.noTemplate(ctx, sel, "")
		}
	}
	if err != nil {
		return err
	}
	return a.print(res, func(w io.Writer) {
		for _, c := range res.Cells {
			fmt.Fprintln(w, c.Name)
		}
		a.say("%s with %s, without %s, in %s", plural(len(res.Cells), "cell"), res.Took, res.Dropped, took(res.TookMS))
		a.sayGenerators(res.Inherited, res.Renewed)
		a.sayNotes(res.Notes)
	})
}

// forkTemplate makes cells from a template. On a terminal, answers are shown as they come;
// elsewhere in the order of the names.
func (a *app) forkTemplate(ctx context.Context, name string, req api.WarmForkRequest) error {
	asks := req.Eval != "" || len(req.Command) > 0
	p := &progress{a: a}
	defer p.clear()
	t := a.newForkTable(name, req)
	live := a.terminalOut && !a.json
	needed := false
	res, err := a.client.ForkTemplate(ctx, name, req, client.Listener{
		Progress: p.show,
		Needs: func(n api.ForkNeeds) {
			p.clear()
			needed = true
			if !a.json {
				a.say("%s", needs(n))
			}
		},
		Fork: func(f api.WarmFork) {
			if p.clear(); live && asks {
				t.row(f)
			}
		},
	})
	p.clear()
	if err != nil {
		return err
	}
	failed := 0
	for _, f := range res.Forks {
		if forkFailed(f) {
			failed++
		}
	}
	if failed > 0 || req.DryRun && res.Needs.Refused != "" {
		a.exit = 1
	}
	return a.print(res, func(w io.Writer) {
		if !needed {
			a.say("%s", needs(res.Needs))
		}
		if req.DryRun {
			if res.Needs.Refused != "" {
				a.say("this fork would be refused: %s", printable(res.Needs.Refused))
			}
			return
		}
		for _, f := range res.Forks {
			switch {
			case asks && !live:
				t.row(f)
			case !asks && f.Error != nil:
				a.say("pando: %s: %s", f.Cell.Name, printable(f.Error.Message))
			case !asks:
				fmt.Fprintln(w, f.Cell.Name)
			}
		}
		a.say("%s", forkSummary(res, failed, asks))
		a.sayGenerators(res.Inherited, res.Renewed)
		a.sayNotes(res.Notes)
		if res.Dropped != "" && !asks {
			a.say("they have %s, and not %s", res.Took, res.Dropped)
		}
	})
}

// needs describes the resources that forks will take.
func needs(n api.ForkNeeds) string {
	guess := ""
	if len(n.Measured) == 0 {
		guess = ", by assumption: none was measured yet"
	} else if !slices.Contains(n.Measured, "disk") {
		guess = ", the disk by assumption"
	} else if !slices.Contains(n.Measured, "memory") {
		guess = ", the memory by assumption"
	}
	return fmt.Sprintf("%s: about %s of memory (%s available), %s (%d more possible), %s of disk (%s free)%s", plural(n.Cells, "cell"),
		size(n.Memory), size(n.MemoryAvailable), plural(int(n.Processes), "process"), n.ProcessesLeft, size(n.Disk), size(n.DiskAvailable), guess)
}

func forkSummary(res api.WarmForkResult, failed int, asked bool) string {
	text := fmt.Sprintf("%s, %s", plural(len(res.Forks), "cell"), plural(res.Hits, "hit"))
	if failed > 0 {
		text += fmt.Sprintf(", %d failed", failed)
	}
	if asked {
		return text + ", last answer after " + took(res.TookMS)
	}
	return text + ", ready after " + took(res.ReadyMS)
}

func forkFailed(f api.WarmFork) bool {
	if f.Error != nil || f.Exit != nil && *f.Exit != 0 {
		return true
	}
	var ev cell.Evaluated
	return len(f.Result) > 0 && json.Unmarshal(f.Result, &ev) == nil && !ev.OK
}

// forkTable writes a row for each cell: its name, the time to its answer, and the answer. The
// widths of the columns are fixed before the first row.
type forkTable struct {
	a          *app
	name, time int
}

func (a *app) newForkTable(template string, req api.WarmForkRequest) *forkTable {
	stem := req.Name
	if stem == "" {
		stem = template
	}
	return &forkTable{a: a, name: utf8.RuneCountInString(stem) + 1 + len(strconv.Itoa(req.Count)), time: len("1234.5 ms")}
}

func (t *forkTable) row(f api.WarmFork) {
	ms := fmt.Sprintf("%.1f ms", f.MS)
	t.name, t.time = max(t.name, utf8.RuneCountInString(f.Cell.Name)), max(t.time, len(ms))
	line := fmt.Sprintf("%-*s  %*s  %s", t.name, printable(f.Cell.Name), t.time, ms, printable(forkAnswer(f)))
	if t.a.terminalOut {
		line = cut(line, t.a.width)
	}
	if t.a.colour && forkFailed(f) {
		line = "\x1b[31m" + line + "\x1b[0m"
	}
	fmt.Fprintln(t.a.stdout, line)
}

// forkAnswer returns a cell's answer in one line.
func forkAnswer(f api.WarmFork) string {
	last := func(s string) string {
		s = strings.TrimRight(s, "\n")
		return s[strings.LastIndexByte(s, '\n')+1:]
	}
	if f.Error != nil {
		return f.Error.Message
	}
	if f.Exit != nil {
		said := last(f.Stdout)
		if *f.Exit == 0 {
			return said
		}
		if e := last(f.Stderr); e != "" {
			said = e
		}
		return strings.TrimRight(fmt.Sprintf("exit %d  %s", *f.Exit, said), " ")
	}
	var ev cell.Evaluated
	if len(f.Result) == 0 || json.Unmarshal(f.Result, &ev) != nil {
		return last(f.Stdout)
	}
	switch {
	case ev.Error != nil && (ev.Cause == "" || ev.Cause == cell.CauseEnded):
		return strings.TrimRight(ev.Error.Type+": "+ev.Error.Message, ": ")
	case ev.Cause != "":
		return map[string]string{cell.CauseTimeout: "time limit reached", cell.CauseStuck: "time limit reached, and it can't be interrupted", cell.CauseInterrupted: "interrupted"}[ev.Cause]
	case ev.Value != nil && ev.Value.Cut > 0:
		return fmt.Sprintf("%s… and %d more characters", ev.Value.Repr, ev.Value.Cut)
	case ev.Value != nil:
		return ev.Value.Repr
	}
	return last(f.Stdout)
}
