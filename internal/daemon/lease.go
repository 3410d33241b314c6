package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) createCell(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.CreateRequest](w, r)
	if err != nil {
		return nil, err
	}
	if err := mayReach(r, createReaches(req)); err != nil {
		return nil, err
	}
	return d.cfg.Engine.Create(r.Context(), req)
}

func (d *Daemon) leaseCell(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.LeaseRequest](w, r)
	if err != nil {
		return nil, err
	}
	if req.Then == api.LeaseRemove { // as removing does
		if err := allowed(r, Admin); err != nil {
			return nil, err
		}
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Lease(r.Context(), id, req)
}

// createReaches lists what of the host a request for a cell names. A policy can
// name mounts, and is not looked into here.
func createReaches(req api.CreateRequest) []string {
	what := reaches(req.From, req.Backend, req.Image, req.Mounts)
	if req.Policy != "" {
		what = append(what, "what a policy of one's own may mount")
	}
	return what
}
