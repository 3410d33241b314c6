package engine

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/race"
	"github.com/pando-dev/pando/internal/state"
)

// madeRace: see operation.Outcome.
const madeRace = "started a race"

// keptRaces is how many races are kept that have ended.
const keptRaces = 200

// defaultAttempts is the number of attempts of a race without variations, when none is asked for.
const defaultAttempts = 3

// StartRace checks a request, records the race and starts working on it. dir is where the caller stands.
func (v *View) StartRace(ctx context.Context, req api.RaceRequest, dir string) (api.Race, error) {
	if err := v.e.gc.Room(); err != nil {
		return api.Race{}, err
	}
	rec, err := v.planRace(ctx, &req, dir)
	if err != nil {
		return api.Race{}, err
	}
	objects, err := operation.Outcome(ctx, madeRace, rec.ID)
	if err != nil {
		return api.Race{}, err
	}
	objects = append(objects, rec)
	for i := range rec.Count {
		objects = append(objects, &state.Attempt{Race: rec.ID, Number: i + 1})
	}
	ended := 0
	for _, old := range v.e.reg.Races() {
		if old.State == api.RaceEnded {
			if ended++; ended >= keptRaces {
				objects = append(objects, state.Forget(old.ID))
			}
		}
	}
	if err := v.e.reg.Commit(objects...); err != nil {
		return api.Race{}, err
	}
	own := *v
	own.forRace, own.askedBy = rec.ID, rec.Asked
	own.here = false // what the caller sees was compared with what the daemon sees; the race may outlive its process
	v.e.drive(rec.ID, req, &own, nil)
	return v.Race(rec.ID)
}

