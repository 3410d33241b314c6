package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/glob"
)

// confirm asks a yes-or-no question at the terminal. Without a terminal it fails with a conflict
// that names the flag.
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

// changesDigest returns the prefix of a digest of changes that accept --expect takes.
func changesDigest(d string) string {
	d = strings.TrimPrefix(d, "sha256:")
	return d[:min(len(d), 16)]
}

// page prints text, through a pager when it is longer than the terminal.
func (a *app) page(text string, raw bool) {
	out, ok := fileOf(a.stdout)
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

// noPart returns err. When the cell's name looks like a path it adds how paths are named.
func noPart(err error, name string) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Kind != "invalid" && e.Kind != "not-found" {
		return err
	}
	if _, missing := os.Lstat(name); name == "" || missing != nil && !strings.ContainsRune(name, '/') {
		return err
	}
	return &api.Error{Kind: e.Kind, Message: e.Message + "; paths come after --", Hint: "to take a part: pando accept --apply -- " + shellWord(name)}
}

func (a *app) acceptCmd() *cobra.Command {
	var req api.AcceptRequest
	var interactive bool
	c := &cobra.Command{
		Use:   "accept [RUN|CELL] [-- PATH…]",
		Short: "Accept a cell's present state; --apply writes it into the source",
		Long: `Accept the present state of a cell, with the results of all runs in it, or the changes
of one run: the changes that pando diff shows for the same name. Without a name it
accepts the cell with the newest pending result from this directory. --expect DIGEST
refuses other changes than those that pando diff showed.

With --apply the changes are written into the source, all or nothing: when a file
there has changed since the import, nothing is written, unless --merge merges the two
by three ways, as git does. Where both changed the same lines, the file gets git's marks
(<<<<<<<), and the exit code is 1; --no-conflicts refuses that. Binary files, and files
that one side removed or renamed otherwise, are refused by name. Merging takes git on
the daemon's host. pando revert takes all of it back, as long as the files are as they
were written.

When the source is on another branch and commit than at the import, or at the last
apply, nothing is written without --other-branch. New commits on the same branch do
not count as another branch.

Commits that were made in the cell stay there, unless --commits makes them the source's:
its branch moves to what is checked out in the cell, as git merge --ff-only would do, or,
where you committed meanwhile, to copies on top of yours, as git rebase would make them.
Files that were not committed there are applied and not committed. It is refused where a
file is not as it is committed, where something is staged in the source, and where both
changed the same lines; pando fetch brings commits as branches of their own. With
--dry-run it prints what --expect takes to have these commits and no others. --sign NAME
has your SSH agent sign each of them, as a copy with you as committer, with the key of a
credential for git-signatures.

Changes to files that control what runs on your machine (hooks, CI, editor and agent
settings, programs in git's configuration) are held back until you --include them.
Files that git ignores come only with --ignored. The modification time of applied
files is the time of the accept, in the order of their times in the cell, so that make
rebuilds what depends on them, and not what was built with them.

The output begins with the changes to look at first: such files, and new or changed
files that are executable, hidden, or configuration of tools that act when a folder is
opened. --strict holds all of them back.

While a run goes on, an agent's session too, pando accept CELL --apply takes what it has
made so far, as the last pando diff showed it; without a look since the last accept, as
it is. What the run changes from then on waits at its end, and it is not rolled back when
it fails.

Paths limit --apply to the changes there and below; the rest waits, and pando diff shows
it. They are those of the directory that you are in, or of the source's top from
elsewhere; in one with *, that is any text. -p asks for each hunk, with the keys of git
add -p; ? explains them. e edits the hunk with $VISUAL or $EDITOR.`,
		Example: `  pando accept --apply
  pando accept web --apply -- src/api 'docs/*.md'
  pando accept --apply -p
  pando accept --apply --merge
  pando accept --commits`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args = args[:n]
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			var paths []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, paths = args[:n], args[n:]
			}
			if req.Commits && (len(paths) > 0 || interactive) {
				return usage("--commits takes all changes: no paths, and no -p")
			}
			req.Apply = req.Apply || req.Commits
			if req.Sign != "" {
				req.SSHAgent = os.Getenv("SSH_AUTH_SOCK")
			}
			if len(paths) > 0 && !req.Apply {
				return usage("paths go with --apply")
			}
			if interactive && !req.Apply {
				return usage("-p goes with --apply")
			}
			if (len(req.Include) > 0 || req.Ignored || req.Strict || req.OtherBranch || req.Merge) && !req.Apply {
				return usage("--include, --strict, --ignored, --other-branch and --merge go with --apply")
			}
			if req.NoConflicts && !req.Merge {
				return usage("--no-conflicts goes with --merge")
			}
			do := a.client.AcceptCell
			if isRun(arg(args)) {
				do = a.client.AcceptRun
			}
			if len(paths) > 0 || interactive {
				all, err := do(cmd.Context(), arg(args), api.AcceptRequest{DryRun: true, Force: req.Force, Reason: req.Reason, OtherBranch: true})
				if err != nil {
					return noPart(err, arg(args))
				}
				if req.Paths, err = a.inSource(all.Source, paths); err != nil {
					return err
				}
				if interactive {
					if err := a.pickParts(cmd.Context(), arg(args), all, &req); err != nil || len(req.Paths) == 0 && req.Patch == "" {
						return err
					}
				}
			}
			res, err := do(cmd.Context(), arg(args), req)
			if err != nil {
				return noPart(err, arg(args))
			}
			marked := a.conflicts(res.Merged)
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
				for _, f := range res.Merged {
					fmt.Fprintf(w, "%s\n", mergedWords(f))
				}
				for _, h := range res.Held {
					fmt.Fprintf(w, "held back  %s: %s (--include %s)\n", printable(h.Path), printable(h.Why), shellWord(h.Path))
				}
				if res.Ignored > 0 {
					fmt.Fprintf(w, "not applied  %s (--ignored)\n", plural(res.Ignored, "file")+" that git ignores")
				}
				for _, k := range res.Kept {
					fmt.Fprintf(w, "not applied  %s\n", printable(k))
				}
				whole := "cell " + printable(res.CellName)
				if res.During != "" {
					whole += " so far"
				}
				what := runsOr(res.Runs, whole)
				for _, f := range res.Also {
					fmt.Fprintf(w, "committed with it  %s\n", printable(f))
				}
				a.branchLines(w, res.Branch, res.DryRun)
				a.sayMoved(res.Head, "")
				switch {
				case res.DryRun && res.Left > 0:
					a.say("a part of %s would be applied; %s would wait", what, plural(res.Left, "changed file"))
				case res.Left > 0 && len(res.Applied) == 0:
					a.say("nothing new was to be applied to %s; %s: pando diff %s", printable(res.Source), stillWaits(res.Left), shellWord(res.CellName))
				case res.Left > 0:
					a.say("%s applied to %s; take it back with: pando revert %s", plural(len(res.Applied), "file"), printable(res.Source), shellWord(res.CellName))
					a.say("%s: pando diff %s", stillWaits(res.Left), shellWord(res.CellName))
				case res.DryRun:
					digest := changesDigest(res.Digest)
					if res.Branch != nil { // these commits, too
						digest += "+" + res.Branch.Tip[:min(len(res.Branch.Tip), 10)]
					}
					a.say("%s would be accepted: pando accept --expect %s", what, digest)
				case req.Apply && len(res.Applied) == 0 && res.Branch != nil:
					a.say("%s accepted: its files were there; take the commits back with: pando revert %s", what, revertible(res))
				case req.Apply && len(res.Applied) == 0:
					a.say("%s accepted; nothing new was to be applied to %s", what, printable(res.Source))
				case req.Apply:
					a.say("%s accepted, %s applied to %s; take it back with: pando revert %s", what, plural(len(res.Applied), "file"), printable(res.Source), revertible(res))
				default:
					a.say("%s accepted; its source is as it was (--apply brings the changes there)", what)
				}
				if res.During != "" && !res.DryRun {
					if when := ago(res.Looked); when != "just now" {
						a.say("it was taken as it was at the last look, %s", when)
					}
					a.say("run %s goes on: what it changes from now on waits", res.During)
				}
				a.sayConflicts(marked, res.DryRun)
				if res.Branch != nil && res.Commits != nil {
					res.Commits.Branches = nil // but those of submodules
				}
				a.sayCommits("", res.CellName, res.Commits)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&req.Apply, "apply", false, "write the changes into the source")
	f.StringVar(&req.Expect, "expect", "", "only these changes: their `DIGEST`, as pando diff prints it")
	f.BoolVarP(&interactive, "interactive", "p", false, "ask for each hunk whether it is taken")
	f.BoolVar(&req.Merge, "merge", false, "merge files that changed in the source, too")
	f.StringVar(&req.Sign, "sign", "", "with --commits: sign copies of them with this credential, which is for git-signatures; commits that change nothing are left out")
	f.BoolVar(&req.Commits, "commits", false, "with the commits that were made in the cell, onto the source's branch (applies)")
	f.BoolVar(&req.NoConflicts, "no-conflicts", false, "with --merge: write nothing where that leaves conflicts")
	f.StringArrayVar(&req.Include, "include", nil, "also apply this control path")
	f.BoolVar(&req.Strict, "strict", false, "hold back all changes listed under \"look first\"")
	f.BoolVar(&req.Ignored, "ignored", false, "also apply files that git ignores")
	f.BoolVar(&req.OtherBranch, "other-branch", false, "apply although the source is on another branch than the changes")
	f.BoolVar(&req.Force, "force", false, "accept a run that did not succeed")
	f.StringVar(&req.Reason, "reason", "", "the reason, which the receipt keeps")
	f.BoolVar(&req.DryRun, "dry-run", false, "only print what would be done")
	return c
}

