package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/catalog"
)

func (a *app) raceCmd() *cobra.Command {
	var r runFlags
	var req api.RaceRequest
	var vary, varyEnv, agentName string
	var of api.AgentRequest
	var withHome []string
	c := &cobra.Command{
		Use:   "race [flags] [TEMPLATE|CELL[@N]] -- COMMAND… | --agent NAME --prompt TASK",
		Short: "Best of N: several attempts at one task, checked, ranked, compared",
		Long: `Start N attempts at one task, each a governed run in a cell of its own, and choose the
best. All begin with the same files: those of this directory, of a cell, or of a
template with its memory. The source is never written: accept the winner.

The command's words are templates: {{.NAME}} is a field of the attempt's row in the file
of --vary, a list of maps in YAML or a table in CSV; {{.n}} is its number, from 1. Rows
repeat in turn. An unknown field is an error before anything starts. --vary-env has
variables of the environment as fields.

With --agent each attempt is a coding agent's work on --prompt, where fields are filled in
the same way; its flags are those of pando claude. Its turns, tokens and cost are shown.

Each result is checked (--check) and scored (--score) in forks of its own. An attempt
succeeds when its command does, and its check. The best of these is the one in which
nothing of severity high was found, then by score, cost, size of the change and time.

The race is carried out by the daemon, and goes on when this command is killed or the
daemon is. Ctrl-C ends it with its attempts. The exit code is 0 when an attempt won.`,
		Example: `  pando race -n 3 --check 'go test ./...' -- ./agent --seed '{{.n}}'
  pando race --check 'make test' --vary hints.yaml -- ./agent --hint '{{.hint}}'
  pando race --agent claude --prompt 'fix the test; {{.hint}}' --vary hints.yaml --check 'go test ./...'
  pando race web@3 -n 8 --until first --check ./ok.sh -- ./fix.sh
  pando race attach x-1a2b`,
		ValidArgsFunction: a.completeForkable,
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.ArgsLenAtDash()
			if at < 0 && agentName != "" {
				at = len(args) // an agent needs no words behind --
			}
			if at < 0 || at > 1 || at == len(args) && agentName == "" {
				return usage("write it as pando race [TEMPLATE|CELL] -- COMMAND…, with the command behind --")
			}
			if err := a.raceAgent(cmd, &r, agentName, &of, &withHome); err != nil {
				return err
			}
			for _, name := range []string{"cell", "on-success", "dry-run", "tty", "interactive", "detach-keys", "continue", "idle-pause"} {
				if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
					return usage("--%s is for one run: the cells of a race are its own, and its winner is accepted afterwards", name)
				}
			}
			if cmd.Flags().Changed("count") && req.Count < 1 || cmd.Flags().Changed("parallel") && req.Parallel < 1 {
				return usage("-n and --parallel must be at least 1")
			}
			var err error
			if req.Variations, err = readRows("vary", vary); err != nil {
				return err
			}
			if req.EnvVariations, err = readRows("vary-env", varyEnv); err != nil {
				return err
			}
			r.req.Command = args[at:]
			if err := a.raceFrom(cmd, &r, &req, args[:at]); err != nil {
				return err
			}
			return a.race(cmd.Context(), req, r.detach)
		},
	}
	a.addRunFlags(c, &r)
	addAgentFlags(c, &of, &withHome)
	f := c.Flags()
	f.SetInterspersed(true)
	f.StringVar(&agentName, "agent", "", "each attempt is the work of this coding agent on --prompt: claude, codex, …")
	complete(c, "agent", catalog.All().Names()...)
	f.IntVarP(&req.Count, "count", "n", 0, "number of attempts (default: that of the rows of --vary, else 3)")
	f.IntVar(&req.Parallel, "parallel", 0, "number of attempts that run at a time (default: that of the processors)")
	f.StringVar(&req.Until, "until", "all", "end when all have ended, at the first that succeeds, or when so many have: all, first, N")
	f.StringVar(&vary, "vary", "", "YAML or CSV file with a row of fields for each attempt")
	f.StringVar(&varyEnv, "vary-env", "", "YAML or CSV file with a row of variables for each attempt")
	f.StringVar(&req.Score, "score", "", "shell command that prints a number for each successful result, in a fork of it; higher is better")
	f.StringVar(&req.Name, "name", "", "prefix of the cells' names: NAME-1, NAME-2")
	f.BoolVar(&req.DiscardLosers, "discard-losers", false, "give up all results but the winner's")
	f.Lookup("detach").Usage = "print the race's id when it has started, and return; pando race attach follows it"
	f.Lookup("prompt").Usage = "with --agent: the task, with fields as {{.NAME}}"
	for _, name := range []string{"cell", "on-success", "dry-run", "detach-keys", "continue", "idle-pause"} {
		if l := f.Lookup(name); l != nil {
			l.Hidden = true
		}
	}
	complete(c, "until", "all", "first")
	c.AddCommand(a.raceLsCmd(), a.raceShowCmd(), a.raceAttachCmd(), a.raceStopCmd())
	return c
}