// planRace checks everything about a request that can be checked without work, and completes it.
func (v *View) planRace(ctx context.Context, req *api.RaceRequest, dir string) (*state.Race, error) {
	const opName = "engine.StartRace"
	invalid := func(hint, format string, args ...any) error {
		return cell.Errorf(cell.Invalid, opName, hint, "cannot start the race: "+format, args...)
	}
	a := &req.Attempt
	if req.Count == 0 {
		if req.Count = max(len(req.Variations), len(req.EnvVariations)); req.Count == 0 {
			req.Count = defaultAttempts
		}
	}
	if req.Count < 1 || req.Count > race.MaxAttempts {
		return nil, invalid(fmt.Sprintf("ask for 1 to %d", race.MaxAttempts), "%d attempts", req.Count)
	}
	if req.Parallel == 0 {
		req.Parallel = max(runtime.NumCPU(), 1)
	}
	if req.Parallel < 1 {
		return nil, invalid("ask for 1 at least", "%d attempts at a time", req.Parallel)
	}
	if _, err := race.Wanted(req.Until); err != nil {
		return nil, err
	}
	req.Until = orElse(req.Until, race.UntilAll)
	switch {
	case len(a.Command) == 0 && a.Agent == nil:
		return nil, invalid("say what to run: pando race -- COMMAND", "no command given")
	case a.Cell != "":
		return nil, invalid("name it as the cell of the race: its forks are what the attempts run in", "an attempt has no cell of its own choice")
	case a.TTY || a.Attach || a.DryRun:
		return nil, invalid("leave out tty, attach and dry_run", "its attempts have no terminal and no client")
	case a.OnSuccess != "" && a.OnSuccess != "pending":
		return nil, invalid("accept the winner when the race has ended", "an attempt does not accept itself")
	case a.OnFailure != "" && a.OnFailure != "restore" && a.OnFailure != "pending":
		return nil, invalid("use restore or pending", "%q is no answer to the failure of an attempt", cell.Clip(a.OnFailure))
	case len(a.Pin) > 0 && a.Check == "" && req.Score == "":
		return nil, errNoJudge
	case strings.ContainsRune(req.Score, 0):
		return nil, invalid("", "an argument contains a NUL")
	case req.Cell != "" && req.Template != "", (req.Cell != "" || req.Template != "") && a.From+a.Upload != "":
		return nil, invalid("give one of a source, a cell and a template", "it would begin with several things")
	case (req.Cell != "" || req.Template != "") && (a.Image != "" || a.Kernel != "" || len(a.Services)+len(a.WithSecret)+len(a.Repositories) > 0 || a.Backend != "" && a.Backend != "auto"):
		return nil, invalid("leave out backend, image, kernel, services, further directories and secret files: its forks have those of the cell or template", "what its attempts begin with is made already")
	case (req.Cell != "" || req.Template != "") && a.Limits.Budget != "":
		return nil, invalid("give the budget to the cell or the template when it is made: its forks share that", "a budget for all attempts comes with their source")
	}
	for i, row := range req.EnvVariations {
		for name, value := range row {
			if _, err := policy.CheckEnv(name + "=" + value); err != nil || strings.Contains(name, "=") {
				return nil, invalid("use names of variables as fields", "row %d of the variables: %q is no variable", i+1, cell.Clip(name))
			}
		}
	}
	if err := checkPins(a.Pin); err != nil {
		return nil, err
	}
	if err := race.CheckRows("variables", req.EnvVariations); err != nil {
		return nil, err
	}
	words, unused, err := fillRace(req)
	if err != nil {
		return nil, err
	}
	rec := &state.Race{ID: cell.NewRaceID(), State: api.RacePreparing, Created: time.Now().UTC(), Count: req.Count, Parallel: req.Parallel, Confined: v.confined, Asked: v.asker()}
	for _, f := range unused {
		rec.Notes = append(rec.Notes, fmt.Sprintf("no word of the command uses the field %s: the attempts do not differ in it", f))
	}
	if v.restricted() {
		rec.Labels = maps.Clone(v.bounds.Labels)
	}
	req.Name = orElse(req.Name, "race-"+string(rec.ID)[2:6])
	rec.Name = req.Name
	var names []string
	for i := range req.Count {
		names = append(names, attemptName(req.Name, i+1))
	}
	if req.Cell == "" && req.Template == "" {
		names = append(names, baseName(req.Name))
	}
	for _, name := range names {
		if err := cell.CheckName(name); err != nil {
			return nil, err
		}
		if _, taken := v.e.reg.Named(name); taken {
			return nil, cell.Errorf(cell.Exists, opName, "choose another --name, or remove it: pando rm "+name, "cannot start the race: cell %s exists", name)
		}
	}
	if err := v.raceFrom(ctx, req, rec, words[0], dir); err != nil {
		return nil, err
	}
	rec.Spec, rec.Unkept = keepableRace(*req)
	return rec, nil
}

// raceFrom finds out what the attempts of a race begin with, and whether the first could run there. It makes the cell of the
// request an id, or ID@N.
func (v *View) raceFrom(ctx context.Context, req *api.RaceRequest, rec *state.Race, words []string, dir string) error {
	switch {
	case req.Template != "":
		rec.From = "template " + req.Template
		if err := v.mustTemplate(req.Template, false); err != nil {
			return err
		}
		_, err := v.e.reg.Template(req.Template)
		return err
	case req.Cell != "":
		at := ""
		id, err := v.SelectCell(req.Cell, dir)
		if strings.Contains(req.Cell, "@") {
			var k state.Checkpoint
			if k, err = v.SelectCheckpoint(req.Cell, dir); err == nil {
				id, at = k.Cell, fmt.Sprintf("@%d", k.Number)
			}
		}
		if err != nil {
			return err
		}
		if err := v.Enter(id); err != nil {
			return err
		}
		c, err := v.e.reg.Cell(id)
		if err != nil {
			return err
		}
		rec.From, req.Cell = "cell "+c.Title()+at, string(id)+at
		if err := c.ForkedOnly(); err != nil {
			return err
		}
		return nil
	}
	first := attemptOf(req, words, 0)
	p, err := v.e.plan(v.with(ctx), first)
	if err != nil {
		return err
	}
	rec.From = "source " + p.source
	if p.from != "" {
		rec.From = "an uploaded source"
	}
	req.Attempt.From = first.From
	return nil
}

