package daemon

import (
	"context"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (d *Daemon) startRace(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RaceRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.StartRace(r.Context(), req, r.URL.Query().Get("dir"))
}

func (d *Daemon) listRaces(http.ResponseWriter, *http.Request) (any, error) {
	return d.cfg.Engine.Races(), nil
}

func (d *Daemon) getRace(_ http.ResponseWriter, r *http.Request) (any, error) {
	id := cell.RaceID(r.PathValue("race"))
	if queryBool(r, "wait") {
		return d.cfg.Engine.WaitRace(r.Context(), id)
	}
	return d.cfg.Engine.Race(id)
}

func (d *Daemon) interruptRace(_ http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.InterruptRace(r.Context(), cell.RaceID(r.PathValue("race")))
}

func (d *Daemon) watchRace(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.tellChanges(w, r, func(ctx context.Context, tell func(any) error) error {
		return d.cfg.Engine.FollowRace(ctx, cell.RaceID(r.PathValue("race")), func(now api.Race) error { return tell(now) })
	})
}
