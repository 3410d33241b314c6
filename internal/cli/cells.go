package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func (a *app) lsCmd() *cobra.Command { return a.listCmd(false) }

// listCmd is ls. sessions is what --agents is where it is not given.
func (a *app) listCmd(sessions bool) *cobra.Command {
	var quiet, agents bool
	var labels []string
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List cells", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := labelsOf(labels)
			if err != nil {
				return err
			}
			cells, err := a.client.CellsLabelled(cmd.Context(), want)
			if err != nil {
				return err
			}
			if agents {
				cells = slices.DeleteFunc(cells, func(c api.Cell) bool { return c.Agent == "" })
			}
			return a.print(cells, func(w io.Writer) {
				if quiet {
					for _, c := range cells {
						fmt.Fprintln(w, c.ID)
					}
					return
				}
				defer a.saySpace(cmd.Context())
				if len(cells) == 0 && len(want) > 0 {
					a.say("no cell has label %s", labelWords(want))
					return
				}
				if len(cells) == 0 && agents {
					a.say("no cell has an agent: pando claude starts one")
					return
				}
				if len(cells) == 0 {
					a.say("no cells yet: pando run -- COMMAND makes one")
					return
				}
				t := a.newTable(w)
				warm := slices.ContainsFunc(cells, func(c api.Cell) bool { return c.Interpreter != nil })
				bare := slices.ContainsFunc(cells, func(c api.Cell) bool { return c.Isolation == api.NotIsolated })
				budgets := agents && slices.ContainsFunc(cells, func(c api.Cell) bool { return c.Budget != nil })
				row := func(agent, budget, interpreter, isolation string, words ...string) {
					words = isolationRow(bare, 2, isolation, words...)
					if warm { // the column exists when a cell has an interpreter
						words = slices.Insert(words, len(words)-3, interpreter)
					}
					if budgets {
						words = slices.Insert(words, 2, budget)
					}
					if agents {
						words = slices.Insert(words, 1, agent)
					}
					t.row(words...)
				}
				row("AGENT", "BUDGET", "INTERPRETER", "ISOLATION", "CELL", "STATE", "AT", "PROCESSES", "LATEST RUN", "CREATED", "SOURCE")
				for _, c := range cells {
					latest := "–"
					if c.LatestRun != "" {
						latest = c.LatestRun[:10] + " " + c.Verdict
					}
					procs := "–"
					if c.Processes > 0 {
						procs = fmt.Sprint(c.Processes)
					}
					row(c.Agent, budgetWord(c.Budget), interpreterWord(c.Interpreter), c.Isolation, c.Name, c.State, fmt.Sprintf("@%d", c.Head), procs, latest, ago(c.Created), c.Source)
				}
				t.flush()
				for _, c := range cells {
					if c.Detached != "" {
						a.say("%s goes on in cell %s, and no terminal is attached: pando attach %s", c.Detached, printable(c.Name), printable(c.Name))
					}
					if c.Lease != nil && c.Lease.Idle {
						a.say("cell %s is paused, since nothing happened in it: pando attach %s continues it", printable(c.Name), printable(c.Name))
					}
					if agents && c.Budget != nil && c.Budget.Reached != "" {
						a.say("cell %s is paused, %s: pando approvals approve %s", printable(c.Name), reachedWords(c.Budget.Reached), c.Budget.Approval)
					}
					if agents {
						a.sayListening(cmd.Context(), c)
					}
				}
			})
		},
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "only ids, one a line")
	c.Flags().BoolVar(&agents, "agents", sessions, "only cells with a coding agent, which, and what is used of its budget")
	c.Flags().StringArrayVar(&labels, "label", nil, "only cells with label NAME=VALUE; repeatable: cells with all of them")
	return c
}

// reachedWords says why cells of a budget are paused.
func reachedWords(reached string) string {
	switch reached {
	case "price":
		return "the price of a model that it asked is not known"
	case "usage":
		return "an answer of a model did not say its use"
	}
	return "its budget of " + reached + " is used up"
}

func (a *app) showCmd() *cobra.Command {
	return &cobra.Command{
		Use: "show [CELL|RUN]", Short: "Show a cell or a run", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error { return a.show(cmd.Context(), arg(args)) },
	}
}