// attemptName is the name of the cell of an attempt.
func attemptName(stem string, number int) string { return fmt.Sprintf("%s-%d", stem, number) }

// baseName is the name of the cell that the source of a race is imported into.
func baseName(stem string) string { return stem + "-base" }

// fillRace makes the words of all attempts: those of the command, and behind them the prompt of an agent.
func fillRace(req *api.RaceRequest) (words [][]string, unused []string, err error) {
	list := slices.Clone(req.Attempt.Command)
	if g := req.Attempt.Agent; g != nil {
		list = append(list, g.Prompt)
	}
	return race.Fill(list, req.Variations, req.Count)
}

// attemptOf is the run of an attempt, from 0, out of the words that fillRace made for it.
func attemptOf(req *api.RaceRequest, words []string, i int) api.RunRequest {
	r := req.Attempt
	r.OnSuccess, r.OnFailure = "pending", orElse(r.OnFailure, "restore")
	r.Command = words[:len(req.Attempt.Command)]
	if r.Agent != nil {
		agent := *r.Agent
		agent.Prompt = words[len(words)-1]
		r.Agent = &agent
	}
	row := race.Row(req.EnvVariations, i)
	r.Env = slices.Clone(r.Env)
	for _, name := range slices.Sorted(maps.Keys(row)) {
		r.Env = append(r.Env, name+"="+row[name])
	}
	return r
}

// keepableRace takes out of a request what must not be written down: the caller's environment, and what looks like a
// secret, which is named.
func keepableRace(req api.RaceRequest) (_ api.RaceRequest, unkept []string) {
	a := &req.Attempt
	a.CallerEnv, a.Services = nil, nil // services are in the cells when these are made; before that no later daemon goes on
	var env []string
	for _, kv := range a.Env {
		if name, _, _ := strings.Cut(kv, "="); redactor.String(kv) != kv {
			unkept = append(unkept, name)
		} else {
			env = append(env, kv)
		}
	}
	a.Env = env
	text := func(what string, s *string) {
		if r := redactor.String(*s); r != *s {
			*s, unkept = r, append(unkept, what)
		}
	}
	if words := redactArgs(a.Command); !slices.Equal(words, a.Command) {
		a.Command, unkept = words, append(unkept, "the command")
	}
	text("the check", &a.Check)
	text("the scorer", &req.Score)
	if g := a.Agent; g != nil {
		agent := *g
		text("the prompt", &agent.Prompt)
		text("the reason", &agent.Reason)
		text("the model's URL", &agent.ModelURL)
		a.Agent = &agent
	}
	list := func(what string, all []string) (kept []string) {
		for _, s := range all {
			if redactor.String(s) == s {
				kept = append(kept, s)
			} else if !slices.Contains(unkept, what) {
				unkept = append(unkept, what)
			}
		}
		return kept
	}
	a.Notify, a.Mounts = list("where notice is given", a.Notify), list("the mounts", a.Mounts)
	if redactor.String(a.Policy) != a.Policy {
		kept, _, err := govern.Keepable(&redactor, a.Policy)
		if a.Policy, unkept = kept, append(unkept, "the policy's variables"); err != nil {
			a.Policy = ""
		}
	}
	rows := func(list []map[string]string) (out []map[string]string) {
		for _, row := range list {
			row = maps.Clone(row)
			for _, name := range slices.Sorted(maps.Keys(row)) {
				s := name + "=" + row[name]
				if r := redactor.String(s); r != s {
					row[name] = "[redacted]"
					if !slices.Contains(unkept, name) {
						unkept = append(unkept, name)
					}
				}
			}
			out = append(out, row)
		}
		return out
	}
	req.Variations, req.EnvVariations = rows(req.Variations), rows(req.EnvVariations)
	filled, _, err := fillRace(&req) // only what the fields make of the words looks like a secret then
	for i := range max(len(filled), len(req.Variations)) {
		if err == nil && (i >= len(filled) || plainWords(&req, filled[i])) {
			continue
		}
		row := race.Row(req.Variations, i)
		for _, name := range slices.Sorted(maps.Keys(row)) {
			if row[name] = "[redacted]"; !slices.Contains(unkept, name) {
				unkept = append(unkept, name)
			}
		}
	}
	return req, unkept
}

