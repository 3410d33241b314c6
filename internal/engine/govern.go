package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// newGovern makes the manager of what cells and callers may do.
func (e *Engine) newGovern() *govern.Manager {
	return govern.New(govern.Config{
		Records: e.reg, Log: e.log, Home: e.cfg.Home, Credentials: e.cfg.Credentials, Redactor: &redactor, User: e.cfg.User,
		Host: e.cfg.Host, HostPolicy: e.cfg.HostPolicy, Resolvers: e.cfg.Resolvers, Roots: e.cfg.Roots, Proxy: e.cfg.Proxy, Life: e.life, Background: e.background,
		Instances: func() govern.Instances { return e.alive }, Usable: func(id cell.ID) (state.Cell, error) { return e.alive.Usable(id) },
		Lock: func(ctx context.Context, id cell.ID, purpose string) (func(), error) {
			return e.alive.Lock(ctx, id, purpose)
		},
		Turn: e.takeTurn, RunIn: e.runNow, Notice: e.noticeOfAsk, Report: func(id cell.ID, p api.Progress) {
			if l := e.runs.In(id); l != nil {
				l.Report(p)
			}
		},
		Alive: func() (list []cell.ID) {
			for _, i := range e.alive.Instances() {
				list = append(list, i.ID())
			}
			return list
		},
		Pause: func(ctx context.Context, id cell.ID) error { return e.alive.Pause(ctx, id) }, Resume: func(ctx context.Context, id cell.ID) error { return e.alive.Resume(ctx, id) },
		OwnDir: e.ownDir, Tree: e.tree, Spec: e.spec, Captures: func(ctx context.Context, c *state.Cell) (bool, error) { return e.spawn.Captures(ctx, c) }, RunPolicy: evidence.ManifestPolicy, SealedFiles: evidence.SealedFiles, OpenRecord: evidence.OpenRecord,
		Caps: func(ctx context.Context, name string, least policy.Isolation) (backend.Caps, error) {
			b, err := e.backendUnder(name, least)
			if err != nil {
				return backend.Caps{}, err
			}
			return e.caps(ctx, b)
		},
	})
}

// runNow is the run that goes on in a cell, "" if there is none.
func (e *Engine) runNow(id cell.ID) cell.RunID {
	if l := e.runs.In(id); l != nil {
		return l.ID()
	}
	return ""
}

// ownMachine refuses the daemon's own machine to callers that may name nothing of it.
func (p *runPlan) ownMachine() error {
	if !p.confined {
		return nil
	}
	return govern.RefuseHost(&p.policy)
}

// backendUnder is the backend that is asked for; without one, the first of this
// installation that isolates enough for a policy.
func (e *Engine) backendUnder(asked string, least policy.Isolation) (backend.Backend, error) {
	b, err := e.backend(asked)
	if err != nil || asked != "" && asked != "auto" || least.Allows(b.Name()) {
		return b, err
	}
	for _, o := range e.cfg.Backends {
		if least.Allows(o.Name()) {
			return o, nil
		}
	}
	return b, nil
}

// planBackend chooses the backend of a cell that is to be made, and refuses one
// that isolates less than the policy of the run demands.
func (e *Engine) planBackend(p *runPlan) (err error) {
	if p.cell == nil {
		if p.backend, err = e.backendUnder(orElse(p.req.Backend, p.req.Prefer), p.policy.Isolation); err != nil {
			return err
		}
	}
	return p.policy.Isolation.Refuse(p.policy.Origins, "run", p.backend.Name())
}
