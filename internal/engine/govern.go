package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/policy"
)

// newGovern makes the manager of what cells and callers may do.
func (e *Engine) newGovern() *govern.Manager {
	return govern.New(govern.Config{
		Records: e.reg, Log: e.log, Home: e.cfg.Home, Credentials: e.cfg.Credentials, Host: e.cfg.Host, HostPolicy: e.cfg.HostPolicy,
		Resolvers: e.cfg.Resolvers, Proxy: e.cfg.Proxy, Life: e.life, RunPolicy: evidence.ManifestPolicy,
		Caps: func(ctx context.Context, name string, least policy.Isolation) (backend.Caps, error) {
			b, err := e.backendUnder(name, least)
			if err != nil {
				return backend.Caps{}, err
			}
			return e.caps(ctx, b)
		},
	})
}

// ownMachine refuses the daemon's own machine to callers that may name nothing of it.
func (p *runPlan) ownMachine() error {
	if !p.confined {
		return nil
	}
	return govern.RefuseHost(&p.policy)
}

// ownMachine is the same for a policy that a living cell gets.
func (v *View) ownMachine(text string) error {
	if !v.isConfined() {
		return nil
	}
	r, err := v.e.govern.Effective(api.RunRequest{Policy: text, PolicyName: "policy"}, "")
	if err != nil {
		return err
	}
	return govern.RefuseHost(&r.Result)
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