// raceAgent has the attempts of a race be the work of an agent, if one is named.
func (a *app) raceAgent(cmd *cobra.Command, r *runFlags, name string, of *api.AgentRequest, withHome *[]string) error {
	if name == "" {
		for _, flag := range []string{"prompt", "autonomy", "model-url", "trust-repository", "with-home", "mode", "acknowledge", "reason"} {
			if cmd.Flags().Changed(flag) {
				return usage("--%s is for a race of agents: add --agent NAME", flag)
			}
		}
		return nil
	}
	known, err := agentNamed(name)
	if err != nil {
		return err
	}
	if of.Prompt == "" {
		return usage("a race of agents needs a task: --prompt TEXT")
	}
	of.Name = known.About().Name
	r.req.Agent = of
	r.ready = func() error {
		left, err := a.takeHome(of, known, *withHome)
		if len(left) > 0 {
			a.say("pando: of your home stays outside: %s", staysWords(left))
		}
		return err
	}
	return nil
}

// raceFrom completes a request with what the race begins with, and what this process has for its attempts.
func (a *app) raceFrom(cmd *cobra.Command, r *runFlags, req *api.RaceRequest, of []string) error {
	anew := len(of) == 0
	if !anew {
		if of[0] == "" {
			return usage("name a template or a cell, or leave it out")
		}
		if cmd.Flags().Changed("from") {
			return usage("give --from or a template or cell, not both")
		}
		_, err := a.client.Template(cmd.Context(), of[0])
		if e, ok := errors.AsType[*api.Error](err); err != nil && (!ok || e.Kind != "not-found" && e.Kind != "invalid") {
			return err
		}
		if err == nil && !strings.Contains(of[0], "@") {
			req.Template, r.noConfig = of[0], true
		} else {
			req.Cell, r.req.Cell = of[0], strings.Split(of[0], "@")[0] // for the defaults: those of an existing cell
		}
	}
	if err := a.useDefaults(cmd, r); err != nil {
		return err
	}
	if r.ready != nil {
		if err := r.ready(); err != nil {
			return err
		}
	}
	r.req.Cell = ""
	if err := a.complete(cmd, r, anew); err != nil {
		return err
	}
	r.req.OnSuccess, r.req.TTY = "", false
	if !anew {
		r.req.Prefer = ""
	}
	req.Attempt = r.req
	return nil
}

