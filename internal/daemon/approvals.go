package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) listApprovals(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Approvals(queryBool(r, "all")), nil
}

func (d *Daemon) approve(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.ApprovalRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Answer(r.Context(), r.PathValue("approval"), true, req.Scope)
}

func (d *Daemon) deny(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Answer(r.Context(), r.PathValue("approval"), false, "")
}
