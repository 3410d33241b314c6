package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func (a *app) runCmd() *cobra.Command {
	var r runFlags
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND…",
		Short: "Run a command as a governed run: checkpoint, run, receipt, verdict",
		Long: `Run a command in a cell on a copy of this directory. Within a git repository the copy
is of the repository, and the command starts in the same directory below it. The
source itself is never written. A command that fails is rolled back, and its result is
kept for seven days. A command that succeeds leaves a pending result: pando diff,
pando accept --apply, pando discard.

With --cell NAME the cell is kept. The next run in it continues where this one ended,
with the same policy, grants, mounts and limits unless it gives others (--anew forgets
them). Without --cell each run starts from the directory. Several runs in one cell run
one after the other, also while the first of them makes it.

When the daemon is killed the run continues, and this command follows it with the next
daemon. At a terminal the run also continues without this command: when the terminal is
closed, this command is killed, or the detach keys are typed. pando attach comes back.`,
		Example: `  pando run -- go test ./...
  pando run --cell web --memory 2G -- npm test
  pando run --check 'make test' --on-success apply -- ./fix.sh`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.req.Command = args
			return a.startAs(cmd, &r)
		},
	}
	a.addRunFlags(c, &r)
	return c
}

// runFlags are the flags of a command that starts a run, and the request that they make.
type runFlags struct {
	req          api.RunRequest
	policy, keys string
	env, with    []string
	detach       bool
	noConfig     bool
	beside       serviceFlags
	prefer       string                    // backend of a new cell by default
	page         func(io.Writer, api.Plan) // prints a plan; nil: as --dry-run does
	ready        func() error              // completes the request when the defaults are there; nil: nothing to complete
}

// startAs starts a run as its flags say, and follows it.
func (a *app) startAs(cmd *cobra.Command, r *runFlags) error {
	req := &r.req
	if err := a.useDefaults(cmd, r); err != nil {
		return err
	}
	if r.ready != nil {
		if err := r.ready(); err != nil {
			return err
		}
	}
	leave, err := parseKeys(r.keys)
	if err != nil {
		return err
	}
	if err := a.complete(cmd, r, req.Cell == ""); err != nil {
		return err
	}
	if req.DryRun {
		return a.planRun(cmd.Context(), r)
	}
	if tty, _ := cmd.Flags().GetBool("tty"); r.detach && (tty || req.Agent != nil && req.Agent.Prompt == "") {
		req.TTY = true // for clients that attach later
		if _, req.Rows, req.Cols = a.terminal(); req.Rows == 0 {
			req.Rows, req.Cols = 40, 120
		}
	}
	if tty, _, _ := a.terminal(); tty && !r.detach && req.Agent != nil && req.Agent.Prompt == "" && len(leave) > 0 {
		a.say("pando: %s leaves it, and it goes on; pando attach comes back", strings.ReplaceAll(r.keys, ",", " "))
	}
	return a.run(cmd.Context(), *req, leave, r.detach)
}

