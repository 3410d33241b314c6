package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) branch(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.BranchRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Branch(r.Context(), id, req)
}
