package engine

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// again is a run that executes another's command again: what governs it is what governed that one.
type again struct {
	of      string
	policy  policy.Result
	agent   *agentPlan // nil: a command
	answers *os.File   // the recording that answers it, in clear; nil: none does
}

// verify executes the command of the run again, in a cell that begins with the files before it, and compares what comes out. Nothing is
// reached from there, lent to it, or written outside of it.
func (r *replay) verify(ctx context.Context) error {
	const opName = "engine.Replay"
	switch {
	case r.run.Agent != "" && r.unplayable() != "":
		return cell.Errorf(cell.Unsupported, opName, "pando replay "+r.run.ID+" brings back its files; with --until turn:N as of a turn", "cannot execute run %s again: it was of an agent, and %s", r.run.ID, r.unplayable())
	case slices.ContainsFunc(r.run.Command, func(a string) bool { return strings.Contains(a, receipt.Redacted) }):
		return cell.Errorf(cell.Unsupported, opName, "pass secrets as credentials, not as arguments", "cannot execute run %s again: there was a secret in its command, which is not recorded", r.run.ID)
	case !policy.Isolates(r.run.Backend):
		return cell.Errorf(cell.Unsupported, opName, "pando replay "+r.run.ID+" --until after brings back its files", "cannot execute run %s again: it was %s, and what it did outside of its files it would do again", r.run.ID, api.NotIsolated)
	case r.run.After == nil || r.run.ExitCode == nil:
		return cell.Errorf(cell.Conflict, opName, "see pando show "+r.run.ID, "cannot execute run %s again: how it ended is not known", r.run.ID)
	}
	if ok, err := r.evidence(); !ok || err != nil {
		return err
	}
	was, err := evidence.ManifestPolicy(&r.run)
	if err != nil {
		return err
	}
	c, first, err := r.before(ctx)
	if err != nil || c == nil {
		return err
	}
	err = r.alone(ctx, c, first, func() error {
		c.Host, c.Offline = r.src.Hostname(), true
		return r.e.reg.Commit(c)
	})
	if err != nil {
		return r.drop(ctx, c, err)
	}
	answers, err := r.answers()
	if err != nil {
		return r.drop(ctx, c, err)
	}
	if answers != nil {
		defer answers.Close()
	}
	now, err := r.execute(ctx, c, was, answers)
	if err != nil {
		return r.drop(ctx, c, err)
	}
	r.out.Again = now.ID
	if err := r.compare(ctx, &now); err != nil {
		return r.drop(ctx, c, err)
	}
	if r.req.Keep || slices.ContainsFunc(r.out.Levels, func(l api.ReplayLevel) bool { return l.Is == api.ReplayDiffers }) {
		return nil
	}
	return r.drop(ctx, c, nil)
}

