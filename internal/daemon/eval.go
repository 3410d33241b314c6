package daemon

import (
	"context"
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) eval(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.EvalRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Eval(ctx, id, req, out)
	})
}
