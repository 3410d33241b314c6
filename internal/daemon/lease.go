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
	return d.cfg.Engine.Create(r.Context(), req)
}

func (d *Daemon) leaseCell(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.LeaseRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Lease(r.Context(), id, req)
}