// show prints a cell or a run.
func (a *app) show(ctx context.Context, sel string) error {
	if sel == "" || strings.HasPrefix(sel, "r-") || strings.Contains(sel, ":") {
		run, err := a.client.Run(ctx, sel, false)
		if err != nil {
			return err
		}
		return a.print(run, func(w io.Writer) { a.showRun(w, run) })
	}
	c, err := a.client.Cell(ctx, sel)
	if err != nil {
		return err
	}
	return a.print(c, func(w io.Writer) {
		a.showCell(w, c)
		for _, l := range a.listening(ctx, c) {
			field(w, "listens on", l)
		}
	})
}

// field prints "name value" unless value is empty.
func field(w io.Writer, name string, value string) {
	if value != "" {
		fmt.Fprintf(w, "%-11s %s\n", name, printable(value))
	}
}

func (a *app) showCell(w io.Writer, c api.Cell) {
	field(w, "cell", c.Name)
	if c.Name != c.ID {
		field(w, "id", c.ID)
	}
	state := c.State
	if c.Cause != "" {
		state += ": " + c.Cause
	}
	field(w, "state", state)
	field(w, "source", c.Source)
	for _, r := range c.Repositories {
		field(w, "with", r)
	}
	field(w, "labels", labelWords(c.Labels))
	field(w, "at", fmt.Sprintf("@%d of %s", c.Head, plural(c.Checkpoints, "checkpoint")))
	if c.LatestRun != "" {
		field(w, "latest run", fmt.Sprintf("%s (%s), %d in all", c.LatestRun, c.Verdict, c.Runs))
	}
	if c.Parent != nil {
		field(w, "forked from", fmt.Sprintf("%s@%d", c.Parent.Name, c.Parent.Number))
	}
	field(w, "backend", c.Backend+", "+imageWords(c.Image, c.ImageID))
	bareField(w, c.Isolation)
	for _, s := range c.Services {
		state := "not running"
		if s.Running {
			state = "running"
		}
		field(w, "service", s.Name+": "+imageWords(s.Image, s.ImageID)+", "+state+", in cell "+s.CellName)
	}
	if s := c.Serves; s != nil {
		field(w, "serves", "cell "+s.CellName+", as "+s.Name+": "+strings.Join(s.Command, " "))
	}
	ws := c.Provider.Name
	if c.Provider.Why != "" {
		ws += " (" + c.Provider.Why + ")"
	}
	field(w, "workspace", ws)
	field(w, "created", ago(c.Created))
	if c.Hold != nil {
		field(w, "on hold", holdWords(c.Hold))
	}
	if !c.Expires.IsZero() {
		field(w, "expires", c.Expires.Local().Format("2006-01-02 15:04"))
	}
	field(w, "policy", short(c.Policy))
	showBudget(w, c.Budget)
	if c.Processes > 0 {
		field(w, "processes", fmt.Sprint(c.Processes))
	}
	a.showInterpreter(w, c.Interpreter)
	a.showCertificate(w, c.Certificate)
	if c.Assurance != nil {
		field(w, "isolation", strings.Join(c.Assurance.Isolation, ", "))
		field(w, "network", c.Assurance.Network)
		for _, l := range c.Assurance.Limits {
			if l.Applied != "" {
				field(w, "limit", l.Name+" "+limitValue(l.Name, l.Applied)+" ("+l.How+")")
			}
		}
	}
	for _, d := range c.Downgrades {
		field(w, "weaker", d)
	}
	for _, l := range c.LeftOut {
		if l.Kind == "tracked" {
			field(w, "secret", leftOutWords(l))
			continue
		}
		field(w, "left out", leftOutWords(l))
	}
}

// budgetWord is the part of a budget of which the least is left; "–" for none.
func budgetWord(b *api.Budget) string {
	if b == nil || len(b.Parts) == 0 {
		return "–"
	}
	p := slices.MaxFunc(b.Parts, func(p, q api.BudgetPart) int {
		return cmp.Compare(float64(p.Used)/float64(p.Granted), float64(q.Used)/float64(q.Granted))
	})
	switch p.Name {
	case "time":
		p.Used = p.Used / 1000 * 1000 // whole seconds
	case "requests", "tokens":
		return fmt.Sprintf("%d of %d %s", p.Used, p.Granted, p.Name)
	}
	return policy.Amount(p.Name, p.Used) + " of " + policy.Amount(p.Name, p.Granted)
}