// readRows reads a file of rows: a list of maps in YAML, or CSV with a header.
func readRows(flag, name string) ([]map[string]string, error) {
	if name == "" {
		return nil, nil
	}
	wrong := func(format string, args ...any) error {
		return &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot read --%s %s: ", flag, printable(name)) + fmt.Sprintf(format, args...), Hint: "write a list of maps in YAML (- hint: text), or CSV with a header"}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, &api.Error{Kind: "not-found", Message: fmt.Sprintf("cannot read --%s: %v", flag, err), Hint: "name a file"}
	}
	if len(b) > maxTemplateFile {
		return nil, wrong("it is larger than %s", size(maxTemplateFile))
	}
	var rows []map[string]string
	if strings.EqualFold(filepath.Ext(name), ".csv") {
		table, err := csv.NewReader(strings.NewReader(string(b))).ReadAll()
		if err != nil {
			return nil, wrong("%v", err)
		}
		for i, line := range table {
			if i == 0 {
				continue
			}
			row := map[string]string{}
			for j, head := range table[0] {
				head = strings.TrimSpace(head)
				if _, twice := row[head]; twice {
					return nil, wrong("column %q is there twice", head)
				}
				row[head] = line[j]
			}
			rows = append(rows, row)
		}
	} else {
		var list []map[string]any
		if err := yaml.Unmarshal(b, &list); err != nil {
			return nil, wrong("%v", err)
		}
		for i, in := range list {
			row := map[string]string{}
			for k, v := range in {
				switch v.(type) {
				case map[string]any, []any, nil:
					return nil, wrong("row %d: field %q is no text, number or truth value", i+1, k)
				}
				row[k] = fmt.Sprint(v)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, wrong("it has no rows")
	}
	return rows, nil
}

// race starts a race, and follows it unless it is detached.
func (a *app) race(ctx context.Context, req api.RaceRequest, detach bool) error {
	p := &progress{a: a}
	p.show(api.Progress{Step: stepStarting})
	race, err := a.client.StartRace(ctx, req)
	if p.clear(); err != nil {
		return err
	}
	if detach {
		return a.print(race, func(w io.Writer) { fmt.Fprintln(w, race.ID) })
	}
	return a.followRace(ctx, race, true)
}

// followRace follows a race to its end, across restarts of the daemon, and prints how it ended. owned says that an interruption
// of this command is one of the race.
func (a *app) followRace(ctx context.Context, race api.Race, owned bool) error {
	b := &raceBoard{a: a, over: make(chan struct{}), told: map[int]string{}, notes: map[string]bool{}}
	b.begin(race)
	ended := sync.OnceFunc(b.end)
	defer ended()
	lost := time.Time{}
	wait := 50 * time.Millisecond
	for race.State != api.RaceEnded {
		var err error
		for now, ferr := range a.client.FollowRace(ctx, race.ID) {
			if err = ferr; err != nil {
				break
			}
			if !lost.IsZero() {
				b.say("pando: connected again")
				lost, wait = time.Time{}, 50*time.Millisecond
			}
			race = now
			b.show(race)
		}
		if race.State == api.RaceEnded {
			break
		}
		if ctx.Err() != nil {
			ended()
			if !owned {
				a.say("pando: race %s goes on: pando race attach %s", race.ID, race.ID)
				return &exitError{api.ExitInterrupted}
			}
			a.say("pando: ending race %s with its attempts", race.ID)
			final, ierr := a.client.InterruptRace(context.WithoutCancel(ctx), race.ID)
			if ierr != nil {
				return ierr
			}
			race = final
			break
		}
		if e, ok := errors.AsType[*api.Error](err); ok && e.Kind != "unavailable" && e.Kind != "interrupted" {
			ended()
			return err
		}
		if lost.IsZero() {
			lost = time.Now()
			b.say("pando: lost the daemon; race %s continues, connecting again", race.ID)
		} else if time.Since(lost) > reconnectWindow {
			ended()
			a.say("pando: race %s goes on with the next daemon: pando race attach %s", race.ID, race.ID)
			if err == nil {
				err = &api.Error{Kind: "unavailable", Message: "lost the daemon", Hint: "run it again: pando race attach " + race.ID}
			}
			return err
		}
		time.Sleep(wait)
		wait = min(2*wait, time.Second)
	}
	b.show(race)
	ended()
	return a.raceEnded(race)
}

// raceEnded prints how a race ended, and sets the exit code.
func (a *app) raceEnded(race api.Race) error {
	switch {
	case race.Cause != "":
		a.exit = api.ExitInterrupted
	case race.Winner == "":
		a.exit = 1
	}
	if a.json {
		return json.NewEncoder(a.stdout).Encode(map[string]any{"race": race})
	}
	a.tableOfAttempts(a.stdout, race)
	if race.Error != nil {
		return race.Error
	}
	if race.Winner == "" {
		a.say("pando: %s: no winner: %s", race.ID, printable(race.Why))
		a.say("pando: pando compare %s | pando diff %s", race.ID, race.Attempts[0].CellName)
		return nil
	}
	a.say("pando: %s: the winner is %s: %s", race.ID, race.Winner, printable(race.Why))
	a.say("pando: pando diff %s | pando accept --apply %s | pando compare %s", race.Winner, race.Winner, race.ID)
	return nil
}

// raceWork is what the attempts of a race do, in words.
func raceWork(r *api.Race) string {
	if r.Agent != "" {
		return strings.TrimSpace(r.Agent + " " + r.Prompt + " " + strings.Join(r.Command, " "))
	}
	return strings.Join(r.Command, " ")
}

func (a *app) raceLsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List races", Args: cobra.NoArgs,
		Long: "List races, newest first. Of those that have ended the last 200 are kept.", Example: "  pando race ls",
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client.Races(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				t := a.newTable(w)
				t.row("RACE", "NAME", "STATE", "ATTEMPTS", "WINNER", "STARTED", "COMMAND")
				for _, r := range list {
					winner := r.Winner
					if winner == "" {
						winner = "–"
					}
					state := r.State
					if r.Cause != "" {
						state = r.Cause
					} else if r.Error != nil {
						state = "failed"
					}
					t.row(r.ID, r.Name, state, fmt.Sprint(len(r.Attempts)), winner, ago(r.Created), cut(raceWork(&r), 40))
				}
				t.flush()
			})
		},
	}
}

