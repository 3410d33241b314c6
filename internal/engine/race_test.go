package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// raceOf is a request for a race of commands on the bed's source.
func (b *bed) raceOf(script string) api.RaceRequest {
	r := b.request("", script)
	r.Cell = ""
	return api.RaceRequest{Attempt: r}
}

// TestRaceKeepsNoSecret: what looks like a secret is in no record of a race, and named.
func TestRaceKeepsNoSecret(t *testing.T) {
	t.Parallel()
	const token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	req := api.RaceRequest{
		Attempt: api.RunRequest{
			Command: []string{"agent", "--token=" + token, "{{.hint}}"}, Env: []string{"PLAIN=1", "GH_TOKEN=" + token}, Check: "curl -H 'Authorization: " + token + "' x",
			CallerEnv: []string{"HOME=/home/me", "GH_TOKEN=" + token}, Agent: &api.AgentRequest{Name: "claude", Prompt: "use " + token, Reason: "for " + token, ModelURL: "http://x:" + token + "@127.0.0.1/"},
			Services: []api.ServiceRequest{{Image: "db", Env: []string{"PASS=" + token}, Command: []string{"db", "--token=" + token}}},
			Notify:   []string{"desktop", "https://hooks/x?token=" + token}, Mounts: []string{"/" + token + ":/x", "/a:/b"},
		},
		Score:         "echo " + token,
		Variations:    []map[string]string{{"hint": "plain"}, {"hint": token}},
		EnvVariations: []map[string]string{{"KEY": token}},
	}
	kept, unkept := keepableRace(req)
	text, err := json.Marshal(kept)
	if err != nil || strings.Contains(string(text), token) || kept.Attempt.CallerEnv != nil {
		t.Errorf("%s, %v", text, err)
	}
	for _, name := range []string{"the reason", "the model's URL", "where notice is given", "the mounts", "GH_TOKEN", "the command", "the check", "the scorer", "the prompt", "hint", "KEY"} {
		if !slices.Contains(unkept, name) {
			t.Errorf("%q does not name %s", unkept, name)
		}
	}
	if kept.Variations[0]["hint"] != "plain" || !slices.Equal(kept.Attempt.Env, []string{"PLAIN=1"}) {
		t.Errorf("%s lacks what is no secret", text)
	}
	if req.Variations[1]["hint"] != token || req.Attempt.Agent.Prompt != "use "+token || req.Attempt.Command[1] != "--token="+token {
		t.Error("the request itself was changed")
	}
	if a := kept.Attempt; !slices.Equal(a.Notify, []string{"desktop"}) || !slices.Equal(a.Mounts, []string{"/a:/b"}) || len(req.Attempt.Services) != 1 {
		t.Errorf("%s lacks what is no secret", text)
	}
	// A field may make a secret out of a word that is none.
	req = api.RaceRequest{Attempt: api.RunRequest{Command: []string{"agent", "ghp_{{.rest}}"}}, Variations: []map[string]string{{"rest": "plain"}, {"rest": token[4:]}}, Count: 2}
	kept, unkept = keepableRace(req)
	if text, err = json.Marshal(kept); err != nil || strings.Contains(string(text), token[4:]) || kept.Variations[0]["rest"] != "plain" || !slices.Equal(unkept, []string{"rest"}) {
		t.Errorf("%s, %q, %v", text, unkept, err)
	}
}