// pickParts asks which changes of a result are taken, and makes that the request's. all is the outcome of
// accepting the whole.
func (a *app) pickParts(ctx context.Context, name string, all api.AcceptResult, req *api.AcceptRequest) error {
	compare := a.client.DiffCell
	if isRun(name) {
		compare = a.client.DiffRun
	}
	d, err := compare(ctx, name, client.DiffOptions{Form: "patch", Ignored: req.Ignored, Include: req.Include})
	if err != nil {
		return err
	}
	if d.Digest != all.Digest {
		return &api.Error{Kind: "conflict", Message: "the changes became other ones meanwhile", Hint: "do it again"}
	}
	wanted := req.Paths
	req.Paths, req.Patch, err = a.pickHunks(d.Text, func(path string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(wanted, func(p string) bool { return glob.Below(p, path) })
	})
	if err != nil {
		return err
	}
	if len(req.Paths) == 0 && req.Patch == "" {
		a.say("nothing was taken: all of it still waits")
	}
	req.Exact = true
	req.Expect = cmp.Or(req.Expect, d.Digest)
	return nil
}

func stillWaits(files int) string {
	if files == 1 {
		return "1 changed file still waits"
	}
	return plural(files, "changed file") + " still wait"
}

// inSource makes paths of the current directory paths of a source.
func (a *app) inSource(source string, paths []string) ([]string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	below, err := filepath.Rel(source, dir)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		below = "."
	}
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		at := filepath.Join(below, p)
		if filepath.IsAbs(p) {
			if at, err = filepath.Rel(source, p); err != nil {
				return nil, usage("%v", err)
			}
		}
		if at == ".." || strings.HasPrefix(at, "../") {
			return nil, usage("%s is outside of %s", printable(p), printable(source))
		}
		out = append(out, filepath.ToSlash(at))
	}
	return out, nil
}

