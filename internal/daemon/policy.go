package daemon

import (
	"bytes"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

func (d *Daemon) checkPolicy(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.PolicyCheckRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.CheckPolicy(req)
}

func (d *Daemon) showPolicy(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.PolicyRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.ShowPolicy(r.Context(), req)
}

func (d *Daemon) whyPolicy(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.PolicyRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.WhyPolicy(req)
}

func (d *Daemon) diffPolicies(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.PolicyDiffRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.DiffPolicies(req)
}

func (d *Daemon) replayPolicy(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.PolicyReplayRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cfg.Engine.SelectRun(selector(r, "run"), r.URL.Query().Get("dir")) // it changes nothing: "-" is allowed
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.ReplayPolicy(r.Context(), id, req)
}

func (d *Daemon) allowPolicy(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.PolicyAllowRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.AllowPolicy(req)
}

func (d *Daemon) allowedPolicies(http.ResponseWriter, *http.Request) (any, error) {
	return d.cfg.Engine.AllowedPolicies()
}

func (d *Daemon) policySchema(w http.ResponseWriter, _ *http.Request) (any, error) {
	return sendFile(w, "application/schema+json", "policy.schema.json", bytes.NewReader(policy.Schema()))
}
