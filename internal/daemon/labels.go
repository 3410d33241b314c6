package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// as returns the daemon as the caller sees it: with an engine that shows only what the caller
// may see. All handlers get it, so none can skip that check.
func (d *Daemon) as(r *http.Request) *Daemon {
	p, _ := access.From(r.Context())
	if p.Token == "" && !p.Here {
		return d
	}
	own := &Daemon{cfg: d.cfg, common: d.common}
	own.cfg.Engine = d.cfg.Engine.As(p)
	return own
}

// labelled are the routes for tokens that are restricted to labels: their answers come from the
// engine alone, which checks labels, or are the same for all callers. All other routes are about
// the whole installation, or have not been reviewed.
var labelled = map[string]bool{
	"GET /v1/daemon": true, "GET /v1/openapi.json": true, "GET /v1/doctor": true, "GET /v1/tree": true, "GET /v1/stats": true, "GET /v1/key": true,

	// For the caller's own objects.
	"GET /v1/operations": true, "GET /v1/operations/{operation}": true, "GET /v1/operations/{operation}/events": true, "POST /v1/operations/{operation}/abort": true,

	"POST /v1/uploads": true,
	"GET /v1/cells":    true, "POST /v1/cells": true, "GET /v1/cells/{cell}": true, "DELETE /v1/cells/{cell}": true, "POST /v1/cells/{cell}/lease": true,
	"POST /v1/cells/{cell}/pause": true, "POST /v1/cells/{cell}/resume": true, "POST /v1/cells/{cell}/stop": true,
	"GET /v1/cells/{cell}/processes": true, "GET /v1/cells/{cell}/stats": true, "GET /v1/cells/{cell}/history": true, "GET /v1/cells/{cell}/tree": true,
	"GET /v1/cells/{cell}/diff": true, "POST /v1/cells/{cell}/checkpoints": true, "POST /v1/cells/{cell}/restore": true, "POST /v1/cells/{cell}/undo": true,
	"POST /v1/cells/{cell}/accept": true, "POST /v1/cells/{cell}/discard": true, "POST /v1/cells/{cell}/revert": true,
	"POST /v1/cells/{cell}/fork": true, "POST /v1/cells/{cell}/branch": true, "POST /v1/cells/{cell}/eval": true, "POST /v1/cells/{cell}/execs": true,
	"GET /v1/cells/{cell}/files": true, "PUT /v1/cells/{cell}/files": true,
	"GET /v1/cells/{cell}/stat": true, "GET /v1/cells/{cell}/list": true, "GET /v1/cells/{cell}/file": true, "PUT /v1/cells/{cell}/file": true, "DELETE /v1/cells/{cell}/file": true,
	"POST /v1/cells/{cell}/mkdir": true, "POST /v1/cells/{cell}/rename": true, "GET /v1/cells/{cell}/watch": true, "GET /v1/cells/{cell}/execs": true,
	"GET /v1/cells/{cell}/ports": true, "GET /v1/cells/{cell}/ports/{port}/connect": true, "ANY /v1/cells/{cell}/ports/{port}/http/{rest...}": true,
	"GET /v1/execs/{exec}": true, "GET /v1/execs/{exec}/attach": true, "POST /v1/execs/{exec}/signal": true,

	"GET /v1/templates": true, "POST /v1/templates": true, "GET /v1/templates/{template}": true, "DELETE /v1/templates/{template}": true, "POST /v1/templates/{template}/fork": true,
	"GET /v1/images": true, "POST /v1/images": true,

	"POST /v1/plans": true, "POST /v1/runs": true, "GET /v1/runs": true, "GET /v1/runs/{run}": true, "GET /v1/runs/{run}/attach": true, "POST /v1/runs/{run}/interrupt": true,
	"GET /v1/runs/{run}/diff": true, "GET /v1/runs/{run}/files/{name}": true, "GET /v1/runs/{run}/events": true, "GET /v1/runs/{run}/export": true,
	"POST /v1/runs/{run}/accept": true, "POST /v1/runs/{run}/discard": true, "POST /v1/runs/{run}/revert": true, "POST /v1/runs/{run}/policy/replay": true,

	"POST /v1/policies/check": true, "POST /v1/policies/show": true, "POST /v1/policies/why": true, "POST /v1/policies/diff": true, "GET /v1/policies/schema": true,
	"GET /v1/credentials": true, "POST /v1/credentials/{credential}/revoke": true, "POST /v1/credentials/{credential}/check": true,
	"GET /v1/approvals": true, "POST /v1/approvals/{approval}/approve": true, "POST /v1/approvals/{approval}/deny": true,
	"GET /v1/receipts": true, "GET /v1/receipts/{receipt}": true, "GET /v1/receipts/{receipt}/bundle": true, "POST /v1/receipts/{receipt}/verify": true,
}

// within rejects routes that are not for tokens restricted to labels.
func within(r *http.Request, route Route) error {
	p, _ := access.From(r.Context())
	if path, _ := route.Split(); !p.Restricted() || labelled[route.Method+" "+path] {
		return nil
	}
	return cell.Errorf(cell.Denied, "daemon", "use a token without labels", "it concerns the whole installation, and the token %s is restricted to %s", p.Name, access.LabelText(p.Bounds.Labels))
}