// setUp is what governs the command: the policy of the run, without what leads out of the cell.
func (r *replay) setUp(was *policy.Result, answered bool) policy.Result {
	p := *was
	p.Env = slices.Clone(r.req.Env)
	if answered {
		p.Env = append(r.placeholders(was), p.Env...)
	}
	set := slices.Clone(p.Environment.Set)
	var missing []string
	given := func(name string) bool {
		return slices.ContainsFunc(p.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	for _, name := range set {
		if !given(name) {
			missing = append(missing, name)
		}
	}
	for _, kv := range p.Env {
		name, _, _ := strings.Cut(kv, "=")
		set = append(set, name)
	}
	slices.Sort(set)
	p.Environment.Set = slices.Compact(set)
	if len(missing) > 0 {
		p.Environment.Set = slices.DeleteFunc(p.Environment.Set, func(name string) bool { return slices.Contains(missing, name) })
		r.note("the values of its variables are not recorded: give them with --env NAME=VALUE: %s", join(missing))
	}
	switch {
	case answered:
		r.answered(&p)
	case p.Talks():
		r.note("the command has no network here")
		fallthrough
	default:
		p.Network.Allow, p.Network.Ask, p.Network.Bounds, p.Network.Mode, p.Credentials = []policy.Rule{}, []policy.Rule{}, nil, policy.ModeNone, []policy.Credential{}
	}
	p.Files.Mounts = slices.Clone(p.Files.Mounts)
	for i := range p.Files.Mounts {
		p.Files.Mounts[i].Writable = false
	}
	if n := len(p.Files.Mounts); n > 0 {
		r.note("what it was shown of the host is as it is now, and read-only: %s", p.Files.Mounts[0].Target)
	}
	if len(r.run.Caches) > 0 {
		r.note("its caches are as they are now")
	}
	if len(r.run.Services) > 0 {
		r.note("its services begin as at the checkpoint before the run")
	}
	if r.run.Interactive {
		r.note("something was typed at it, which is not recorded")
	}
	if r.run.Before.Number > 1 {
		r.note("processes, home and /tmp that earlier commands left in its cell are not a part of what is recorded")
	}
	return p
}

// execute starts the command in the new cell, and waits for its end.
func (r *replay) execute(ctx context.Context, c *state.Cell, was *policy.Result, answers *os.File) (state.Run, error) {
	by := *viewOf(ctx)
	by.again = &again{of: r.run.ID, policy: r.setUp(was, answers != nil), answers: answers}
	if r.run.Agent != "" {
		var err error
		if by.again.agent, err = r.agent(); err != nil {
			return state.Run{}, err
		}
	}
	req := api.RunRequest{
		Cell: c.Name, Command: r.run.Command, Env: r.req.Env, Workdir: r.run.In.Workdir, TTY: r.run.TTY,
		OnFailure: "pending", OnSuccess: "pending", CallerEnv: r.src.Setup.Env,
	}
	if req.TTY {
		req.Rows, req.Cols = 40, 120
		r.note("the size of its terminal is not recorded: here it has %d lines of %d columns", req.Rows, req.Cols)
	}
	started, err := r.e.StartRun(by.with(ctx), req)
	if err != nil {
		return state.Run{}, err
	}
	ended, err := r.e.runs.Wait(ctx, cell.RunID(started.ID))
	if ctx.Err() != nil {
		r.e.runs.Interrupt(cell.RunID(started.ID), "the replay was given up")
	}
	if err != nil {
		return state.Run{}, err
	}
	if e := ended.Error; e != nil {
		return state.Run{}, cell.Errorf(cell.Kind(e.Kind), "engine.Replay", e.Hint, "cannot execute the command again: %s", e.Message)
	}
	return r.e.reg.Run(cell.RunID(ended.ID))
}

// compare compares what came out of the command with what did the first time.
func (r *replay) compare(ctx context.Context, now *state.Run) error {
	was := &r.run
	if was.ImageID != now.ImageID {
		r.note("its image is another one: %s, and was %s", cmp.Or(now.ImageID, "none"), cmp.Or(was.ImageID, "none"))
	}
	r.wire(was, now)
	for _, s := range []struct {
		name     string
		was, now state.Output
	}{{"stdout", was.Output.Stdout, now.Output.Stdout}, {"stderr", was.Output.Stderr, now.Output.Stderr}} {
		if err := r.output(s.name, s.was, s.now, now); err != nil {
			return err
		}
	}
	how := func(r *state.Run) string {
		s := strconv.Itoa(*r.ExitCode)
		for _, more := range []string{r.Signal, r.Cause} {
			if more != "" {
				s += ", " + more
			}
		}
		return s
	}
	if now.ExitCode == nil || now.After == nil {
		return cell.Errorf(cell.Conflict, "engine.Replay", "see pando show "+now.ID, "how the command ended is not known")
	}
	r.same("exit code", how(was), how(now), "it was "+how(was)+" and is "+how(now))
	return r.files(ctx, now)
}

// files compares the files that both left.
func (r *replay) files(ctx context.Context, now *state.Run) error {
	if r.same("files", r.run.After.ContentDigest, now.After.ContentDigest, "") {
		return nil
	}
	l := &r.out.Levels[len(r.out.Levels)-1]
	l.Text = "which of them can not be told: the result of the run is gone"
	is, err := r.e.reg.Checkpoint(now.In.After)
	if err != nil {
		return err
	}
	found, err := r.e.tree(ctx, &is)
	if err != nil {
		return err
	}
	k, err := r.e.reg.Checkpoint(r.run.In.After)
	if err != nil || k.Content.String() != r.run.After.ContentDigest {
		return nil
	}
	recorded, err := r.e.trees.get(k.Tree)
	if err != nil {
		return nil // it is collected
	}
	n, first, err := result.FirstDifference(recorded, found)
	if err != nil {
		return nil // parts of it are
	}
	l.Text = counted(n, "file") + " differ, the first is " + diff.Quote(first)
	if n == 1 {
		l.Text = diff.Quote(first) + " differs"
	}
	return nil
}

// output compares a stream of output. What is told of it beyond its digest is told of what was kept.
func (r *replay) output(name string, was, is state.Output, now *state.Run) error {
	if r.same(name, was.SHA256, is.SHA256, "") {
		return nil
	}
	l := &r.out.Levels[len(r.out.Levels)-1]
	l.Text = fmt.Sprintf("%d bytes, and were %d", is.Bytes, was.Bytes)
	a, want, err := r.e.evidence.SealedFile(&r.run, name)
	if err != nil {
		return nil // it is gone
	}
	defer a.Close()
	if d, err := cell.SumReader(a); err != nil || d != want {
		return err
	}
	b, err := evidence.OpenRecord(now.Folder, name)
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := a.Seek(0, io.SeekStart); err != nil {
		return err
	}
	d, err := compareLines(a, b)
	if err != nil {
		return err
	}
	whole := was.Kept == was.Bytes && is.Kept == is.Bytes
	switch {
	case d.line == 0: // beyond what was kept
	case d.onlyTimes && whole && r.req.IgnoreTimes:
		l.Is, l.Text = api.ReplaySame, fmt.Sprintf("but for times in %s, from line %d", counted(d.lines, "line"), d.line)
	case d.onlyTimes && whole:
		l.Text = fmt.Sprintf("%s, from line %d, and in times alone (--ignore-times leaves these out): %s", counted(d.lines, "line"), d.line, d.text())
	default:
		l.Text = fmt.Sprintf("line %d: %s", d.line, d.text())
	}
	return nil
}

// outputDiff is how two outputs differ.
type outputDiff struct {
	line      int    // the first that differs, from 1; 0: none does
	was, is   string // that line
	lines     int    // that differ, where onlyTimes
	onlyTimes bool   // there are as many lines, and they differ in times alone
}

func (d *outputDiff) text() string {
	return fmt.Sprintf("%s, and was %s", quotedLine(d.is), quotedLine(d.was))
}

// quotedLine is a line of output, for people.
func quotedLine(s string) string {
	const most = 120
	s = redactor.String(strings.ToValidUTF8(strings.TrimRight(s, "\r\n"), "\ufffd"))
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.Quote(strings.ToValidUTF8(s, ""))
}

// longestLine bounds what of a line is compared at once, in bytes; a longer one counts as several.
const longestLine = 64 << 10

// compareLines finds where two outputs begin to differ, and whether they differ in times alone.
func compareLines(a, b io.Reader) (d outputDiff, err error) {
	x, y := bufio.NewReaderSize(a, longestLine), bufio.NewReaderSize(b, longestLine)
	next := func(r *bufio.Reader) (string, bool, error) {
		line, err := r.ReadSlice('\n')
		if err == bufio.ErrBufferFull || err == io.EOF {
			err = nil
		}
		return string(line), len(line) > 0, err
	}
	d.onlyTimes = true
	for n := 1; ; n++ {
		was, more, err := next(x)
		if err != nil {
			return d, err
		}
		is, moreToo, err := next(y)
		if err != nil {
			return d, err
		}
		if !more && !moreToo {
			return d, nil
		}
		if was == is {
			continue
		}
		if d.line == 0 {
			d.line, d.was, d.is = n, was, is
		}
		if d.lines++; timeless(was) != timeless(is) || more != moreToo {
			d.onlyTimes = false
			return d, nil
		}
	}
}

// times are what programs write of times: dates, times of day, durations.
var times = sync.OnceValue(func() *regexp.Regexp {
	const day = `\d{4}-\d{2}-\d{2}`
	const clock = `\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?`
	const names = `(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?:[a-z]*),? +(?:\d{1,2} +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*(?: +\d{1,2})?(?:,? +\d{4})?`
	const took = `\d+(?:\.\d+)? ?(?:ns|µs|us|ms|s|sec|secs|seconds?|minutes?|m\d+(?:\.\d+)?s)\b`
	return regexp.MustCompile(day + `(?:[T ]` + clock + `)?|` + names + `|` + clock + `|` + took)
})

// timeless is a line without the times in it. How they are padded counts not.
func timeless(line string) string {
	bare := times().ReplaceAllString(line, "<time>")
	if bare == line {
		return line
	}
	text, whole := strings.CutSuffix(bare, "\n")
	return fmt.Sprint(strings.Join(strings.Fields(text), " "), whole)
}

// counted is a number of things, in words.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// shortDigest is the beginning of a digest, for people.
func shortDigest(d string) string {
	hex := strings.TrimPrefix(d, "sha256:")
	return hex[:min(len(hex), 12)]
}
