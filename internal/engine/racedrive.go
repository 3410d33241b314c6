package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/finding"
	"github.com/pando-dev/pando/internal/race"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// maxStarts is how often an attempt is started: once more when its command ended with what ran it.
const maxStarts = 2

// races are the races that this daemon drives.
type races struct {
	mu sync.Mutex // guards what follows
	m  map[cell.RaceID]*racing
}

// racing is a race on its way. Its records say where it is, so that the next daemon goes on from there.
type racing struct {
	e     *Engine
	v     *View
	id    cell.RaceID
	req   api.RaceRequest
	words [][]string
	lacks []string        // what of the request was known to an earlier daemon alone
	ctx   context.Context // ends with the daemon, and when the race is to end
	stop  context.CancelCauseFunc

	mu      sync.Mutex // guards what follows, and is held while records of the race are changed
	rec     state.Race
	list    []state.Attempt // by number
	scoring map[int]bool
	changed chan struct{} // closed when something has changed
}

// errEnough is why attempts are stopped when enough have succeeded.
var errEnough = errors.New("enough attempts have succeeded")

// interruptedWhy says why a race that was interrupted has no winner.
const interruptedWhy = "the race was interrupted before it was decided"

// errInterrupted is why they are stopped when the race is interrupted.
var errInterrupted = errors.New("the race was interrupted")

// drive carries out a race in the background.
func (e *Engine) drive(id cell.RaceID, req api.RaceRequest, v *View, lacks []string) {
	d := &racing{e: e, v: v, id: id, req: req, lacks: lacks, scoring: map[int]bool{}, changed: make(chan struct{})}
	d.ctx, d.stop = context.WithCancelCause(e.life)
	e.races.mu.Lock()
	err := d.load()
	goesOn := err == nil && d.rec.State != api.RaceEnded // it may have been interrupted before this
	if goesOn {
		if e.races.m == nil {
			e.races.m = map[cell.RaceID]*racing{}
		}
		e.races.m[id] = d
	}
	e.races.mu.Unlock()
	if !goesOn {
		d.stop(nil)
		if err != nil {
			e.log.Error("cannot go on with a race", "race", id, "error", err)
			e.background(func(context.Context) { e.insist(id, func() error { return e.endUndriven(id, err) }) })
		}
		return
	}
	e.background(func(ctx context.Context) {
		defer func() {
			e.races.mu.Lock()
			delete(e.races.m, id)
			e.races.mu.Unlock()
			d.tell()
			d.stop(nil)
		}()
		d.carryOut(ctx)
	})
}

// raceAgain is how long what could not be recorded of a race waits for the next try.
const raceAgain = 3 * time.Second

// insist does what a race cannot go on without until that works, or the daemon ends.
func (e *Engine) insist(id cell.RaceID, do func() error) {
	for {
		err := do()
		if err == nil || e.life.Err() != nil {
			return
		}
		e.log.Error("cannot go on with a race; it is tried again", "race", id, "error", err)
		select {
		case <-time.After(raceAgain):
		case <-e.life.Done():
			return
		}
	}
}

// recoverRaces goes on with the races of an earlier daemon.
func (e *Engine) recoverRaces() {
	for _, r := range e.reg.Races() {
		if r.State != api.RaceEnded {
			e.drive(r.ID, r.Spec, e.asRace(&r), append([]string{}, r.Unkept...))
		}
	}
}

// driven is a race that this daemon drives; nil for another.
func (e *Engine) driven(id cell.RaceID) *racing {
	e.races.mu.Lock()
	defer e.races.mu.Unlock()
	return e.races.m[id]
}

// racing reports whether a race is under way.
func (e *Engine) racing() bool {
	e.races.mu.Lock()
	defer e.races.mu.Unlock()
	return len(e.races.m) > 0
}

// raceChanged is closed when a race has changed; nil for one that is not driven.
func (e *Engine) raceChanged(id cell.RaceID) <-chan struct{} {
	d := e.driven(id)
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// tell wakes those that follow the race.
func (d *racing) tell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *racing) isScoring(number int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.scoring[number]
}

