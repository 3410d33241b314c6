package engine

import (
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// This file has an agent's run executed again. Its command is in its record, with all that its adapter put there. What its adapter
// does beside that is done again, by how it was started.

// recordAgent notes how the agent is started, if its network is recorded.
func (x *execution) recordAgent() {
	a := x.p.agent
	if a == nil || !x.run.In.Record || !x.c.Talks() {
		return
	}
	s := a.start
	own := x.e.govern.Env(&x.c)
	env := slices.Concat(a.adapter.Env(s), own[len(x.c.Setup.Env):])
	all := append(own, x.p.policy.Env...)
	for _, kv := range x.agentEnv(slices.Clip(all))[len(all):] {
		if s.Login.Reads == "" || !strings.HasPrefix(kv, s.Login.Reads+"=") { // that may be a value of the user's, and follows from another
			env = append(env, kv)
		}
	}
	x.run.In.AgentStart = &state.AgentStart{Task: s.Prompt != "", Asks: s.Asks, Continues: s.Continue, Trusts: s.Trusts, Brought: len(a.home) > 0, Login: s.Login.Credential, Env: env}
}

// unplayable is why the run of an agent cannot be executed again; "" if it can.
func (r *replay) unplayable() string {
	s, rec := r.run.In.AgentStart, r.run.Recording
	switch {
	case r.run.TTY:
		return "what was typed at its terminal is not recorded: a run with --record and --prompt is"
	case s == nil || rec == nil:
		return "what its model answered is not recorded: a run with --record and --prompt is"
	case rec.Incomplete != "":
		return "the recording of what its model answered is incomplete: " + rec.Incomplete
	case !s.Task:
		return "it had no task"
	case s.Continues:
		return "the conversation that it continued is in the home of its cell, which is not recorded"
	case s.Brought:
		return "what came along of the user's home is not recorded"
	}
	return ""
}

// agent is how the agent of the run is started again.
func (r *replay) agent() (*agentPlan, error) {
	a, ok := r.e.cfg.Agents.Find(r.run.Agent)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "engine.Replay", "", "cannot execute run %s again: there is no agent %q", r.run.ID, r.run.Agent)
	}
	s := r.run.In.AgentStart
	p := &agentPlan{adapter: a, start: agent.Start{
		Prompt: strings.Join(r.run.Command, " "), // that there is one is what counts: it is in the command
		Asks:   s.Asks, Trusts: s.Trusts, Login: r.login(s),
	}}
	if r.run.ModelURL == "" {
		return p, nil
	}
	var err error
	p.start.Model, p.served, err = modelServer(r.run.ModelURL)
	return p, err
}

// login is the login of the run's agent.
func (r *replay) login(s *state.AgentStart) agent.Login {
	a, ok := r.e.cfg.Agents.Find(r.run.Agent)
	if !ok {
		return agent.Login{}
	}
	return a.About().Choose(func(l agent.Login) bool { return l.Credential == s.Login })
}

// keys are variables in the place of keys that the user gave as variables, of which the values are not recorded: programs want
// to have one, and nothing is sent.
func (r *replay) keys(was *policy.Result, s *state.AgentStart) (env []string) {
	for _, name := range r.login(s).Variables {
		if slices.Contains(was.Environment.Set, name) && !given(slices.Concat(s.Env, r.req.Env), []string{name}) {
			env = append(env, name+"="+noKey)
			r.note("the value of its variable %s is not recorded: it is %q here", name, noKey)
		}
	}
	return env
}