// showBudget lists what was used of a budget.
func showBudget(w io.Writer, b *api.Budget) {
	if b == nil {
		return
	}
	for _, p := range b.Parts {
		s := fmt.Sprintf("%s of %s are used, with its forks", policy.Amount(p.Name, p.Used), policy.Amount(p.Name, p.Granted))
		if p.Name == "usd" {
			s += " (prices of " + map[bool]string{true: "the policy, then of "}[b.OwnPrices] + b.Prices + ")"
		}
		field(w, "budget", s)
	}
	if b.Reached != "" {
		field(w, "budget", "it is paused: pando approvals approve "+b.Approval)
	}
}

func (a *app) showRun(w io.Writer, r api.Run) {
	field(w, "run", r.ID)
	name := r.CellName
	if name == "" {
		name = r.Cell
	}
	field(w, "cell", name)
	field(w, "command", strings.Join(r.Command, " "))
	field(w, "source", r.Source)
	for _, with := range r.Repositories {
		field(w, "with", with)
	}
	field(w, "backend", r.Backend+", "+imageWords(r.Image, r.ImageID))
	bareField(w, r.Isolation)
	field(w, "phase", r.Phase)
	if r.ExitCode != nil {
		how := fmt.Sprintf("exit %d", *r.ExitCode)
		if r.Signal != "" {
			how += " (" + r.Signal + ")"
		}
		if r.Cause != "" {
			how += ", " + r.Cause
		}
		field(w, "ended", how+", "+ago(r.Ended))
	}
	if r.Error != nil {
		field(w, "error", r.Error.Message)
	}
	verdict := r.Verdict
	if r.Reason != "" {
		verdict += ": " + r.Reason
	}
	if r.By != "" {
		verdict += " (by " + r.By + ")"
	}
	field(w, "verdict", verdict)
	if r.Error != nil && r.ExitCode != nil && r.After == nil {
		field(w, "changes", "not known")
	} else {
		field(w, "changes", fmt.Sprintf("%s (%d added, %d deleted, %d ignored)", plural(r.Changes.Files, "file"), r.Changes.Added, r.Changes.Deleted, r.Changes.Ignored))
	}
	if r.Applied > 0 {
		left := ""
		if r.Verdict == "pending" {
			left = "; the rest waits: pando diff " + shellWord(cmp.Or(r.CellName, r.Cell))
		}
		field(w, "applied", plural(r.Applied, "file")+" to the source"+left)
	}
	for _, l := range r.Changes.First {
		field(w, "look first", lookWords(l))
	}
	if r.Before != nil && r.After != nil {
		field(w, "before", fmt.Sprintf("@%d %s", r.Before.Number, short(r.Before.TreeDigest)))
		field(w, "after", fmt.Sprintf("@%d %s", r.After.Number, short(r.After.TreeDigest)))
	}
	if r.Check != nil {
		field(w, "check", fmt.Sprintf("exit %d: %s", r.Check.ExitCode, r.Check.Command))
		field(w, "pinned", strings.Join(r.Check.Pins, ", "))
	}
	u := r.Usage
	field(w, "used", fmt.Sprintf("%.3f s of processor in %.3f s, %s of memory at most", float64(u.CPUMS)/1000, float64(u.WallMS)/1000, size(u.PeakMemory)))
	field(w, "isolation", strings.Join(r.Assurance.Isolation, ", "))
	if r.Assurance.Canaries.Total > 0 {
		c := r.Assurance.Canaries
		text := fmt.Sprintf("%d/%d stopped", c.Passed, c.Total)
		if len(c.Skipped) > 0 {
			text += "; allowed, so not tested: " + strings.Join(c.Skipped, ", ")
		}
		field(w, "canaries", text)
	}
	showNetwork(w, r.Network)
	if len(r.MissingCalls) > 0 {
		field(w, "not there", strings.Join(r.MissingCalls, ", ")+": called, but missing in the cell's kernel")
	}
	if r.Hold != nil {
		field(w, "on hold", holdWords(r.Hold))
	}
	for _, e := range r.Erased {
		field(w, "erased", erasedWords(e))
	}
	if rec := r.Recording; rec != nil {
		field(w, "recording", rec.Words(size))
	}
	for _, s := range r.Services {
		field(w, "service", s.Name+": "+imageWords(s.Image, s.ImageID))
	}
	for _, c := range r.Caches {
		text := c.Name + ": "
		if !c.Read {
			text += "empty, "
		}
		field(w, "cache", text+size(c.Wrote)+" written")
	}
	field(w, "asked by", r.Asked.String())
	if n := r.NeedsSignOff; n != nil {
		field(w, "needs", plural(int(n.Needs), "sign-off")+": "+printable(strings.Join(n.Why, "; ")))
	}
	for _, o := range r.SignOffs {
		field(w, decisionWords(o.Decision), signOffLine(o))
	}
	field(w, "reference", r.Ref)
	field(w, "mode", r.Mode)
	field(w, "reason", r.ModeReason)
	field(w, "downgrades", strings.Join(r.DowngradeWords, ", "))
	for _, d := range r.Downgrades {
		field(w, "weaker", d)
	}
	for _, n := range r.Notes {
		field(w, "note", n)
	}
	t := r.Timings
	field(w, "times", fmt.Sprintf("import %.1f, checkpoint %.1f, start %.1f, run %.1f, freeze %.1f, digest %.1f, restore %.1f, receipt %.1f, total %.1f ms",
		t.Import, t.Checkpoint, t.Start, t.Run, t.Freeze, t.Digest, t.Restore, t.Receipt, t.Total))
	field(w, "receipt", r.Receipt)
	field(w, "records", r.Folder)
}