// TestRacesOfOthers: a race of a caller with labels is not there for one with others, by no name.
func TestRacesOfOthers(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	id := cell.RaceID("x-0123456789abcdef")
	b.must(b.reg.Commit(&state.Race{ID: id, Name: "r", State: api.RaceEnded, Count: 1, Labels: map[string]string{"team": "a"}}, &state.Attempt{Race: id, Number: 1}))
	a, other := b.caller("t-a", team("a")), b.caller("t-b", team("b"))
	if _, err := a.Race("x-0123"); err != nil || len(a.Races()) != 1 {
		t.Error(err)
	}
	for _, name := range []cell.RaceID{id, "x-0123"} {
		_, err := other.Race(name)
		b.wantKind("a race of another", err, cell.NotFound, "no race")
		_, err = other.InterruptRace(b.ctx, name)
		b.wantKind("a race of another", err, cell.NotFound, "no race")
		b.wantKind("a race of another", other.FollowRace(b.ctx, name, nil), cell.NotFound, "no race")
		_, err = other.Compare(b.ctx, []string{string(name)}, "")
		b.wantKind("a race of another", err, cell.NotFound, "no race")
	}
	if list := other.Races(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	// After a restart the race is its caller's still.
	rec, _, err := b.reg.Race(id)
	b.must(err)
	if v := b.asRace(&rec); !v.restricted() || !v.carried(map[string]string{"team": "a"}) || v.carried(map[string]string{"team": "b"}) {
		t.Error("the next daemon would drive it for all")
	}
}

// TestRaceRefuses: what can't be a race is refused before there is a record of one.
func TestRaceRefuses(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("taken-2", "true")
	b.makes(b.All(), "other-base")
	for name, change := range map[string]func(*api.RaceRequest){
		"no attempts":             func(r *api.RaceRequest) { r.Count = -1 },
		"too many":                func(r *api.RaceRequest) { r.Count = 257 },
		"none at a time":          func(r *api.RaceRequest) { r.Parallel = -1 },
		"no end":                  func(r *api.RaceRequest) { r.Until = "soon" },
		"no command":              func(r *api.RaceRequest) { r.Attempt.Command = nil },
		"a cell of the attempt":   func(r *api.RaceRequest) { r.Attempt.Cell = "c" },
		"a terminal":              func(r *api.RaceRequest) { r.Attempt.TTY = true },
		"accepting itself":        func(r *api.RaceRequest) { r.Attempt.OnSuccess = "apply" },
		"asking":                  func(r *api.RaceRequest) { r.Attempt.OnFailure = "ask" },
		"two beginnings":          func(r *api.RaceRequest) { r.Cell = "taken-2" },
		"a budget of forks":       func(r *api.RaceRequest) { r.Attempt.From, r.Cell, r.Attempt.Limits.Budget = "", "taken-2", "time=1h" },
		"an image of forks":       func(r *api.RaceRequest) { r.Attempt.From, r.Cell, r.Attempt.Image = "", "taken-2", "dir:/" },
		"a variable without name": func(r *api.RaceRequest) { r.EnvVariations = []map[string]string{{"": "x"}} },
		"an unknown field":        func(r *api.RaceRequest) { r.Attempt.Command = []string{"{{.x}}"} },
		"a name that is none":     func(r *api.RaceRequest) { r.Name = "a/b" },
		"a taken name":            func(r *api.RaceRequest) { r.Name = "taken" },
		"a taken name of a base":  func(r *api.RaceRequest) { r.Name = "other" },
		"no source":               func(r *api.RaceRequest) { r.Attempt.From = "" },
		"no such cell":            func(r *api.RaceRequest) { r.Attempt.From, r.Cell = "", "nope" },
		"no such template":        func(r *api.RaceRequest) { r.Attempt.From, r.Template = "", "nope" },
	} {
		req := b.raceOf("true")
		change(&req)
		if _, err := b.All().StartRace(b.ctx, req, ""); err == nil || cell.KindOf(err) == cell.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list := b.All().Races(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestRaceForgetsOld: of races that have ended a bounded number is kept, with their attempts.
func TestRaceForgetsOld(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	var objects []any
	for i := range keptRaces + 1 {
		id := cell.NewRaceID()
		objects = append(objects, &state.Race{ID: id, State: api.RaceEnded, Created: time.Unix(int64(i), 0), Count: 1}, &state.Attempt{Race: id, Number: 1})
	}
	b.must(b.reg.Commit(objects...))
	oldest := objects[0].(*state.Race).ID
	r, err := b.All().StartRace(b.ctx, b.raceOf("true"), "")
	b.must(err)
	_, err = b.All().WaitRace(b.ctx, cell.RaceID(r.ID))
	b.must(err)
	if n := len(b.reg.Races()); n != keptRaces {
		t.Errorf("%d races are kept", n)
	}
	if _, list, err := b.reg.Race(oldest); err == nil || len(list) > 0 {
		t.Errorf("the oldest is kept, with %d attempts", len(list))
	}
	got, err := b.All().Race(cell.RaceID(r.ID))
	if err != nil || got.State != api.RaceEnded || len(got.Attempts) != defaultAttempts || got.Winner == "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRaceInterruptedWhilePreparing: a daemon that ends before the cells of a race are made leaves none of them: the next ends the
// race, and says so.
func TestRaceInterruptedWhilePreparing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("p-other", "true")
	id := cell.NewRaceID()
	b.must(b.reg.Commit(&state.Race{ID: id, Name: "p", State: api.RacePreparing, Created: time.Now().UTC(), Count: 3, Parallel: 1, Spec: b.raceOf("true")},
		&state.Attempt{Race: id, Number: 1}, &state.Attempt{Race: id, Number: 2}, &state.Attempt{Race: id, Number: 3}))
	v := b.All()
	v.forRace = id
	base, err := v.Create(b.ctx, api.CreateRequest{Name: "p-base", From: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}, CallerDir: b.src})
	b.must(err)
	_, err = v.Fork(b.ctx, cell.ID(base.ID), api.ForkRequest{Count: 2, Name: "p"})
	b.must(err)
	_, err = b.All().Fork(b.ctx, b.id("p-other"), api.ForkRequest{Count: 1, Name: "p-3"}) // by another, after the race began
	b.must(err)
	b.close()
	b.open()
	r, err := b.All().WaitRace(b.ctx, id)
	b.must(err)
	if r.State != api.RaceEnded || r.Error == nil || r.Error.Kind != api.Kind(cell.Interrupted) || r.Winner != "" || r.Attempts[1].State != api.AttemptStopped {
		t.Errorf("%+v, %+v", r, r.Error)
	}
	var left []string
	for _, c := range b.reg.Cells() {
		if c.State != cell.Removed {
			left = append(left, c.Name)
		}
	}
	if slices.Sort(left); !slices.Equal(left, []string{"p-3", "p-other"}) {
		t.Errorf("cells %q are left", left)
	}
}

// TestRaceEndsWithoutADriver: a race that no daemon can go on with ends, and so does one that nothing drives, when it is interrupted.
func TestRaceEndsWithoutADriver(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	bad, asked, still := cell.NewRaceID(), cell.NewRaceID(), cell.NewRaceID()
	unfillable := b.raceOf("{{.nope}}")
	unfillable.Count = 1
	b.must(b.reg.Commit(&state.Race{ID: bad, Name: "p", State: api.RaceRunning, Count: 1, Parallel: 1, Spec: unfillable}, &state.Attempt{Race: bad, Number: 1},
		&state.Race{ID: asked, Name: "q", State: api.RacePreparing, Count: 1, Parallel: 1, Spec: b.raceOf("true"), Cause: cell.CauseInterrupted}, &state.Attempt{Race: asked, Number: 1}))
	b.reopen()
	r, err := b.All().WaitRace(b.ctx, bad)
	if b.must(err); r.Error == nil || r.Cause != "" || r.Attempts[0].State != api.AttemptStopped {
		t.Errorf("%+v", r)
	}
	r, err = b.All().WaitRace(b.ctx, asked)
	if b.must(err); r.Error != nil || r.Cause != cell.CauseInterrupted {
		t.Errorf("a race that was interrupted before its daemon ended: %+v, %+v", r, r.Error)
	}
	b.must(b.reg.Commit(&state.Race{ID: still, Name: "p", State: api.RaceRunning, Count: 1, Parallel: 1, Spec: unfillable}, &state.Attempt{Race: still, Number: 1}))
	r, err = b.All().InterruptRace(b.ctx, still)
	if b.must(err); r.Cause != cell.CauseInterrupted || r.Attempts[0].State != api.AttemptStopped {
		t.Errorf("%+v", r)
	}
	// What runs for it ends, whether its attempt knows the run or the run its race alone; what a user began beside it does not.
	req := b.raceOf("true")
	req.Name, req.Count = "r", 3
	d := b.racingOf(req)
	for i := range d.list {
		d.list[i].Over, d.list[i].Run = "", ""
	}
	known, _ := b.begin("r-1", "true", "true")
	unknown, _ := b.begin("r-2", "true", "true")
	_, waitOther := b.begin("r-3", "true", "true")
	d.list[0].Run = b.reg.Runs(d.list[0].Cell)[0].RunID()
	of := b.reg.Runs(d.list[1].Cell)[0]
	of.In.Race = d.id
	d.list[2].Over = api.AttemptSucceeded
	d.rec.State, d.rec.Ended = api.RaceRunning, time.Time{}
	b.must(b.reg.Commit(&d.rec, &of, &d.list[0], &d.list[1], &d.list[2]))
	b.must(b.endUndriven(d.id, errors.New("broken")))
	for name, id := range map[string]string{"known": known.ID, "unknown": unknown.ID} { // neither goes on: only an interrupt ends it
		r, err := b.runs.Wait(b.ctx, cell.RunID(id))
		if b.must(err); r.Cause != cell.CauseInterrupted {
			t.Errorf("what was %s to the race: %+v", name, r)
		}
	}
	if r := waitOther(); r.Cause != "" {
		t.Errorf("what a user began after it: %+v", r)
	}
}

// racingOf is a race that has ended, as what drives it has it.
func (b *bed) racingOf(req api.RaceRequest) *racing {
	b.Helper()
	r, err := b.All().StartRace(b.ctx, req, "")
	b.must(err)
	_, err = b.All().WaitRace(b.ctx, cell.RaceID(r.ID))
	b.must(err)
	d := &racing{e: b.Engine, v: b.All(), id: cell.RaceID(r.ID), req: req, changed: make(chan struct{}), scoring: map[int]bool{}}
	d.ctx, d.stop = context.WithCancelCause(b.life)
	b.Cleanup(func() { d.stop(nil) })
	b.must(d.load())
	return d
}

// TestRaceClearsUpItsOwn: what was done in the cell of an attempt that never began stays, and an interrupt leaves alone what goes on
// in the cell of one that was over. One that comes too late is not recorded.
func TestRaceClearsUpItsOwn(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.raceOf("true")
	req.Name, req.Count = "q", 3
	d := b.racingOf(req)
	if b.must(d.interrupt()); d.record().Cause != "" {
		t.Error("a race that had ended was interrupted")
	}
	made, err := b.All().Fork(b.ctx, d.attempt(0).Cell, api.ForkRequest{Count: 3, Name: "w"})
	b.must(err)
	d.list = append(d.list, d.list[2])
	for i, c := range made.Cells {
		d.list[i+1].Starts, d.list[i+1].Cell = 0, cell.ID(c.ID)
	}
	b.must(b.All().WriteFiles(b.ctx, b.id("w-3"), b.src, strings.NewReader("")))
	b.run("w-2", "true")
	_, goOn := b.begin("q-1", "true", "true")
	d.rec.Cause = cell.CauseInterrupted
	d.clearUp(b.ctx, nil)
	if r := goOn(); r.Cause != "" || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Errorf("what went on in the cell of an attempt that was over: %+v", r)
	}
	if _, ok := b.reg.Named("w-1"); ok {
		t.Error("the cell of an attempt that never began is left")
	}
	if _, ok := b.reg.Named("w-2"); !ok {
		t.Error("work by hand was removed")
	}
	if _, ok := b.reg.Named("w-3"); !ok {
		t.Error("a cell with files that were given to it by hand was removed")
	}
}

// TestRaceInterruptedMakesNothing: an interrupt ends what a race prepares, and does not wait for it.
func TestRaceInterruptedMakesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.raceOf("true")
	req.Name, req.Count = "q", 1
	d := b.racingOf(req)
	d.rec.Name, d.rec.State = "late", api.RacePreparing
	d.stop(errInterrupted)
	if err := d.run(b.ctx); !errors.Is(err, errInterrupted) {
		t.Error(err)
	}
	if c, ok := b.reg.Named("late-base"); ok {
		t.Errorf("cell %s was made", c.Name)
	}
}

// TestRaceDoesNotGuess: an attempt with a result that cannot be read does not succeed, and says why.
func TestRaceDoesNotGuess(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.raceOf("true")
	req.Count = 1
	d := b.racingOf(req)
	run, err := b.All().Run(d.attempt(0).Run)
	b.must(err)
	if how := d.judge(b.ctx, 0, &run); how != api.AttemptSucceeded {
		t.Error(how)
	}
	d.v = b.caller("t-b", team("b")) // for which the run is not there
	if how := d.judge(b.ctx, 0, &run); how != api.AttemptFailed || d.attempt(0).Problem == "" {
		t.Errorf("%s, %q", how, d.attempt(0).Problem)
	}
}

// TestRaceStartsTheLostAgain: a run that a daemon's end kept from starting begins anew, and one that was interrupted by hand does not.
func TestRaceStartsTheLostAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.raceOf("true")
	req.Name, req.Count = "q", 2
	d := b.racingOf(req)
	var objects []any
	for i := range d.list {
		a := &d.list[i]
		old, err := b.reg.Run(a.Run)
		b.must(err)
		r := state.Run{ID: string(cell.NewRunID()), Cell: old.Cell, CellName: old.CellName, Command: old.Command, Source: old.Source, Backend: old.Backend, Phase: cell.Preparing, Created: time.Now().UTC(),
			LeftOut: []state.LeftOut{}, Downgrades: []string{}, Image: old.Image, Folder: old.Folder, In: state.RunInternal{OnFailure: "restore", OnSuccess: "pending", Race: d.id}}
		if i == 1 {
			r.Phase, r.Verdict, r.Cause, r.Ended = cell.Ended, cell.Discarded, cell.CauseInterrupted, r.Created
			r.Error = &state.Error{Kind: cell.Interrupted, Message: "cannot start the run: it was interrupted"}
		}
		a.Run, a.Over, a.Starts = r.RunID(), "", 1
		objects = append(objects, &r, a)
	}
	d.rec.State = api.RaceRunning
	b.must(b.reg.Commit(append(objects, &d.rec)...))
	b.reopen()
	now, err := b.All().WaitRace(b.ctx, d.id)
	b.must(err)
	if a := now.Attempts[0]; a.State != api.AttemptSucceeded || a.Starts != 2 {
		t.Errorf("what was lost: %+v", a)
	}
	if a := now.Attempts[1]; a.State != api.AttemptFailed || a.Starts != 1 {
		t.Errorf("what was interrupted: %+v", a)
	}
}