// change changes the record of the race.
func (d *racing) change(f func(r *state.Race)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.rec
	f(&next)
	if err := d.e.reg.Commit(&next); err != nil {
		return err
	}
	d.rec = next
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

// changeAttempt changes the record of an attempt, from 0.
func (d *racing) changeAttempt(i int, f func(a *state.Attempt)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.list[i]
	f(&next)
	if err := d.e.reg.Commit(&next); err != nil {
		return err
	}
	d.list[i] = next
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

func (d *racing) attempt(i int) state.Attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.list[i]
}

func (d *racing) record() state.Race {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rec
}

// interrupt ends the race with its attempts. It is recorded first: a daemon that ends meanwhile leaves that to the next.
func (d *racing) interrupt() error {
	err := d.change(func(r *state.Race) {
		if r.State != api.RaceEnded {
			r.Cause = cell.CauseInterrupted
		}
	})
	if err != nil {
		return err
	}
	d.stop(errInterrupted)
	return nil
}

// stopped reports whether attempts are to end. The end of the daemon does not end them.
func (d *racing) stopped() bool { return d.ctx.Err() != nil && d.e.life.Err() == nil }

// carryOut is the life of a race.
func (d *racing) carryOut(ctx context.Context) {
	err := d.run(ctx)
	if d.e.life.Err() != nil {
		return // the next daemon goes on
	}
	d.e.insist(d.id, func() error {
		if err != nil {
			return d.fail(ctx, err)
		}
		return d.decide(ctx)
	})
}

// load reads what is recorded of the race.
func (d *racing) load() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rec, d.list, err = d.e.reg.Race(d.id); err != nil {
		return err
	}
	if d.words, _, err = fillRace(&d.req); err != nil {
		return err
	}
	if d.rec.Cause != "" {
		d.stop(errInterrupted)
	}
	return nil
}

// run makes the cells of the race, if an earlier daemon did not, and has its attempts run.
func (d *racing) run(ctx context.Context) error {
	if rec := d.record(); rec.State == api.RacePreparing {
		if rec.Cause != "" {
			return errInterrupted
		}
		if d.lacks != nil {
			return cell.Errorf(cell.Interrupted, "engine.race", "start it again", "the daemon ended before the cells of the race were made")
		}
		if err := d.prepare(d.ctx); err != nil {
			if d.stopped() { // an error of the work may be because of that
				return context.Cause(d.ctx)
			}
			return err
		}
	}
	failpoint.Step("run the attempts of a race")
	turns := make(chan struct{}, max(d.record().Parallel, 1))
	var all sync.WaitGroup
	for i := range d.list {
		select {
		case turns <- struct{}{}:
		case <-d.ctx.Done():
			turns = make(chan struct{}, len(d.list)) // those that wait are stopped, and not started
			turns <- struct{}{}
		}
		mine := turns
		all.Go(func() {
			defer func() { <-mine }()
			d.one(ctx, i)
		})
	}
	all.Wait()
	return nil
}

