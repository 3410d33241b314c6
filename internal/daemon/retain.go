package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (d *Daemon) hold(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.HoldRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, func(string, string) (cell.ID, error) { return d.cellOf(r) })
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
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Erase(r.Context(), id, req)
}