// plainWords reports whether nothing in the words of an attempt looks like a secret.
func plainWords(req *api.RaceRequest, words []string) bool {
	n := len(req.Attempt.Command)
	return slices.Equal(redactArgs(words[:n]), words[:n]) && !slices.ContainsFunc(words[n:], func(s string) bool { return redactor.String(s) != s })
}

// seesRace reports whether the caller sees a race.
func (v *View) seesRace(r *state.Race) bool { return !v.restricted() || v.carried(r.Labels) }

// Race is a race as it is now. A prefix of an id names it, if no other begins so.
func (v *View) Race(id cell.RaceID) (api.Race, error) {
	rec, list, err := v.race(id)
	if err != nil {
		return api.Race{}, err
	}
	return v.e.raceView(&rec, list), nil
}

// race is a race that the caller sees, by its id or a prefix of that.
func (v *View) race(id cell.RaceID) (state.Race, []state.Attempt, error) {
	rec, list, err := v.e.reg.Race(id)
	if err != nil && len(id) >= 6 {
		var found []state.Race
		for _, r := range v.e.reg.Races() {
			if strings.HasPrefix(string(r.ID), string(id)) && v.seesRace(&r) {
				found = append(found, r)
			}
		}
		if len(found) > 1 {
			return rec, nil, cell.Errorf(cell.Invalid, "engine.Race", "write more of its id", "%s begins the ids of %d races", cell.Clip(string(id)), len(found))
		}
		if len(found) == 1 {
			rec, list, err = v.e.reg.Race(found[0].ID)
		}
	}
	if err != nil || !v.seesRace(&rec) {
		return state.Race{}, nil, state.NoRace(id)
	}
	return rec, list, nil
}

// Races are all races that the caller sees, newest first.
func (v *View) Races() []api.Race {
	out := []api.Race{}
	for _, r := range v.e.reg.Races() {
		if v.seesRace(&r) {
			if rec, list, err := v.e.reg.Race(r.ID); err == nil {
				out = append(out, v.e.raceView(&rec, list))
			}
		}
	}
	return out
}

// WaitRace returns a race when it has ended.
func (v *View) WaitRace(ctx context.Context, id cell.RaceID) (r api.Race, err error) {
	err = v.FollowRace(ctx, id, func(now api.Race) error { r = now; return nil })
	return r, err
}

// raceLook is how often a race is looked at for what nothing tells of: the phases of its runs.
const raceLook = time.Second

// FollowRace tells a race as it is, and again whenever that has changed, until it has ended.
func (v *View) FollowRace(ctx context.Context, id cell.RaceID, tell func(api.Race) error) error {
	rec, _, err := v.race(id)
	if err != nil {
		return err
	}
	var told api.Race
	look := time.NewTicker(raceLook)
	defer look.Stop()
	for {
		changed := v.e.raceChanged(rec.ID)
		now, err := v.Race(rec.ID)
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(now, told) {
			if err := tell(now); err != nil {
				return err
			}
			told = now
		}
		if now.State == api.RaceEnded {
			return nil
		}
		select {
		case <-changed:
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-v.e.life.Done():
			return cell.Errorf(cell.Unavailable, "engine.FollowRace", "ask again", "the daemon ends, and the next one goes on with race %s", rec.ID)
		}
	}
}

// InterruptRace ends a race with its attempts, and returns it at its end. One that has ended stays as it is.
func (v *View) InterruptRace(ctx context.Context, id cell.RaceID) (api.Race, error) {
	rec, _, err := v.race(id)
	if err != nil {
		return api.Race{}, err
	}
	if d := v.e.driven(rec.ID); d != nil {
		err = d.interrupt()
	} else if v.e.life.Err() == nil {
		err = v.e.endUndriven(rec.ID, errInterrupted)
	}
	if err != nil {
		return api.Race{}, err
	}
	return v.WaitRace(ctx, rec.ID)
}