func (a *app) psCmd() *cobra.Command {
	return &cobra.Command{
		Use: "ps CELL", Aliases: []string{"top"}, Short: "List the processes of a cell", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.client.Processes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if c, err := a.client.Cell(cmd.Context(), args[0]); err == nil {
				a.bareRun("cell "+c.Name, c.Isolation, "is")
			}
			return a.print(list, func(w io.Writer) {
				if len(list) == 0 {
					a.say("nothing runs in cell %s", args[0])
					return
				}
				t := a.newTable(w)
				t.row("PID", "PPID", "STATE", "MEMORY", "CPU", "STARTED", "COMMAND")
				for _, p := range list {
					t.row(fmt.Sprint(p.PID), fmt.Sprint(p.PPID), p.State, size(p.RSS), fmt.Sprintf("%.2f s", float64(p.CPU)/1000), ago(p.Started), cut(p.Command, 80))
				}
				t.flush()
			})
		},
	}
}

func (a *app) statsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "stats [CELL]", Short: "Show what cells, templates and pools use now", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				o, err := a.client.Overview(cmd.Context())
				if err != nil {
					return err
				}
				return a.print(o, func(w io.Writer) { a.showOverview(w, o) })
			}
			s, err := a.client.Stats(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print([]api.Stats{s}, func(w io.Writer) { a.showStats(w, []api.Stats{s}) })
		},
	}
}

// one makes a command that applies an action to a cell.
func (a *app) one(use, about, said string, do func(ctx context.Context, sel string) (api.Cell, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " CELL", Short: about, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := do(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(c, func(io.Writer) { a.say("cell %s %s", c.Name, said) })
		},
	}
}

func (a *app) pauseCmd() *cobra.Command {
	return a.one("pause", "Pause a cell's processes", "is paused", func(ctx context.Context, s string) (api.Cell, error) { return a.client.Pause(ctx, s) })
}

func (a *app) resumeCmd() *cobra.Command {
	c := a.one("resume", "Resume a paused cell's processes", "is resumed", func(ctx context.Context, s string) (api.Cell, error) { return a.client.Resume(ctx, s) })
	c.Aliases = []string{"unpause"}
	return c
}

// namedOrAll returns the cells that a command names or, with all, those that which selects: of
// sessions, if it is a verb of theirs.
func (a *app) namedOrAll(cmd *cobra.Command, args []string, all bool, which func(api.Cell) bool) ([]string, error) {
	if all == (len(args) > 0) {
		return nil, usage("no cell is named: name cells, or use --all")
	}
	if !all {
		return args, nil
	}
	cells, err := a.client.Cells(cmd.Context())
	for _, c := range cells {
		if which(c) && (c.Agent != "" || cmd.Parent().Name() != sessionName) {
			args = append(args, c.ID)
		}
	}
	return args, err
}

