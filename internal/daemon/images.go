package daemon

import (
	"context"
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) listImages(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Images()
}

func (d *Daemon) pullImage(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.ImagePullRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, req.Image, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.PullImage(ctx, req, out)
	})
}

func (d *Daemon) removeImage(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.RemoveImage(r.URL.Query().Get("image"), r.URL.Query().Get("dir"), queryBool(r, "dry_run"))
}