// prepare makes the cells of the attempts.
func (d *racing) prepare(ctx context.Context) error {
	rec, req := d.record(), &d.req
	name := rec.Name
	if rec.Count == 1 {
		name = attemptName(name, 1)
	}
	var made []api.Cell
	if req.Template != "" {
		res, err := d.v.ForkTemplate(ctx, req.Template, api.WarmForkRequest{Count: rec.Count, Name: name}, nil)
		if err != nil {
			return err
		}
		for _, f := range res.Forks {
			if f.Error != nil {
				return f.Error
			}
			made = append(made, f.Cell)
		}
	} else {
		id, number := cell.ID(req.Cell), 0
		if of, at, ok := strings.Cut(req.Cell, "@"); ok {
			id = cell.ID(of)
			number, _ = strconv.Atoi(at)
		}
		if req.Cell == "" {
			base, err := d.importSource(ctx, name)
			if err != nil {
				return err
			}
			id = base
		}
		res, err := d.v.Fork(ctx, id, api.ForkRequest{Number: number, Count: rec.Count, Name: name})
		if err != nil {
			return err
		}
		made = res.Cells
	}
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	byName := map[string]cell.ID{}
	for _, c := range made {
		byName[c.Name] = cell.ID(c.ID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.rec
	next.State = api.RaceRunning
	objects := []any{&next}
	list := slices.Clone(d.list)
	for i := range list {
		list[i].Cell = byName[attemptName(rec.Name, i+1)]
		objects = append(objects, &list[i])
	}
	if err := d.e.reg.Commit(objects...); err != nil {
		return err
	}
	d.rec, d.list = next, list
	return nil
}

// importSource makes the cell that the source of the race is imported into, once for all attempts.
func (d *racing) importSource(ctx context.Context, name string) (cell.ID, error) {
	a := &d.req.Attempt
	c, err := d.v.Create(ctx, api.CreateRequest{
		Name: baseName(d.record().Name), From: a.From, Repositories: a.Repositories, Upload: a.Upload, Backend: orElse(a.Backend, a.Prefer), Image: a.Image, Kernel: a.Kernel,
		Policy: a.Policy, Env: a.Env, WithSecret: a.WithSecret, Allow: a.Allow, Credentials: a.Credentials, Mounts: a.Mounts, ReadOnly: a.ReadOnly, Caches: a.Caches, Services: a.Services,
		CacheWrite: a.CacheWrite, Limits: limitsOfCell(a.Limits), CallerEnv: a.CallerEnv, CallerDir: a.CallerDir,
	})
	if err != nil {
		return "", err
	}
	id := cell.ID(c.ID)
	return id, d.change(func(r *state.Race) { r.Base = id })
}

func limitsOfCell(l api.Limits) api.Limits {
	l.Timeout = ""
	return l
}

// request is the run of an attempt in its cell, which has its source, its image and its services already.
func (d *racing) request(i int) (api.RunRequest, error) {
	req := attemptOf(&d.req, d.words[i], i)
	if len(d.lacks) > 0 {
		return req, cell.Errorf(cell.Unavailable, "engine.race", "lend secrets as credentials: pando help credential", "the daemon that began the race ended, and it alone knew %s, which looks like a secret", strings.Join(d.lacks, ", "))
	}
	if d.req.Cell == "" && d.req.Template == "" {
		req.From, req.Upload, req.Repositories, req.Backend, req.Prefer, req.Image, req.Kernel, req.WithSecret, req.Services = "", "", nil, "", "", "", "", nil, nil
	}
	c, err := d.e.reg.Cell(d.attempt(i).Cell)
	if err != nil || c.State == cell.Removed {
		return req, cell.Errorf(cell.NotFound, "engine.race", "start the race again", "cannot go on with attempt %d: its cell was removed", i+1)
	}
	req.Cell = string(c.ID) // by now another may have its name
	if d.lacks != nil {
		req.CallerEnv = c.Setup.Env // what the cell's image took from the caller's environment, which is in no record
	}
	return req, nil
}

// one brings an attempt to its end, from 0.
func (d *racing) one(ctx context.Context, i int) {
	over := func(state_, problem string) {
		d.e.insist(d.id, func() error {
			return d.changeAttempt(i, func(a *state.Attempt) { a.Over, a.Problem = state_, orElse(problem, a.Problem) })
		})
	}
	for d.attempt(i).Over == "" {
		id, err := d.start(ctx, i)
		if d.e.life.Err() != nil {
			return
		}
		switch {
		case err != nil && d.stopped():
			over(api.AttemptStopped, "")
			return
		case err != nil:
			over(api.AttemptFailed, err.Error())
			return
		}
		unhook := context.AfterFunc(d.ctx, func() {
			if d.e.life.Err() == nil {
				d.e.runs.Interrupt(id, context.Cause(d.ctx).Error())
			}
		})
		run, err := d.e.runs.Wait(ctx, id)
		unhook()
		if d.e.life.Err() != nil {
			return
		}
		if err != nil {
			over(api.AttemptFailed, err.Error())
			return
		}
		if d.lost(&run) && !d.stopped() && d.attempt(i).Starts < maxStarts {
			if err := d.again(ctx, i, &run); err == nil {
				continue
			}
		}
		how := d.judge(ctx, i, &run)
		if d.e.life.Err() != nil {
			return
		}
		over(how, "")
	}
	succeeded := 0
	for j := range d.list {
		if d.attempt(j).Over == api.AttemptSucceeded {
			succeeded++
		}
	}
	if race.Enough(d.req.Until, succeeded) {
		d.stop(errEnough)
	}
}

// start starts the run of an attempt, or finds the one that was started.
func (d *racing) start(ctx context.Context, i int) (cell.RunID, error) {
	a := d.attempt(i)
	if a.Run != "" {
		return a.Run, nil
	}
	if a.Starts > 0 { // by a daemon that ended before it could record the run
		for _, r := range d.e.reg.Runs(a.Cell) { // newest first; others may have worked in the cell
			if id := r.RunID(); id == a.Before {
				break
			} else if r.In.Race == d.id {
				return id, d.changeAttempt(i, func(a *state.Attempt) { a.Run = id })
			}
		}
	}
	if d.ctx.Err() != nil {
		return "", context.Cause(d.ctx)
	}
	req, err := d.request(i)
	if err != nil {
		return "", err
	}
	if a.Starts == 0 {
		if err := d.changeAttempt(i, func(a *state.Attempt) { a.Starts = 1 }); err != nil {
			return "", err
		}
	}
	failpoint.Step("start an attempt")
	run, err := d.v.StartRun(ctx, req)
	if err != nil {
		return "", err
	}
	id := cell.RunID(run.ID)
	return id, d.changeAttempt(i, func(a *state.Attempt) { a.Run = id })
}

// lost reports whether the command of a run did not come to an end of its own, because what ran it ended. One that was
// interrupted, on request, is not lost.
func (d *racing) lost(r *api.Run) bool {
	if r.ExitCode == nil && r.Error != nil {
		return r.Error.Subject == string(cell.Daemon)
	}
	return r.Cause == cell.CauseKeeperLost
}

// again has an attempt begin once more, with the files that it began with.
func (d *racing) again(ctx context.Context, i int, r *api.Run) error {
	if r.Verdict == string(cell.Pending) {
		if _, err := d.v.Discard(ctx, result.Target{Run: cell.RunID(r.ID)}, api.DiscardRequest{}); err != nil {
			return err
		}
	}
	return d.changeAttempt(i, func(a *state.Attempt) { a.Before, a.Run, a.Starts = a.Run, "", a.Starts+1 })
}

// judge says how an attempt ended, and records what is to be known for the ranking.
func (d *racing) judge(ctx context.Context, i int, r *api.Run) string {
	if d.lost(r) {
		if d.stopped() {
			return api.AttemptStopped
		}
		return api.AttemptLost
	}
	if d.stopped() && r.Cause == cell.CauseInterrupted {
		return api.AttemptStopped
	}
	id := cell.RunID(r.ID)
	add := func(f func(a *state.Attempt)) {
		if err := d.changeAttempt(i, f); err != nil {
			d.e.log.Error("cannot record an attempt", "race", d.id, "attempt", i+1, "error", err)
		}
	}
	added, deleted, unknown := 0, 0, false // what is not known must not rank as if there were nothing
	if diff, err := d.v.Diff(ctx, result.DiffRequest{Form: "json", Target: result.Target{Run: id}}); err == nil {
		for _, f := range diff.Files {
			added, deleted = added+f.Added, deleted+f.Deleted
		}
	} else if unknown = true; r.Error == nil && ctx.Err() == nil {
		add(func(a *state.Attempt) { a.Problem = "its changes cannot be read: " + err.Error() })
	}
	add(func(a *state.Attempt) { a.Added, a.Deleted = added, deleted })
	if r.Error != nil || r.ExitCode == nil || *r.ExitCode != 0 || r.Cause != "" || r.Check != nil && r.Check.ExitCode != 0 || unknown {
		return api.AttemptFailed
	}
	judged := &state.Check{}                         // by the race itself
	if d.req.Attempt.Check != "" && r.Check == nil { // what it needs was lost with a daemon
		c, err := d.check(i, id)
		if err != nil && d.stopped() {
			return api.AttemptStopped
		}
		if err != nil {
			add(func(a *state.Attempt) { a.Problem = "the check could not be run: " + err.Error() })
			return api.AttemptFailed
		}
		if add(func(a *state.Attempt) { a.Check = c }); c.ExitCode != 0 {
			return api.AttemptFailed
		}
		judged = c
	}
	if rep, err := d.v.Report(ctx, id); err == nil {
		var high []string
		for _, f := range rep.Findings {
			if f.Severity == api.SeverityHigh && !slices.Contains(high, f.Rule) {
				high = append(high, f.Rule)
			}
		}
		add(func(a *state.Attempt) { a.High = withJudged(high, judged.Restored, judged.Changed) })
	} else {
		add(func(a *state.Attempt) { a.Problem = "what is to be found in it is not known: " + err.Error() })
		return api.AttemptFailed
	}
	if d.req.Score != "" {
		d.score(i, id, add)
	}
	return api.AttemptSucceeded
}

// score has the scorer of the race look at a result.
func (d *racing) score(i int, id cell.RunID, add func(func(*state.Attempt))) {
	d.mu.Lock()
	d.scoring[i+1] = true
	d.mu.Unlock()
	d.tell()
	defer func() {
		d.mu.Lock()
		delete(d.scoring, i+1)
		d.mu.Unlock()
	}()
	by, st, stdout, stderr, err := d.look(i, id, d.req.Score)
	if err == nil {
		add(func(a *state.Attempt) { a.High = withJudged(a.High, by.restored, by.judges) })
	}
	switch {
	case err != nil:
	case by.problem != "":
		err = errors.New(by.problem)
	case st.Exit.Cause != "" || st.Exit.Code != 0:
		err = fmt.Errorf("the scorer ended with exit %d%s: %s", st.Exit.Code, because(st.Exit.Cause), endOfText(orElse(stderr, stdout)))
	default:
		var f float64
		if f, err = scoreOf(stdout); err == nil {
			add(func(a *state.Attempt) { a.Score = &f })
			return
		}
	}
	add(func(a *state.Attempt) { a.Scored = err.Error() })
}

// check has the check of the race look at a result, when its run could not.
func (d *racing) check(i int, id cell.RunID) (*state.Check, error) {
	a, st, stdout, stderr, err := d.look(i, id, d.req.Attempt.Check)
	if err != nil {
		return nil, err
	}
	return a.outcome(redactor.String(d.req.Attempt.Check), st, strings.TrimSpace(stdout+"\n"+stderr)), nil
}

// withJudged adds to the rules of severity high those on what judged an attempt, which the report of its run does not know when that had
// no check, or a scorer was the judge.
func withJudged(high, restored, judges []string) []string {
	high = slices.Clone(high)
	if len(restored) > 0 && !slices.Contains(high, finding.PinnedChanged) {
		high = append(high, finding.PinnedChanged)
	}
	if len(judges) > 0 && !slices.Contains(high, finding.CheckChanged) {
		high = append(high, finding.CheckChanged)
	}
	return high
}

// look runs a shell command in a fork of the result of an attempt, with what is pinned as it was before, and returns what it printed.
func (d *racing) look(i int, id cell.RunID, command string) (a *aside, st cell.Status, stdout, stderr string, err error) {
	e := d.e
	defer e.pins.Begin().End()
	r, err := e.reg.Run(id)
	if err != nil {
		return nil, st, "", "", err
	}
	c, err := e.reg.Cell(r.CellID())
	if err != nil {
		return nil, st, "", "", err
	}
	at, err := e.reg.Checkpoint(r.In.After)
	if err != nil {
		return nil, st, "", "", err
	}
	before, err := e.reg.Checkpoint(r.In.Before)
	if err != nil {
		return nil, st, "", "", err
	}
	req, err := d.request(i)
	if err != nil {
		return nil, st, "", "", err
	}
	p, err := e.plan(d.v.with(d.ctx), req)
	if err != nil {
		return nil, st, "", "", err
	}
	var out [3]*os.File
	defer func() { closeLogs(out) }() // as they are then
	for n := range 2 {
		if out[n], err = os.CreateTemp("", "pando-look-"); err != nil {
			return nil, st, "", "", err
		}
		os.Remove(out[n].Name())
	}
	a = &aside{
		of: &c, at: &at, before: &before, pins: r.In.Pins, command: command, env: p.policy.Env, timeout: r.In.Timeout, life: d.ctx,
		note:   func(text string) { e.log.Info("a command of a race", "race", d.id, "note", text) },
		output: func() ([3]*os.File, error) { return out, nil },
	}
	st, err = e.inFork(d.ctx, a)
	if err == nil && d.ctx.Err() != nil {
		err = context.Cause(d.ctx)
	}
	return a, st, tail(out[0]), tail(out[1]), err
}

func because(cause string) string {
	if cause == "" {
		return ""
	}
	return " (" + cause + ")"
}

// endOfText is the end of a text, for a line about it.
func endOfText(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return cell.Clip(strings.Join(lines[max(len(lines)-2, 0):], " "))
}

// decide ranks the attempts, and ends the race.
func (d *racing) decide(ctx context.Context) error {
	now, err := d.v.Race(d.id)
	if err != nil {
		return err
	}
	best, why := race.Rank(now.Attempts, d.req.Attempt.Check != "")
	rec := d.record()
	if rec.Cause != "" {
		best, why = nil, interruptedWhy
	}
	d.clearUp(ctx, best)
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.rec
	next.State, next.Ended, next.Why, next.Cause = api.RaceEnded, time.Now().UTC(), why, rec.Cause // what was asked meanwhile comes too late
	if best != nil {
		next.Winner = best.Number
	}
	objects := []any{&next}
	list := slices.Clone(d.list)
	for i := range list {
		if rec.Cause == "" {
			list[i].Rank = now.Attempts[i].Rank
		}
		objects = append(objects, &list[i])
	}
	if err := d.e.reg.Commit(objects...); err != nil {
		return err
	}
	d.rec, d.list = next, list
	return nil
}
