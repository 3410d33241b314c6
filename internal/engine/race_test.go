package engine

import (
	"encoding/json"
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
			CallerEnv: []string{"HOME=/home/me", "GH_TOKEN=" + token}, Agent: &api.AgentRequest{Name: "claude", Prompt: "use " + token},
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
	for _, name := range []string{"GH_TOKEN", "the command", "the check", "the scorer", "the prompt", "hint", "KEY"} {
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
	b.must(b.reg.Commit(&state.Race{ID: id, Name: "p", State: api.RacePreparing, Created: time.Now().UTC(), Count: 2, Parallel: 1, Spec: b.raceOf("true")},
		&state.Attempt{Race: id, Number: 1}, &state.Attempt{Race: id, Number: 2}))
	base, err := b.All().Create(b.ctx, api.CreateRequest{Name: "p-base", From: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}, CallerDir: b.src})
	b.must(err)
	_, err = b.All().Fork(b.ctx, cell.ID(base.ID), api.ForkRequest{Count: 2, Name: "p"})
	b.must(err)
	b.close()
	b.open()
	r, err := b.All().WaitRace(b.ctx, id)
	b.must(err)
	if r.State != api.RaceEnded || r.Error == nil || r.Error.Kind != api.Kind(cell.Interrupted) || r.Winner != "" || r.Attempts[1].State != api.AttemptStopped {
		t.Errorf("%+v, %+v", r, r.Error)
	}
	for _, c := range b.reg.Cells() {
		if c.Name != "p-other" {
			t.Errorf("cell %s is left", c.Name)
		}
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
}