// runsOr names runs, or returns other when there are none.
func runsOr(runs []api.Run, other string) string {
	var ids []string
	for _, r := range runs {
		ids = append(ids, r.ID)
	}
	return cmp.Or(strings.Join(ids, ", "), other)
}

// revertible names what pando revert takes to undo an apply.
func revertible(res api.AcceptResult) string {
	if len(res.Runs) > 0 {
		return res.Runs[len(res.Runs)-1].ID
	}
	return shellWord(res.CellName)
}

// lookWords describes a change to look at first.
func lookWords(l api.Look) string {
	name := printable(l.Path)
	if l.Files > 1 {
		name += " (" + plural(l.Files, "file") + ")"
	}
	return name + ": " + printable(l.Why)
}

// shellWord quotes a word for a shell where needed.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) discardCmd() *cobra.Command {
	var req api.DiscardRequest
	c := &cobra.Command{
		Use: "discard [RUN|CELL]", Short: "Discard a cell's pending changes or a run's result; they are kept for 7 days",
		Long: `Discard the pending changes of a cell, which goes back to before them, or the result
of its latest run. They are kept as a checkpoint for 7 days: pando restore brings them
back. Discarding a run that was already restored or discarded deletes the kept result
and frees its space. Without a name it discards in the cell with the newest pending
result from this directory.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			do := a.client.DiscardCell
			if isRun(arg(args)) {
				do = a.client.DiscardRun
			}
			res, err := do(cmd.Context(), arg(args), req)
			if e, ok := err.(*api.Error); ok && e.Kind == "conflict" && strings.Contains(e.Hint, "--yes") {
				if yes, cerr := a.confirm(strings.ToUpper(e.Message[:1]) + e.Message[1:] + ". Go on?"); cerr != nil || !yes {
					return cerr
				}
				req.Lose = true
				res, err = do(cmd.Context(), arg(args), req)
			}
			if err != nil {
				return err
			}
			return a.print(res, func(io.Writer) {
				what := runsOr(res.Runs, "what was written in cell "+printable(res.CellName))
				switch {
				case res.Freed > 0 && req.DryRun:
					a.say("what is kept of %s would be given up: %s", what, size(res.Freed))
				case res.Freed > 0:
					a.say("what was kept of %s is given up: %s are free", what, size(res.Freed))
				case req.DryRun:
					a.say("%s would be discarded; cell %s would go back to @%d%s", what, printable(res.CellName), res.Number, ends(res.Ended, "would end"))
				case res.Kept > 0:
					a.say("%s discarded; it is kept for 7 days: pando restore %s@%d", what, printable(res.CellName), res.Kept)
				default:
					a.say("%s discarded", what)
				}
				if res.Applied > 0 {
					a.say("what was applied of it stays in the source and in the cell (%s): pando revert %s takes it back", plural(res.Applied, "file"), printable(res.CellName))
				}
				if res.Ended > 0 && !req.DryRun {
					a.say("%s ended", plural(res.Ended, "process"))
				}
				if were := "are"; len(res.Services) > 0 && res.Freed == 0 {
					if req.DryRun {
						were = "would be"
					}
					a.say("its services %s where they were then, too: %s", were, strings.Join(res.Services, ", "))
				}
			})
		},
	}
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print what would be done")
	c.Flags().StringVar(&req.Reason, "reason", "", "why; the receipt keeps it")
	c.Flags().BoolVarP(&req.Lose, "yes", "y", false, "discard results of several runs, or delete a kept one, without asking")
	return c
}

func (a *app) revertCmd() *cobra.Command {
	var req api.RevertRequest
	c := &cobra.Command{
		Use: "revert [RUN|CELL]", Short: "Undo accept --apply in the source",
		Long: `Undo the latest accept --apply in the source: of a run, of a cell, or, without a name,
of all runs from this directory. All or nothing: when a file has changed since,
nothing is changed, and the file is named. A file that is already as before the
accept, after a git reset for example, stays as it is. The runs are pending again.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			do := a.client.RevertCell
			if isRun(arg(args)) {
				do = a.client.RevertRun
			}
			res, err := do(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				verb := "taken back"
				if res.DryRun {
					verb = "would take back"
				}
				for _, f := range res.Reverted {
					fmt.Fprintf(w, "%s  %s\n", verb, printable(f))
				}
				for _, f := range res.Already {
					fmt.Fprintf(w, "as before already  %s\n", printable(f))
				}
				if b := res.Branch; b != nil {
					moves := "is"
					if res.DryRun {
						moves = "would be"
					}
					a.say("branch %s %s at %s again, without %s", printable(b.Branch), moves, b.Now[:min(len(b.Now), 10)], plural(b.Commits, "commit"))
				}
				what := "what was applied of " + runsOr(res.Runs, "cell "+printable(res.CellName))
				again := "; it waits again: pando diff | accept --apply | discard"
				if len(res.Runs) > 0 && !slices.ContainsFunc(res.Runs, func(r api.Run) bool { return r.Verdict == "pending" }) {
					again = "" // the rest of it was discarded, or it left the workspace
				}
				switch nothing := len(res.Reverted) == 0; {
				case nothing && res.DryRun:
					a.say("nothing of %s is left to take back from %s: its files are there as before the accept", what, printable(res.Source))
				case nothing:
					a.say("nothing of %s was left to take back from %s: its files are there as before the accept%s", what, printable(res.Source), again)
				case res.DryRun:
					a.say("%s would be taken back from %s", what, printable(res.Source))
				default:
					a.say("%s is taken back from %s, %s%s", what, printable(res.Source), plural(len(res.Reverted), "file"), again)
				}
			})
		},
	}
	c.Flags().StringVar(&req.Reason, "reason", "", "the reason, which the receipt keeps")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print what would be done")
	return c
}

