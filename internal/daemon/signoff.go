package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) signOffs(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.SignOffs(r.Context(), t)
}

func (d *Daemon) signOff(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.SignOffRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.SignOff(r.Context(), t, req)
}
