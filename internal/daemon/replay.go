package daemon

import (
	"context"
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) replayRun(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.ReplayRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cfg.Engine.SelectRun(selector(r, "run"), r.URL.Query().Get("dir")) // the run stays as it is: "-" is allowed
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, string(id), func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Replay(ctx, id, req)
	})
}
