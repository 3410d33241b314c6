package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) replayCmd() *cobra.Command {
	var req api.ReplayRequest
	var env []string
	var then bool
	var keys string
	c := &cobra.Command{
		Use:   "replay [flags] [RUN] [--then -- COMMAND…]",
		Short: "Bring back the result of a run from its patch, or execute it again and compare",
		Long: `Bring back the result of a run in a new cell: the files before it, with the patch that it
left. Nothing runs. The receipt's signature is verified first; then the digests of the
files before, of the patch and of the files after are compared with it.

--verify executes the command again instead, in a new cell from the files before the run,
with its policy and limits, without network, credentials and writable mounts. It names the
first divergence: output, exit code or file. The new cell is removed when nothing differs.

--until gives the cell at a state within the run: before, after, a checkpoint of its cell,
turn:N of its agent, step:N, or event:N, the newest checkpoint that is not later than that
event. --then -- COMMAND… goes on from there with a governed run in the new cell.

The exit code is 7 when something differs.`,
		Example: `  pando replay r-1a2b --name again
  pando replay r-1a2b --verify --env SOURCE_DATE_EPOCH=1700000000
  pando replay app:latest --until turn:3 --then -- make test`,
		ValidArgsFunction: a.completeRuns,
		Args: func(cmd *cobra.Command, args []string) error {
			n := cmd.ArgsLenAtDash()
			switch {
			case n < 0 && !then && len(args) <= 1, then && n >= 0 && n <= 1 && len(args) > n:
				return nil
			case then:
				return usage("write the command that goes on after --: pando replay RUN --then -- COMMAND…")
			case n >= 0:
				return usage("a command goes with --then")
			}
			return usage("it takes one run")
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			command := []string(nil)
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, command = args[:n], args[n:]
			}
			if then && req.Verify {
				return usage("--verify executes the whole run; --then goes on without it")
			}
			leave, err := parseKeys(keys)
			if err != nil {
				return err
			}
			if req.Env, err = passEnv(env); err != nil {
				return err
			}
			if req.From != "" && !a.remote {
				if req.From, err = filepath.Abs(req.From); err != nil {
					return err
				}
			}
			res, err := a.client.Replay(cmd.Context(), arg(args), req)
			if err != nil {
				return err
			}
			if !res.Identical {
				a.exit = api.ExitVerifyFailure
			}
			if then && res.Identical {
				a.sayReplay(res)
				next := api.RunRequest{Command: command, Cell: res.CellName}
				if !a.remote {
					next.CallerEnv, next.CallerDir = callerEnv(), a.dir
				}
				return a.run(cmd.Context(), next, leave, false)
			}
			return a.print(res, func(w io.Writer) { a.showReplay(w, res) })
		},
	}
	f := c.Flags()
	f.BoolVar(&req.Verify, "verify", false, "execute the command again, and compare output, exit code and files")
	f.StringVar(&req.Until, "until", "", "give the cell at a state within the run: before, after, N, turn:N, step:N, event:N")
	f.BoolVar(&then, "then", false, "go on from there: run the command after -- in the new cell")
	f.StringVar(&req.From, "from", "", "begin with this directory, when the files before the run are gone; its content digest must be theirs")
	f.StringVar(&req.Name, "name", "", "name of the new cell (default: replay-N)")
	f.StringArrayVarP(&env, "env", "e", nil, "with --verify: set a variable: NAME=VALUE, or NAME to pass your own")
	f.BoolVar(&req.IgnoreTimes, "ignore-times", false, "with --verify: compare output without dates, times and durations")
	f.BoolVar(&req.Keep, "keep", false, "with --verify: keep the new cell, also when nothing differs")
	terminalFlags(f)
	detachFlag(c, &keys)
	complete(c, "until", "before", "after", "turn:", "step:", "event:")
	return c
}

// showReplay prints what came out of a replay.
func (a *app) showReplay(w io.Writer, r api.Replay) {
	t := a.newTable(w)
	for _, l := range r.Levels {
		text := l.Text
		if text == "" {
			text = replayValue(l.Recorded)
		}
		t.row(l.Level, l.Is, printable(text))
	}
	t.flush()
	a.sayReplay(r)
}

// replayValue shortens a digest.
func replayValue(s string) string {
	if strings.HasPrefix(s, "sha256:") {
		return short(s)
	}
	return s
}

// sayReplay prints what is to be known about a replay, and its last line.
func (a *app) sayReplay(r api.Replay) {
	a.sayNotes(r.Notes)
	where := ""
	if r.Cell != "" {
		where = fmt.Sprintf("; cell %s has the files", printable(r.CellName))
	}
	switch {
	case !r.Identical:
		a.say("%s differs: %s%s", r.Run, printable(r.First), where)
	case r.Mode == "verify":
		a.say("%s again: identical%s", r.Run, where)
	case r.Mode == "until":
		a.say("cell %s is as %s was then", printable(r.CellName), r.Run)
	default:
		a.say("cell %s has what %s left: identical", printable(r.CellName), r.Run)
	}
}