// raceView is what callers see of a race.
func (e *Engine) raceView(r *state.Race, list []state.Attempt) api.Race {
	spec := &r.Spec
	out := api.Race{ID: string(r.ID), Name: r.Name, State: r.State, Created: r.Created, Ended: r.Ended, From: r.From, Command: spec.Attempt.Command, Check: spec.Attempt.Check,
		Score: spec.Score, Until: spec.Until, Parallel: r.Parallel, Attempts: []api.RaceAttempt{}, Why: r.Why, Notes: slices.Clone(r.Notes), Cause: r.Cause, Error: r.Error.API()}
	if out.Command == nil {
		out.Command = []string{}
	}
	if g := spec.Attempt.Agent; g != nil {
		out.Agent, out.Prompt = g.Name, g.Prompt
	}
	if b, ok := e.reg.Budget(r.Base); ok && b.Reached != "" && r.State != api.RaceEnded {
		out.Notes = append(out.Notes, "the budget of the race is used up ("+b.Reached+"): its attempts are paused until that is answered: pando approvals")
	}
	d := e.driven(r.ID)
	for i := range list {
		a := e.attemptView(r, &list[i])
		if d != nil && list[i].Over == "" && d.isScoring(a.Number) {
			a.State = api.AttemptScoring
		}
		if a.Number == r.Winner {
			out.Winner = a.CellName
		}
		out.Attempts = append(out.Attempts, a)
	}
	return out
}

// attemptView is what callers see of an attempt.
func (e *Engine) attemptView(r *state.Race, a *state.Attempt) api.RaceAttempt {
	out := api.RaceAttempt{Number: a.Number, Cell: string(a.Cell), CellName: attemptName(r.Name, a.Number), Run: string(a.Run), Starts: a.Starts, State: api.AttemptWaiting, Check: (*api.Check)(a.Check),
		Score: a.Score, Scored: a.Scored, Added: a.Added, Deleted: a.Deleted, High: a.High, Rank: a.Rank, Problem: a.Problem}
	for _, rows := range [][]map[string]string{r.Spec.Variations, r.Spec.EnvVariations} {
		for k, s := range race.Row(rows, a.Number-1) {
			if out.Varies == nil {
				out.Varies = map[string]string{}
			}
			out.Varies[k] = s
		}
	}
	if run, err := e.reg.Run(a.Run); err == nil {
		switch run.Phase {
		case cell.Preparing:
			out.State = api.AttemptStarting
		case cell.Executing:
			out.State = api.AttemptRunning
		default:
			out.State = api.AttemptFinishing
		}
		shown := run.API()
		out.Started, out.ExitCode, out.Cause, out.Files, out.TookMS = shown.Started, shown.ExitCode, shown.Cause, shown.Changes.Files, shown.Usage.WallMS
		if shown.Check != nil {
			out.Check = shown.Check
		}
		if r.Spec.Attempt.Agent != nil {
			out.Turns = e.reg.LastTurn(a.Cell)
		}
		if n := shown.Network; n != nil {
			for _, m := range n.Models {
				out.Tokens += m.Input + m.Output
				out.USD += float64(m.MicroUSD) / 1e6
			}
		}
		if shown.Error != nil && out.Problem == "" {
			out.Problem = shown.Error.Message
		}
	} else if a.Starts > 0 {
		out.State = api.AttemptStarting
	}
	if a.Over != "" {
		out.State = a.Over
	}
	return out
}

// asRace is a View for a race that an earlier daemon began: with what bound its caller.
func (e *Engine) asRace(r *state.Race) *View {
	v := e.All()
	v.confined, v.forRace, v.askedBy = r.Confined, r.ID, r.Asked
	if len(r.Labels) > 0 {
		v.bounds = &access.Bounds{Labels: r.Labels}
	}
	return v
}

// scoreOf reads the number on the last line of what a scorer printed.
func scoreOf(text string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return race.Score(strings.TrimSpace(lines[len(lines)-1]))
}