// TestRaceAfterARestart: attempts that have no run when a daemon ends are started by the next; those that ended stay as they are.
func TestRaceAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.raceOf("echo {{.n}} > g")
	req.Name, req.Count, req.Until = "q", 3, "all"
	r, err := b.All().StartRace(b.ctx, req, "")
	b.must(err)
	_, err = b.All().WaitRace(b.ctx, cell.RaceID(r.ID))
	b.must(err)
	rec, list, err := b.reg.Race(cell.RaceID(r.ID))
	b.must(err)
	first := list[0].Run
	rec.State, rec.Winner, rec.Why = api.RaceRunning, 0, "" // as if the daemon had ended after the first attempt, and while it started the second
	list[1].Run, list[1].Over = "", ""
	second := b.reg.Runs(list[1].Cell)[0].RunID()
	b.must(b.reg.Commit(&rec, &list[1]))
	b.run("q-2", "true") // by hand, and newer than that of the race
	b.close()
	b.open()
	now, err := b.All().WaitRace(b.ctx, rec.ID)
	b.must(err)
	if now.Winner != "q-1" || now.Attempts[0].Run != string(first) || now.Attempts[1].Run != string(second) || now.Attempts[1].State != api.AttemptSucceeded || now.Attempts[1].Starts != 1 {
		t.Errorf("%+v", now)
	}
	// One for which a secret is needed says what it lacks, and does not start without it.
	rec, list, err = b.reg.Race(rec.ID)
	b.must(err)
	rec.State, rec.Unkept = api.RaceRunning, []string{"GH_TOKEN"}
	list[2].Run, list[2].Over, list[2].Starts = "", "", 0
	b.must(b.reg.Commit(&rec, &list[2]))
	b.close()
	b.open()
	now, err = b.All().WaitRace(b.ctx, rec.ID)
	b.must(err)
	if at := now.Attempts[2]; at.State != api.AttemptFailed || at.Starts != 0 || !strings.Contains(at.Problem, "GH_TOKEN") {
		t.Errorf("%+v", at)
	}
	// One with a cell that was removed does not run in another of that name.
	rec, list, err = b.reg.Race(rec.ID)
	b.must(err)
	rec.State, rec.Unkept = api.RaceRunning, nil
	list[0].Run, list[0].Over, list[0].Starts = "", "", 0
	_, err = b.Remove(b.ctx, list[0].Cell, false)
	b.must(err)
	other := b.makes(b.All(), "q-1")
	b.must(b.reg.Commit(&rec, &list[0]))
	b.reopen()
	now, err = b.All().WaitRace(b.ctx, rec.ID)
	b.must(err)
	if at := now.Attempts[0]; at.State != api.AttemptFailed || !strings.Contains(at.Problem, "removed") || len(b.reg.Runs(cell.ID(other.ID))) != 0 {
		t.Errorf("%+v", at)
	}
}