func (a *app) raceShowCmd() *cobra.Command {
	return &cobra.Command{
		Use: "show RACE", Short: "Show a race with its attempts", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRaces,
		Long: "Show a race with its attempts as they are now. The beginning of an id names it.", Example: "  pando race show x-1a2b",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.client.Race(cmd.Context(), args[0], false)
			if err != nil {
				return err
			}
			return a.print(r, func(w io.Writer) {
				how := r.State
				if r.Cause != "" {
					how = r.Cause
				}
				fmt.Fprintf(w, "race      %s, %s\n", r.ID, how)
				fmt.Fprintf(w, "from      %s\n", printable(r.From))
				fmt.Fprintf(w, "command   %s\n", printable(raceWork(&r)))
				for _, l := range [][2]string{{"check", r.Check}, {"score", r.Score}, {"winner", r.Winner}, {"why", r.Why}} {
					if l[1] != "" {
						fmt.Fprintf(w, "%-9s %s\n", l[0], printable(l[1]))
					}
				}
				for _, n := range r.Notes {
					fmt.Fprintf(w, "note      %s\n", printable(n))
				}
				if r.Error != nil {
					fmt.Fprintf(w, "error     %s\n", printable(r.Error.Message))
				}
				fmt.Fprintln(w)
				a.tableOfAttempts(w, r)
			})
		},
	}
}

func (a *app) raceAttachCmd() *cobra.Command {
	return &cobra.Command{
		Use: "attach RACE", Short: "Follow a race to its end", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRaces,
		Long: "Follow a race to its end, as pando race does. Ctrl-C ends this command alone: pando race stop ends the race.", Example: "  pando race attach x-1a2b",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.client.Race(cmd.Context(), args[0], false)
			if err != nil {
				return err
			}
			return a.followRace(cmd.Context(), r, false)
		},
	}
}

func (a *app) raceStopCmd() *cobra.Command {
	return &cobra.Command{
		Use: "stop RACE", Short: "End a race with its attempts", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRaces,
		Long: "End a race with its attempts. What they have done is kept in their cells, as results that are pending.", Example: "  pando race stop x-1a2b",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.client.InterruptRace(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(r, func(w io.Writer) { a.tableOfAttempts(w, r) })
		},
	}
}

// completeRaces completes the ids of races.
func (a *app) completeRaces(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.client.Races(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, r := range list {
		out = append(out, r.ID+"\t"+r.State+" "+r.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