func (a *app) restoreCmd() *cobra.Command {
	var req api.RestoreRequest
	c := &cobra.Command{
		Use:   "restore CELL@N",
		Short: "Restore a cell to a checkpoint",
		Long: `Restore a cell to a checkpoint. Its processes end, and their number is printed;
--dry-run prints it without ending them. If the checkpoint has memory (pando history
marks it), the processes of that time continue, unless --files is given. The files
before the restore are kept as a checkpoint. Restoring the kept result of a failed or
discarded run makes that run pending again.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, num, numbered := strings.Cut(args[0], "@")
			if num != "" && num != "latest" {
				n, err := strconv.Atoi(num)
				if err != nil || n < 1 {
					return usage("%q is no checkpoint; write CELL@N", args[0])
				}
				req.Number = n
			} else {
				if !numbered {
					if err := a.whichCheckpoint(cmd.Context(), name); err != nil {
						return err
					}
				}
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
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print what would be done")
	return c
}

// whichCheckpoint refuses the name of a cell in place of a checkpoint, and lists those that there are. It
// takes what names no cell: the digest of a checkpoint.
func (a *app) whichCheckpoint(ctx context.Context, name string) error {
	c, err := a.client.Cell(ctx, name)
	if err != nil {
		return nil // the restore says what is wrong
	}
	list, err := a.client.History(ctx, c.ID)
	if err != nil {
		return err
	}
	title, most := cmp.Or(c.Name, c.ID), 8
	var names []string
	for _, k := range list {
		names = append(names, fmt.Sprintf("%s@%d", title, k.Number))
	}
	if n := len(names); n > most {
		names = append([]string{fmt.Sprintf("%d older ones", n-most)}, names[n-most:]...)
	}
	return usage("it was not said to which checkpoint of %s: %s; pando history %s shows what each has", title, strings.Join(names, ", "), title)
}

func (a *app) restored(res api.RestoreResult, dry bool) {
	if dry {
		a.say("would go back to %s@%d%s; runs with results that would leave the workspace: %d", res.Cell.Name, res.Number, ends(res.Ended, "would end"), len(res.Lost))
		switch {
		case res.Memory == api.MemoryRestored:
			a.say("its processes of that time would continue: the checkpoint has memory")
		case res.Ended > 0:
			a.say("of @%d the files would be restored, and no memory", res.Number)
		}
		if len(res.Services) > 0 {
			a.say("its services would be where they were then, too: %s", strings.Join(res.Services, ", "))
		}
		if len(res.Reverted) > 0 {
			a.say("would take back from %s: %s", res.Cell.Source, plural(len(res.Reverted), "file"))
		}
		return
	}
	a.say("cell %s is at @%d again (tree %s, %.1f ms; proven by %s)", res.Cell.Name, res.Number, short(res.TreeDigest), res.TookMS, strings.SplitN(res.Proof, ":", 2)[0])
	switch res.Memory {
	case "":
	case api.MemoryRestored:
		a.say("its processes continue (%s), with memory, home and /tmp of that instant", plural(res.Resumed, "process"))
		a.sayGenerators(res.Inherited, res.Renewed)
		a.sayNotes(res.Notes)
	default:
		a.say("its memory could not be restored, and nothing runs: %s", printableLines(res.Memory))
	}
	if res.Ended > 0 && res.Memory == "" {
		a.say("%s ended, with what was in memory: of @%d the files are restored, and no memory", plural(res.Ended, "process"), res.Number)
	} else if res.Ended > 0 {
		a.say("%s ended", plural(res.Ended, "process"))
	}
	if len(res.Services) > 0 {
		a.say("its services are where they were then, too: %s", strings.Join(res.Services, ", "))
	}
	if len(res.Lost) > 0 {
		a.say("no longer in the workspace: %s", strings.Join(res.Lost, ", "))
	}
	if len(res.Reverted) > 0 {
		a.say("taken back from %s: %s", res.Cell.Source, plural(len(res.Reverted), "file"))
	}
	if len(res.Applied) > 0 {
		a.say("what was applied to %s stays there: %s; to take it back: pando revert %s", res.Cell.Source, strings.Join(res.Applied, ", "), res.Applied[0])
	}
	if len(res.Reopened) > 0 {
		a.say("%s waits for a verdict again: pando diff | accept | discard", strings.Join(res.Reopened, ", "))
	}
}

// ends returns the number of ended processes with their cause; "" for none.
func ends(n int, verb string) string {
	if n == 0 {
		return ""
	}
	return ", and " + plural(n, "process") + " " + verb
}

func (a *app) checkpointCmd() *cobra.Command {
	var req api.CheckpointRequest
	c := &cobra.Command{
		Use: "checkpoint CELL", Short: "Save a cell's present state", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeCells,
		Long: `Save a cell's present state: its files, of an agent's cell its home, and on gvisor and
microvm its memory. While a run goes on in the cell, its memory is not saved.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.client.Checkpoint(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(k, func(io.Writer) {
				a.say("%s@%d %s (%.1f ms)", args[0], k.Number, short(k.TreeDigest), k.TookMS)
				if k.Memory {
					a.say("it has memory, home and /tmp of one instant; %s was paused for %s", args[0], took(k.PauseMS))
				} else if k.Under != "" {
					a.say("taken under %s", k.Under)
				}
			})
		},
	}
	c.Flags().StringVarP(&req.Message, "message", "m", "", "description")
	return c
}
