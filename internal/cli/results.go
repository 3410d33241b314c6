package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// confirm asks a yes-or-no question at the terminal. Without one the answer
// is a conflict that says which flag answers.
func (a *app) confirm(question string) (bool, error) {
	if !term.IsTerminal(int(a.stdin.Fd())) || a.json {
		return false, &api.Error{Kind: "conflict", Message: question, Hint: "answer with --yes"}
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil {
		return false, nil
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// isRun reports whether a selector names a run rather than a cell.
func isRun(sel string) bool { return strings.HasPrefix(sel, "r-") || strings.Contains(sel, ":") }

func (a *app) diffCmd() *cobra.Command {
	var stat, patch, ignored bool
	c := &cobra.Command{
		Use:   "diff [CELL|RUN] [A [B]]",
		Short: "Show what changed",
		Long: `Show what changed: in a run, from before to after it; in a cell, from what the
source was to what the cell is now; or between two checkpoints, by number.

Files that git ignores are one line. --patch writes a patch in git's format for
git apply, binary files included.`,
		Args: cobra.MaximumNArgs(3), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			o := client.DiffOptions{Form: "text", Colour: a.colour, Width: a.width, Ignored: ignored}
			switch {
			case stat && patch:
				return usage("--stat and --patch exclude each other")
			case a.json:
				o.Form = "json"
			case stat:
				o.Form = "stat"
			case patch:
				o.Form = "patch"
			}
			sel := arg(args)
			if name, n, ok := strings.Cut(sel, "@"); ok { // CELL@N: what changed since then
				args = append([]string{name, n}, args[1:]...)
				sel = name
			}
			for i, to := range []*int{&o.From, &o.To} {
				if len(args) > i+1 {
					n, err := strconv.Atoi(strings.TrimPrefix(args[i+1], "@"))
					if err != nil || n < 1 {
						return usage("%q is no checkpoint; `pando history` shows the numbers", args[i+1])
					}
					*to = n
				}
			}
			var d api.Diff
			var err error
			if sel != "" && !isRun(sel) {
				d, err = a.client.DiffCell(cmd.Context(), sel, o)
			} else {
				d, err = a.client.DiffRun(cmd.Context(), sel, o)
			}
			if err != nil {
				return err
			}
			if !a.json {
				a.bareRun(fmt.Sprintf("the work from %s to %s", d.From, d.To), d.Isolation, "was")
			}
			return a.print(d, func(w io.Writer) {
				if d.Text == "" && !patch {
					a.say("no differences from %s to %s", d.From, d.To)
				}
				a.page(d.Text, patch)
			})
		},
	}
	c.Flags().BoolVar(&stat, "stat", false, "numbers for each file")
	c.Flags().BoolVar(&patch, "patch", false, "a patch in git's format")
	c.Flags().BoolVar(&ignored, "ignored", false, "show files that git ignores")
	return c
}

// page writes text, through a pager when it is longer than the terminal.
func (a *app) page(text string, raw bool) {
	out, ok := a.stdout.(*os.File)
	if raw || !ok || !term.IsTerminal(int(out.Fd())) {
		io.WriteString(a.stdout, text)
		return
	}
	_, rows, err := term.GetSize(int(out.Fd()))
	if err != nil || strings.Count(text, "\n") < rows {
		io.WriteString(a.stdout, text)
		return
	}
	if !pager(text, out) {
		io.WriteString(a.stdout, text)
	}
}

func (a *app) acceptCmd() *cobra.Command {
	var req api.AcceptRequest
	c := &cobra.Command{
		Use:   "accept [RUN|CELL]",
		Short: "Accept a run's result; --apply brings it into the source",
		Long: `Accept a run's result. With --apply its changes are brought into the source,
all or nothing: when a file there is not what it was at the import, nothing is
written. Changes to files that control what runs on your machine (hooks, CI,
editor and agent settings, what git's configuration names) are held back until
you --include them; files that git ignores come only with --ignored.

What to look at before the rest comes first: such files, and new or changed files
that are executable, hidden, or configuration of tools that act when a folder is
opened. --strict holds all of them back.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(req.Include) > 0 || req.Ignored || req.Strict) && !req.Apply {
				return usage("--include, --strict and --ignored go with --apply")
			}
			res, err := a.client.Accept(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				verb := "applied"
				if res.DryRun {
					verb = "would apply"
				}
				for _, l := range res.First {
					fmt.Fprintf(w, "look first  %s\n", lookWords(l))
				}
				for _, f := range res.Applied {
					fmt.Fprintf(w, "%s  %s\n", verb, printable(f))
				}
				for _, h := range res.Held {
					fmt.Fprintf(w, "held back  %s: %s (--include %s)\n", printable(h.Path), printable(h.Why), printable(h.Path))
				}
				if res.Ignored > 0 {
					fmt.Fprintf(w, "not applied  %s (--ignored)\n", plural(res.Ignored, "file that git ignores"))
				}
				for _, k := range res.Kept {
					fmt.Fprintf(w, "not applied  %s\n", printable(k))
				}
				switch {
				case res.DryRun:
					a.say("%s would be accepted", res.Run.ID)
				case req.Apply:
					a.say("%s accepted, %s applied to %s%s", res.Run.ID, plural(len(res.Applied), "file"), printable(res.Run.Source), takeBack(res.Run.Source, res.Patch))
				default:
					a.say("%s accepted; its source is as it was (--apply brings the changes there)", res.Run.ID)
				}
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&req.Apply, "apply", false, "bring the changes into the source")
	f.StringArrayVar(&req.Include, "include", nil, "apply this control path too")
	f.BoolVar(&req.Strict, "strict", false, "hold back all that is to be looked at first")
	f.BoolVar(&req.Ignored, "ignored", false, "apply files that git ignores too")
	f.BoolVar(&req.Force, "force", false, "accept a run that did not succeed")
	f.StringVar(&req.Reason, "reason", "", "why; the receipt keeps it")
	f.BoolVar(&req.DryRun, "dry-run", false, "only say what would be done")
	return c
}

// lookWords names a change to look at first.
func lookWords(l api.Look) string {
	name := printable(l.Path)
	if l.Files > 1 {
		name += " (" + plural(l.Files, "file") + ")"
	}
	return name + ": " + printable(l.Why)
}

// takeBack says how to take back what was applied. In a folder of a larger
// repository git would silently leave out what is not named from its top.
func takeBack(source, patch string) string {
	if patch == "" {
		return ""
	}
	top, inside := source, ""
	for d := source; d != "/" && d != "."; d = filepath.Dir(d) {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			if rel, err := filepath.Rel(d, source); err == nil && rel != "." {
				top, inside = d, " --directory="+shellWord(rel)
			}
			break
		}
	}
	return fmt.Sprintf("; take it back with: git -C %s apply -R%s %s", shellWord(top), inside, shellWord(patch))
}

// shellWord quotes a word for a shell, where that is needed.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) discardCmd() *cobra.Command {
	var req api.DiscardRequest
	c := &cobra.Command{
		Use: "discard [RUN|CELL]", Short: "Throw a run's result away; it is kept for 7 days", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := a.client.Discard(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			return a.print(run, func(io.Writer) {
				name := run.CellName
				if name == "" {
					name = run.Cell
				}
				switch {
				case req.DryRun:
					a.say("%s would be discarded", run.ID)
				case run.After != nil && run.Before != nil && run.After.Number != run.Before.Number:
					a.say("%s discarded; its result is kept for 7 days: pando restore %s@%d", run.ID, name, run.After.Number)
				default:
					a.say("%s discarded", run.ID)
				}
			})
		},
	}
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be done")
	return c
}

func (a *app) restoreCmd() *cobra.Command {
	var req api.RestoreRequest
	c := &cobra.Command{
		Use:   "restore CELL@N",
		Short: "Bring a cell back to a checkpoint",
		Long: `Bring a cell back to a checkpoint. Its processes end. What it was before stays a
checkpoint. Restoring the kept result of a failed or discarded run makes that
run pending again.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, num, _ := strings.Cut(args[0], "@")
			if num != "" && num != "latest" {
				n, err := strconv.Atoi(num)
				if err != nil || n < 1 {
					return usage("%q is no checkpoint; write CELL@N", args[0])
				}
				req.Number = n
			} else {
				req.Digest = args[0]
			}
			res, err := a.client.Restore(cmd.Context(), name, req)
			if e, ok := err.(*api.Error); ok && e.Kind == "conflict" && strings.Contains(e.Hint, "--yes") {
				if yes, cerr := a.confirm(strings.ToUpper(e.Message[:1]) + e.Message[1:] + ". Go on?"); cerr != nil || !yes {
					return cerr
				}
				req.Lose = true
				res, err = a.client.Restore(cmd.Context(), name, req)
			}
			if err != nil {
				return err
			}
			return a.print(res, func(io.Writer) { a.restored(res, req.DryRun) })
		},
	}
	c.Flags().BoolVarP(&req.Lose, "yes", "y", false, "go back past later runs without asking")
	c.Flags().BoolVar(&req.Verify, "verify", false, "prove it by reading every file")
	c.Flags().BoolVar(&req.Files, "files", false, "of a checkpoint with memory, restore its files alone: nothing runs then")
	c.Flags().StringVar(&req.Certify, "certify", "", "strict: refuse what inherits generators of random numbers, before anything is changed")
	c.Flags().StringVar(&req.AtFork, "at-fork", "", "of a checkpoint with memory, command that a shell runs before anything else goes on")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be done")
	return c
}

func (a *app) restored(res api.RestoreResult, dry bool) {
	if dry {
		a.say("would go back to %s@%d; runs whose results would leave the workspace: %d", res.Cell.Name, res.Number, len(res.Lost))
		return
	}
	a.say("cell %s is at @%d again (tree %s, %.1f ms; proven by %s)", res.Cell.Name, res.Number, short(res.TreeDigest), res.TookMS, strings.SplitN(res.Proof, ":", 2)[0])
	switch res.Memory {
	case "":
	case api.MemoryRestored:
		a.say("what ran in it goes on (%s), with memory, home and /tmp of that instant", plural(res.Resumed, "process"))
		a.sayGenerators(res.Inherited, res.Renewed)
	default:
		a.say("its memory could not be restored, and nothing runs: %s", printableLines(res.Memory))
	}
	if res.Ended > 0 {
		a.say("%s ended", plural(res.Ended, "process"))
	}
	if len(res.Lost) > 0 {
		a.say("no longer in the workspace: %s", strings.Join(res.Lost, ", "))
	}
	if len(res.Applied) > 0 {
		a.say("what was applied to %s stays there: %s", res.Cell.Source, strings.Join(res.Applied, ", "))
	}
	if res.Reopened != "" {
		a.say("%s is pending again: pando diff %s | accept --force --reason TEXT | discard", res.Reopened, res.Reopened)
	}
}

func (a *app) undoCmd() *cobra.Command {
	var req api.UndoRequest
	c := &cobra.Command{
		Use: "undo [CELL]", Short: "Bring a cell back to before its latest change", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := a.client.Undo(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			return a.print(res, func(io.Writer) { a.restored(res, req.DryRun) })
		},
	}
	c.Flags().IntVar(&req.To, "to", 0, "go back to this checkpoint")
	c.Flags().BoolVarP(&req.Lose, "yes", "y", false, "go back past later runs without asking")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be done")
	return c
}

func (a *app) checkpointCmd() *cobra.Command {
	var req api.CheckpointRequest
	c := &cobra.Command{
		Use: "checkpoint CELL", Short: "Keep a cell's present state", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.client.Checkpoint(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(k, func(io.Writer) {
				a.say("%s@%d %s (%.1f ms)", args[0], k.Number, short(k.TreeDigest), k.TookMS)
				if k.Memory {
					a.say("what runs in it is in it, too: memory, home and /tmp of one instant; %s stood still for %s", args[0], took(k.PauseMS))
				} else if k.Under != "" {
					a.say("taken under %s", k.Under)
				}
			})
		},
	}
	c.Flags().StringVarP(&req.Message, "message", "m", "", "what it is")
	return c
}
