package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) hold(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.HoldRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Hold(r.Context(), t, req)
}

func (d *Daemon) holds(http.ResponseWriter, *http.Request) (any, error) {
	return d.cfg.Engine.Holds(), nil
}

func (d *Daemon) erase(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.EraseRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Erase(r.Context(), t.Run, req)
}