func (a *app) stopCmd() *cobra.Command {
	var all bool
	var timeout time.Duration
	c := &cobra.Command{
		Use: "stop [CELL…]", Short: "End a cell's processes; its files stay", ValidArgsFunction: a.completeCells,
		Long: `End a cell's processes; its files stay. The command of a run is asked to end (SIGTERM),
so that an agent saves its conversation, and is killed when it is still there after
--timeout. At a terminal it is told after half of that time that the terminal has gone
(SIGHUP), which shells obey. What else runs in the cell is killed then.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < time.Millisecond || timeout > api.MaxStopGrace {
				return usage("--timeout takes a time from 1ms to %s", api.MaxStopGrace)
			}
			args, err := a.namedOrAll(cmd, args, all, func(c api.Cell) bool {
				starting := c.LatestRun != "" && c.Verdict == "" // a run that has no verdict is under way
				return c.State == "running" || c.State == "paused" || starting
			})
			if err != nil {
				return err
			}
			stopped := []api.Cell{}
			ended := map[string]string{} // what is said of the end of a run, by the id of its cell
			stop := func(name string) (api.Cell, error) {
				was, err := a.client.Cell(cmd.Context(), name)
				if err != nil {
					return was, err
				}
				c, err := a.client.StopWithin(cmd.Context(), name, timeout)
				if err == nil && was.LatestRun != "" && was.Verdict == "" {
					if run, err := a.client.Run(cmd.Context(), was.LatestRun, false); err == nil && run.ExitCode != nil {
						ended[c.ID] = endOf(run)
					}
				}
				return c, err
			}
			err = each(args, stop, func(c api.Cell) {
				stopped = append(stopped, c)
				if !a.json {
					a.say("%s", marked(fmt.Sprintf("cell %s is %s%s", c.Name, c.State, ended[c.ID]), c.Isolation))
				}
			})
			return a.printWith(err, stopped, func(io.Writer) {})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all cells that have processes, or a run that is starting")
	c.Flags().DurationVar(&timeout, "timeout", api.StopGrace, "how long a command has to end before it is killed")
	return c
}

// endOf says how a run that was stopped has ended.
func endOf(run api.Run) string {
	switch how := cmp.Or(run.Signal, fmt.Sprintf("exit %d", *run.ExitCode)); {
	case run.Cause != cell.CauseInterrupted:
		return "; " + run.ID + " ended (" + howEnded(run) + ")"
	case run.Signal == "SIGKILL":
		return "; " + run.ID + " did not end when it was asked to, and was killed"
	default:
		return "; " + run.ID + " ended when it was asked to (" + how + ")"
	}
}

func (a *app) rmCmd() *cobra.Command {
	var dry, yes, all bool
	c := &cobra.Command{
		Use: "rm CELL…", Short: "Remove cells with their processes, files and checkpoints", ValidArgsFunction: a.completeCells,
		Long: `Remove cells with their processes, files and checkpoints. Records and receipts
of their runs stay, and so do cells that were forked from them.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := a.namedOrAll(cmd, args, all, func(c api.Cell) bool { return c.Serves == nil }) // a service goes with its cell
			if err != nil {
				return err
			}
			if all && !dry && !yes && len(args) > 0 {
				if ok, err := a.confirm(fmt.Sprintf("remove all %s?", plural(len(args), "cell"))); err != nil || !ok {
					return err
				}
			}
			var ids []string
			var asked []api.Cell // about cells with pending results
			remove := func(dry bool) func(sel string) (api.Cell, error) {
				return func(sel string) (api.Cell, error) { return a.client.Remove(cmd.Context(), sel, dry) }
			}
			err = each(args, remove(true), func(c api.Cell) {
				if slices.Contains(ids, c.ID) {
					return
				}
				ids = append(ids, c.ID)
				if len(c.Pending) > 0 {
					asked = append(asked, c)
				}
			})
			refused, several := err.(*refusals)
			if err != nil && !several {
				return err
			}
			if !dry && !yes {
				for _, c := range asked {
					if ok, err := a.confirm(fmt.Sprintf("the pending result of %s in cell %s will be removed, too. Remove?", strings.Join(c.Pending, ", "), c.Name)); err != nil || !ok {
						return refused.and(err)
					}
				}
			}
			gone := []api.Cell{}
			err = each(ids, remove(dry), func(c api.Cell) {
				gone = append(gone, c)
				switch {
				case a.json:
				case dry:
					a.say("%s", marked(fmt.Sprintf("would remove cell %s: %s, %s", c.Name, plural(c.Checkpoints, "checkpoint"), plural(c.Processes, "process")), c.Isolation))
				default:
					a.say("%s", marked(fmt.Sprintf("removed cell %s", c.Name), c.Isolation))
				}
			})
			return a.printWith(refused.and(err), gone, func(io.Writer) {})
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only print what would be removed")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask about pending results")
	c.Flags().BoolVar(&all, "all", false, "all cells")
	return c
}
