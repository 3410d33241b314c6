package daemon

import (
	"context"
	"net/http"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (d *Daemon) createCell(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.CreateRequest](w, r)
	if err != nil {
		return nil, err
	}
	if err := labelsOfOthers(req.Labels); err != nil {
		return nil, err
	}
	return d.stream(w, r, req.Name, func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Create(ctx, req)
	})
}

func (d *Daemon) leaseCell(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.LeaseRequest](w, r)
	if err != nil {
		return nil, err
	}
	if err := labelsOfOthers(req.Labels); err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	if req.Then == api.LeaseRemove { // removal needs the same rights
		if err := d.mayRemove(r, id, "it"); err != nil {
			return nil, err
		}
	}
	return d.cfg.Engine.Lease(r.Context(), id, req, precondition(r))
}

// labelsOfOthers rejects labels by which another API identifies its cells, such as e2b:template.
// Setting them would circumvent checks of that API.
func labelsOfOthers(labels map[string]string) error {
	for k := range labels {
		if strings.Contains(k, ":") {
			return cell.Errorf(cell.Invalid, "daemon", "use a name without a colon", "cannot set label %s: such names are reserved", cell.Clip(k))
		}
	}
	return nil
}