// complete fills in what a request has of flags that are not its fields, and of this process. anew says that it makes
// a cell.
func (a *app) complete(cmd *cobra.Command, r *runFlags, anew bool) (err error) {
	req := &r.req
	if req.Env, err = passEnv(r.env); err != nil {
		return err
	}
	if req.Services, err = r.beside.requests(); err != nil {
		return err
	}
	if r.policy != "" {
		b, err := os.ReadFile(r.policy)
		if err != nil {
			return &api.Error{Kind: "not-found", Message: "cannot read the policy: " + err.Error(), Hint: "name a file with --policy; `pando help policy` shows what is in one"}
		}
		req.Policy, req.PolicyName = string(b), r.policy
	}
	for _, dir := range r.with {
		if a.remote {
			return &api.Error{Kind: "unsupported", Message: "cannot bring in " + dir + ": the daemon is on another machine, to which one directory can be sent", Hint: "leave out --with, or use a daemon on this machine"}
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		req.Repositories = append(req.Repositories, abs)
	}
	if a.remote {
		if anew || cmd.Flags().Changed("from") {
			if err := a.sendSource(cmd.Context(), req, true); err != nil {
				return err
			}
		}
	} else if anew || cmd.Flags().Changed("from") {
		from := req.From
		if from == "" {
			from = a.repository()
		}
		if req.From, err = filepath.Abs(from); err != nil {
			return err
		}
	} else {
		req.From = "" // an existing cell knows its source; a new one is made from this directory
	}
	req.Prefer = cmp.Or(os.Getenv(backendVar), r.prefer)
	if !a.remote { // paths of this host mean nothing to a daemon elsewhere
		req.CallerEnv, req.CallerDir = callerEnv(), a.dir
	}
	return nil
}

// addRunFlags adds the flags of a run to a command.
func (a *app) addRunFlags(c *cobra.Command, r *runFlags) {
	req, f := &r.req, c.Flags()
	f.SetInterspersed(false)
	f.StringVar(&req.From, "from", "", "source directory (default: the git repository that this directory is in, or the directory); --from . is this directory alone")
	f.StringArrayVar(&r.with, "with", nil, "bring this further directory into the new cell, at its own path, such as ../shared-lib: one diff, one accept")
	f.StringVar(&req.Cell, "cell", "", "work in this cell; created if there is none, kept afterwards")
	f.StringVar(&req.Backend, "backend", "", "isolation: auto, namespace, gvisor, microvm, none: not isolated (default: that of the cell; of a new one PANDO_BACKEND, or auto)")
	f.StringVar(&req.Image, "image", "", "root file system: host (default), dir:PATH, oci:REF, dockerfile:PATH[#STAGE]")
	f.StringVar(&req.Kernel, "kernel", "", "microVM cells: boot this kernel, IMAGE or IMAGE:MODULES (default: one of the host's packages)")
	f.StringVar(&r.policy, "policy", "", "policy file")
	f.StringArrayVar(&req.Mounts, "mount", nil, "show a host path in the cell: SRC:DST, or SRC:DST:rw (outside rollback; no set-user-id bits)")
	f.BoolVar(&req.ReadOnly, "read-only", false, "make the image read-only: commands write to the workspace, the home, /tmp, /run and caches alone")
	f.StringSliceVar(&req.Caches, "cache", nil, "keep these caches for later cells of the source: go, npm, pnpm, yarn, pip, uv, cargo, gradle, maven, ccache, or a directory; off: none")
	f.StringVar(&req.CacheWrite, "cache-write", "", "what is kept of them: accepted: what accepted runs wrote (default); always: all")
	r.beside.add(c)
	f.StringArrayVar(&req.Allow, "allow", nil, "what the cell may reach: HOST[:PORT], *.HOST, an address, or a preset such as @npm")
	f.StringArrayVar(&req.Credentials, "credential", nil, "lend a credential to the cell, by its name")
	terminalFlags(f)
	f.StringArrayVarP(&r.env, "env", "e", nil, "set a variable: NAME=VALUE, or NAME to pass your own")
	f.StringArrayVar(&req.WithSecret, "with-secret", nil, "import this file although it looks secret")
	f.BoolVar(&req.Anew, "anew", false, "forget the policy, grants, mounts and limits of earlier runs in the cell")
	f.StringVarP(&req.Workdir, "workdir", "w", "", "where to run (default: this directory, as it is in the cell)")
	f.StringVar(&req.Limits.CPUs, "cpus", "", "limit: cores, such as 1.5")
	f.StringVarP(&req.Limits.Memory, "memory", "m", "", "limit: bytes, such as 512M")
	f.StringVar(&req.Limits.PIDs, "pids", "", "limit: processes and threads")
	f.StringVar(&req.Limits.Disk, "disk", "", "limit: bytes written and kept, such as 10G")
	f.StringVar(&req.Limits.Timeout, "timeout", "", "limit: time, such as 10m")
	f.Var((*budgetValue)(&req.Limits.Budget), "budget", "what the cell and its forks may use together, such as time=2h,requests=500,tokens=2M,usd=5; then they are paused, and it asks")
	f.StringVar(&req.OnFailure, "on-failure", "restore", "what a failure means: restore, pending, ask")
	f.StringVar(&req.OnSuccess, "on-success", "pending", "what a success means: pending, accept, apply, ask")
	f.StringVar(&req.Check, "check", "", "shell command that must succeed in a fork of the result; a script of the source is as the run left it, if no --pin names it")
	f.StringArrayVar(&req.Pin, "pin", nil, "file, folder or pattern of the source that the check has as it was before the run")
	f.StringVar(&req.ToolLog, "tool-log", "", "file of the cell in which the command reports its tool calls, for pando report and timeline")
	f.BoolVar(&req.Record, "record", false, "record its HTTP requests and answers, encrypted, for pando replay --verify")
	f.StringVar(&req.Ref, "ref", "", "the reason for the run, a ticket say, in its record and receipt")
	f.StringArrayVar(&req.Notify, "notify", nil, "tell when the run ends or asks: desktop, a web address, or command:COMMAND")
	f.BoolVar(&req.DryRun, "dry-run", false, "print what would be imported, mounted and enforced; start nothing")
	detachFlag(c, &r.keys)
	f.BoolVarP(&r.detach, "detach", "d", false, "return when the run has started; pando logs -f follows it. With -t it has a terminal, for pando attach and send")
	f.BoolVar(&r.noConfig, "no-config", false, "go without the defaults of pando config")
	annotate(f, perStart, "from", "with", "cell", "policy", "anew", "workdir", "dry-run", "detach", "no-config")
	annotate(f, ofCell, "image", "kernel", "with-secret")
	annotate(f, anewCell, "mount", "read-only", "cache", "cache-write", "allow", "credential", "cpus", "memory", "pids", "disk")
	complete(c, "backend", "auto", "namespace", "gvisor", "microvm", "none")
	complete(c, "on-failure", "restore", "pending", "ask")
	complete(c, "on-success", "pending", "accept", "apply", "ask")
	c.RegisterFlagCompletionFunc("cell", a.completeCells)
}

// backendVar names the backend of cells when no flag chooses one.
const backendVar = "PANDO_BACKEND"

// passEnv turns NAME into NAME=value, with the value of this process's environment.
func passEnv(list []string) ([]string, error) {
	var out []string
	for _, kv := range list {
		if !strings.Contains(kv, "=") {
			v, ok := os.LookupEnv(kv)
			if !ok {
				return nil, &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot pass %s: it is not set", kv), Hint: "write --env " + kv + "=VALUE"}
			}
			kv += "=" + v
		}
		out = append(out, kv)
	}
	return out, nil
}

func (a *app) run(ctx context.Context, req api.RunRequest, leave detachKeys, detach bool) error {
	tty := false
	if !detach {
		tty, req.Rows, req.Cols = a.terminal()
		req.TTY, req.Attach = tty && !a.json, true
		tty = req.TTY
	}
	p := &progress{a: a}
	p.show(api.Progress{Step: stepStarting})
	run, err := a.startRun(ctx, req)
	if p.clear(); err != nil {
		return err
	}
	a.bareRun("run "+run.ID, run.Isolation, "is")
	if req.Agent != nil && req.Agent.IdlePause != "" {
		a.say("pando: its cell is paused after %s in which nothing happens; pando attach continues it", req.Agent.IdlePause)
	}
	if words := slices.DeleteFunc(slices.Clone(run.DowngradeWords), func(w string) bool { return w == policy.BackendNone }); len(words) > 0 {
		a.say("pando: weaker than by default: %s", strings.Join(words, ", "))
	}
	if detach {
		defer a.sayLogout(ctx)
		return a.print(run, func(w io.Writer) { fmt.Fprintln(w, run.ID) })
	}
	o := client.AttachOptions{Input: true, Name: rand.Text()}
	if tty {
		o.Rows, o.Cols = req.Rows, req.Cols
	}
	l, err := a.linkTo(ctx, "run", run.ID, o, a.client.AttachRun)
	if err != nil {
		return err
	}
	if tty {
		l.detach, l.stays = leave, true
	}
	l.starts = true
	return a.followRun(ctx, run, l, tty, func(ended api.Run) error {
		if n := l.missing(ended.Output); n > 0 {
			a.say("pando: %d bytes of its output are no longer kept", n)
		}
		return a.runEnded(ctx, ended, req)
	})
}

// repository returns the git work tree of this directory, or the directory itself. It does not
// look at the user's home and above: a home is never a source.
func (a *app) repository() string {
	home, _ := os.UserHomeDir()
	for dir := a.dir; dir != "/" && dir != home; dir = filepath.Dir(dir) {
		st, err := os.Lstat(filepath.Join(dir, ".git"))
		if err != nil {
			continue
		}
		if st.Mode().IsRegular() {
			return dir
		}
		if _, err := os.Lstat(filepath.Join(dir, ".git", "HEAD")); err == nil {
			return dir
		}
	}
	return a.dir
}

// startRun starts a run. The source of a new cell is this directory; it is sent when the daemon
// finds that the cell does not exist.
func (a *app) startRun(ctx context.Context, req api.RunRequest) (api.Run, error) {
	run, err := a.client.StartRun(ctx, req)
	if req.From+req.Upload != "" || req.Cell == "" || !needsSource(err) {
		return run, err
	}
	if a.remote {
		if err := a.sendSource(ctx, &req, true); err != nil {
			return run, err
		}
	} else {
		req.From = a.repository()
	}
	return a.client.StartRun(ctx, req)
}

// needsSource reports whether a run is refused since no source was given for its new cell.
func needsSource(err error) bool {
	e, ok := err.(*api.Error)
	return ok && e.Subject == api.SubjectSource
}

// runEnded prints how a run ended and sets the exit code.
func (a *app) runEnded(ctx context.Context, run api.Run, req api.RunRequest) error {
	if run.Error != nil && run.ExitCode == nil {
		if a.json {
			a.print(run, nil)
			return &exitError{startExit(run.Error.Kind)}
		}
		return run.Error
	}
	if run, err := a.ask(ctx, run, req); err != nil {
		return err
	} else if err := a.print(run, func(io.Writer) { a.lastLine(run) }); err != nil {
		return err
	}
	a.exit = exitOf(run)
	return nil
}

// exitOf returns the exit code for an ended run.
func exitOf(run api.Run) int {
	code := 0
	if run.ExitCode != nil {
		code = *run.ExitCode
	}
	switch {
	case run.Error != nil && run.ExitCode == nil:
		return startExit(run.Error.Kind)
	case run.Error != nil: // whatever the command's exit code was: its result is unknown
		return api.ExitPandoFailed
	case run.Cause == cell.CauseTimeout:
		return api.ExitTimeout
	case code != 0:
		return code
	case run.Cause == cell.CauseInterrupted:
		return api.ExitInterrupted
	case run.Cause == api.CauseDiskLimit, run.Cause == api.CauseUnreadable, run.Check != nil && run.Check.ExitCode != 0:
		return 1
	}
	return 0
}

func startExit(kind api.Kind) int {
	switch kind {
	case "not-runnable", "no-such-binary", "timeout", "interrupted":
		return api.ReasonOf(kind).Exit
	}
	return api.ExitPandoFailed
}

// ask asks for the verdict on a run, if the run asked for that and there is a terminal.
func (a *app) ask(ctx context.Context, run api.Run, req api.RunRequest) (api.Run, error) {
	failed := run.ExitCode != nil && *run.ExitCode != 0
	wanted := (failed && req.OnFailure == "ask") || (!failed && req.OnSuccess == "ask")
	if !wanted || run.Verdict != "pending" || run.Error != nil || a.json || !a.isTTY {
		return run, nil
	}
	if d, err := a.client.DiffRun(ctx, run.ID, client.DiffOptions{Form: "stat", Width: a.width}); err == nil {
		io.WriteString(a.stderr, a.cursor.end()+d.Text)
	}
	fmt.Fprint(a.stderr, a.cursor.end()+"accept, apply to the source, discard, or leave pending? [accept/apply/discard/PENDING] ")
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	var err error
	switch strings.TrimSpace(answer) {
	case "accept", "apply":
		_, err = a.client.AcceptRun(ctx, run.ID, api.AcceptRequest{Apply: strings.TrimSpace(answer) == "apply", Force: failed, Reason: "answered at the terminal"})
	case "discard":
		_, err = a.client.DiscardRun(ctx, run.ID, api.DiscardRequest{})
	default:
		return run, nil
	}
	if err != nil {
		return run, err
	}
	return a.client.Run(ctx, run.ID, false)
}

// sayMissing names the missing system calls that a failed command used.
func (a *app) sayMissing(calls []string) {
	if len(calls) > 0 {
		a.say("pando: the command used system calls that the cell's kernel lacks: %s; if that caused the failure, use --backend namespace", printable(strings.Join(calls, ", ")))
	}
}

// lastLine prints the final messages of a run on stderr.
func (a *app) lastLine(run api.Run) {
	for _, l := range run.Notes {
		a.say("pando: note: %s", l)
	}
	if run.Check != nil && run.Check.ExitCode != 0 && run.Check.Output != "" {
		a.say("pando: the check said:\n%s", indent(run.Check.Output))
	}
	for _, p := range run.Conflicts {
		a.say("pando: %s was left out of the import and made anew in the cell: accept --apply will refuse it", printable(p))
	}
	for i, l := range run.Changes.First {
		if i == 5 {
			a.say("pando: look first: and %d more: pando diff --stat", len(run.Changes.First)-i+run.Changes.FirstMore)
			break
		}
		a.say("pando: look first: %s", lookWords(l))
	}
	a.denials(run)
	if n := run.Usage.LeftOver; n > 0 {
		a.say("pando: %s that the command left behind ended with it; a cell with a name keeps them: --cell NAME", plural(n, "process"))
	}
	if run.ExitCode != nil && *run.ExitCode != 0 {
		a.sayMissing(run.MissingCalls)
	}
	a.sayLeftOut(run)
	if run.Error != nil {
		a.say("pando: %s", printable(run.Error.Message))
		if run.Error.Hint != "" {
			a.say("hint: %s", printable(run.Error.Hint))
		}
	}
	if run.Verdict == "pending" || run.Verdict == "accepted" {
		a.sayCommits("pando: ", cmp.Or(run.CellName, run.Cell), run.Commits)
	}
	line := summary(run)
	if a.remote { // the source is on this host, and only a name leads to the run
		line = strings.Replace(line, "pando diff | accept --apply | discard",
			fmt.Sprintf("pando diff %s --patch | git apply, then pando accept %s | pando discard %s", run.ID, run.ID, run.ID), 1)
	}
	a.say("%s", line)
}

// howEnded says how the command of a run ended, whatever its verdict is.
func howEnded(run api.Run) string {
	how := fmt.Sprintf("exit %d", *run.ExitCode)
	if run.Signal != "" {
		how = run.Signal
	}
	if run.Cause != "" {
		how += ", " + run.Cause
	}
	return how
}

// summary is the last line.
func summary(run api.Run) string {
	name := run.CellName
	if name == "" {
		name = run.Cell
	}
	untouched := ", source untouched"
	if run.Applied > 0 { // while it went on
		untouched = fmt.Sprintf(", %d applied already", run.Applied)
	}
	how := "ok"
	switch {
	case run.ExitCode == nil:
		how = "not finished (" + run.Phase + ")"
	case run.Error != nil:
		changed := "its changes are not known"
		if run.After != nil {
			changed = plural(run.Changes.Files, "file") + " changed"
		}
		return fmt.Sprintf("%s not finished: the command ended (%s), %s; the cell's checkpoints are intact: pando history %s", run.ID, howEnded(run), changed, name)
	case run.Cause != "" && !api.OverLimit(run.Cause):
		how = run.Cause
	case *run.ExitCode != 0 || run.Cause != "":
		how = fmt.Sprintf("failed (exit %d)", *run.ExitCode)
		if run.Signal != "" {
			how = "failed (" + run.Signal + ")"
		}
		if run.Cause != "" {
			how = "failed (" + run.Cause + ")"
		}
	case run.Check != nil && run.Check.ExitCode != 0:
		how = fmt.Sprintf("check failed (exit %d)", run.Check.ExitCode)
	}
	changed := plural(run.Changes.Files, "file") + " changed"
	switch run.Verdict {
	case "restored":
		if run.After != nil && run.Before != nil && run.After.Number != run.Before.Number {
			return fmt.Sprintf("%s %s, restored; the result is kept as %s@%d for 7 days: pando restore %s@%d", run.ID, how, name, run.After.Number, name, run.After.Number)
		}
		if run.Cause == api.CauseDiskLimit {
			return fmt.Sprintf("%s %s, restored; %s", run.ID, how, run.Reason)
		}
		return fmt.Sprintf("%s %s, nothing changed", run.ID, how)
	case "accepted":
		if run.Reason == api.ReasonNoChanges {
			return fmt.Sprintf("%s %s, no changes", run.ID, how)
		}
		return fmt.Sprintf("%s %s, %s, accepted", run.ID, how, changed)
	case "discarded":
		return fmt.Sprintf("%s %s, %s, discarded", run.ID, how, changed)
	}
	if run.After != nil && run.Before != nil && run.After.Number == run.Before.Number {
		return fmt.Sprintf("%s %s, nothing changed", run.ID, how)
	}
	return fmt.Sprintf("%s %s, %s%s: pando diff | accept --apply | discard", run.ID, how, changed, untouched)
}

func (a *app) planRun(ctx context.Context, r *runFlags) error {
	req := r.req
	p, err := a.client.PlanRun(ctx, req)
	if req.From+req.Upload == "" && needsSource(err) {
		if !a.remote {
			req.From = a.dir
		} else if err := a.sendSource(ctx, &req, true); err != nil {
			return err
		}
		p, err = a.client.PlanRun(ctx, req)
	}
	if err != nil {
		return err
	}
	return a.print(p, func(w io.Writer) {
		if r.page != nil {
			r.page(w, p)
			return
		}
		fmt.Fprintf(w, "would run   %s\n", printable(strings.Join(p.Command, " ")))
		fmt.Fprintf(w, "source      %s: %s, %s\n", p.Source, plural(p.Files, "file"), size(p.Bytes))
		for _, with := range p.Repositories {
			fmt.Fprintf(w, "with        %s\n", with)
		}
		fmt.Fprintf(w, "backend     %s, %s, policy %s\n", p.Backend, imageWords(p.Image, ""), short(p.Policy))
		bareField(w, p.Isolation)
		section(w, "left out", len(p.LeftOut), func(i int) string { return leftOutWords(p.LeftOut[i]) })
		section(w, "comes into its home", len(p.Home), func(i int) string {
			return p.Home[i].Kind + ": " + printable(p.Home[i].Path) + ", " + size(int64(p.Home[i].Bytes))
		})
		section(w, "services", len(p.Services), func(i int) string {
			return p.Services[i].Name + ": " + imageWords(p.Services[i].Image, p.Services[i].ImageID)
		})
		fmt.Fprintln(w, "\nvisible in the cell:")
		t := a.newTable(w)
		for _, m := range p.Mounts {
			mode := "read-only"
			if !m.ReadOnly {
				mode = "writable"
			}
			if m.Kind == "link" {
				mode = "link"
			}
			if m.Kind == "cache" {
				mode = "writable, thrown away"
			}
			if m.Kept != "" {
				mode = "writable, kept as " + printable(m.Kept)
			}
			t.row("  "+m.Target, mode, m.Why)
		}
		t.flush()
		section(w, "network and credentials", len(p.Allowed), func(i int) string { return printable(p.Allowed[i]) })
		section(w, "limits", len(p.Limits), func(i int) string {
			l := p.Limits[i]
			if l.Applied == "" {
				return l.Name + ": not in force: " + l.How
			}
			return l.Name + ": " + limitValue(l.Name, l.Applied) + ", " + l.How
		})
		section(w, "enforced", len(p.Enforced), func(i int) string { return p.Enforced[i] })
		section(w, "weaker than by default", len(p.DowngradeWords), func(i int) string { return p.DowngradeWords[i] })
		section(w, "weaker than it could be", len(p.Downgrades), func(i int) string { return p.Downgrades[i] })
		section(w, "notes", len(p.Notes), func(i int) string { return p.Notes[i] })
		fmt.Fprintf(w, "\nenvironment: %s\n", strings.Join(p.Env, " "))
	})
}
