package engine

import (
	"context"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/workspace"
)

// newGC makes the manager of what is needed and what can go.
func (e *Engine) newGC() *gc.Manager {
	return gc.New(gc.Config{
		Home: e.cfg.Home, Log: e.log, Records: e.reg, Providers: e.cfg.Providers, Provider: e.providerOf, Pins: e.pins, Etc: e.etcDir(),
		MaxState: e.cfg.MaxState, MinFree: e.cfg.MinFree, Sources: e.sources,
		Images: e.images.List, ImageNeeded: func(i *oci.Image) bool { return len(e.cellsOn(i)) > 0 || e.pins.UsesImage(i.ID) },
		RemoveImage: func(i *oci.Image) error {
			_, err := e.RemoveImage(i.ID.String(), "", false)
			return err
		},
		RemoveCache: func(id string) error { return e.caches.Remove(id) },
		Lock: func(ctx context.Context, id cell.ID, why string) (func(), error) {
			return e.locks.AcquireUnlessRun(ctx, id, why)
		},
		TryLock: e.locks.TryAcquire, AtRest: e.alive.AtRest, AwaitGone: e.alive.AwaitGone, Remove: e.remove, Dropped: e.services.Follow,
		Tree: e.trees.get, ForgetTrees: e.trees.forget, Above: func(id cell.ID) []workspace.State { return e.spawn.Above(id) }, Begun: spawn.BegunLayers, BegunObjects: result.BegunObjects,
		ExpireEvidence: e.expireEvidence,
		Kept:           e.govern.Keep, Leftovers: e.leftovers, Background: e.background,
	})
}

// leftovers removes what keepers that died left, and names it; dry only names it.
func (e *Engine) leftovers(ctx context.Context, dry bool) (names []string, err error) {
	for _, b := range e.cfg.Backends {
		found, err := b.Leftovers(ctx, dry)
		for _, f := range found {
			if !slices.Contains(names, f) { // backends with cells in keepers share their folder
				names = append(names, f)
			}
		}
		if err != nil {
			return names, err
		}
	}
	return names, nil
}
