package daemon

import (
	"context"
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) branch(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decodeCounted[api.BranchRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Branch(ctx, id, req)
	})
}
