package engine

import (
	"context"
	"slices"
	"syscall"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cache"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// newCaches makes the manager of the caches that are kept for sources.
func (e *Engine) newCaches() *cache.Manager {
	return cache.New(cache.Config{
		Records: e.reg, Log: e.log, State: e.cfg.Home.State, Empty: e.cfg.Home.Empty(), Private: e.private, Provider: e.providerOf,
		DropLayer: func(provider, layer string) { e.gc.DropLayer(provider, layer) }, Sync: func() error { return e.gc.SyncLayers() },
		Pin: func() func() { return e.pins.Begin().End }, Background: e.background, Most: cacheLimit(e.cfg.Home.State),
	})
}

// cacheLimit is how large one cache of a source may be, in bytes: a twentieth of the disk, and at least 2 GiB.
func cacheLimit(dir string) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 2 << 30
	}
	return max(2<<30, int64(st.Blocks)*int64(st.Bsize)/20)
}

// waitingCaches lists the caches that are kept when runs of a cell are accepted now. Those of one that lives are mounted: they
// are kept when they are not, if they may be then.
func (e *Engine) waitingCaches(id cell.ID, runs []cell.RunID) []string {
	if !e.alive.AtRest(id) {
		return nil
	}
	return e.caches.Waiting(id, runs)
}

// acceptedCaches keeps what a cell wrote to caches, which a person has just accepted.
func (e *Engine) acceptedCaches(ctx context.Context, id cell.ID) {
	if err := e.caches.Answer(id); err != nil {
		e.log.Warn("cannot keep caches", "cell", id, "error", err)
		return
	}
	e.keepCaches(ctx, id, "")
}

// keepCaches keeps what accepted runs of a cell at rest wrote to caches. also is a run that the registry does not know to be
// accepted yet.
func (e *Engine) keepCaches(ctx context.Context, id cell.ID, also cell.RunID) {
	if _, ok := e.reg.CellCaches(id); !ok || !e.alive.AtRest(id) {
		return
	}
	err := e.alive.AwaitGone(ctx, id)
	if err == nil {
		err = e.caches.Keep(ctx, id, also)
	}
	if err != nil {
		e.log.Warn("cannot keep caches", "cell", id, "error", err)
	}
}

// noteCaches notes in a run that ends what it had of caches.
func (e *Engine) noteCaches(ctx context.Context, c *state.Cell, run *state.Run) {
	if _, ok := e.reg.CellCaches(c.ID); !ok {
		return
	}
	if e.alive.AtRest(c.ID) {
		if err := e.alive.AwaitGone(ctx, c.ID); err != nil {
			e.log.Warn("cannot tell what a run wrote to caches", "run", run.ID, "error", err)
			return
		}
	}
	var err error
	if run.Caches, err = e.caches.Uses(c.ID, run.RunID()); err != nil {
		e.log.Warn("cannot tell what a run wrote to caches", "run", run.ID, "error", err)
	}
}

// endCaches keeps what a run that ends, and is accepted by itself, wrote to caches. It does not where an agent works, or the
// cell had something else than its source: that is code nothing was decided about. A caller that may accept no results brings
// nothing into caches either.
func (e *Engine) endCaches(ctx context.Context, c *state.Cell, run *state.Run) {
	if !run.In.Confined && run.Reason == api.ReasonNoChanges && c.Agent == "" && e.untouched(c, run) {
		e.keepCaches(ctx, c.ID, run.RunID())
	}
}

// untouched reports whether a cell had before a run what its source is known to have, and nothing else: it was made for that run,
// so that no run or command before has left anything in its home.
func (e *Engine) untouched(c *state.Cell, run *state.Run) bool {
	known := c.Known
	if k, ok := e.reg.FounderOf(c.Head); known.IsZero() && ok {
		known = k.Tree
	}
	return c.Anonymous() && c.Parent == nil && len(e.reg.Runs(c.ID)) == 1 && run.Before != nil && run.Before.TreeDigest == known.String()
}

// noCaches is the word of a request for no caches.
const noCaches = "off"

// planCaches checks which caches a request has kept.
func (e *Engine) planCaches(p *runPlan) (err error) {
	const opName = "engine.StartRun"
	req := &p.req
	switch req.CacheWrite {
	case "", cache.Accepted, cache.Always:
	default:
		return cell.Errorf(cell.Invalid, opName, "give accepted or always", "cannot keep caches %q", cell.Clip(req.CacheWrite))
	}
	if slices.Contains(req.Caches, noCaches) {
		if len(req.Caches) > 1 {
			return cell.Errorf(cell.Invalid, opName, "give off alone, or names", "cannot have caches both off and kept")
		}
		p.caches = nil
		return nil
	}
	if p.caches, err = image.CheckKept(req.Caches); err != nil || len(p.caches) == 0 {
		return err
	}
	if p.from != "" || p.cell != nil && p.cell.NoSource {
		return cell.Errorf(cell.Unsupported, opName, "leave out --cache", "cannot keep caches: they are kept for a directory of the daemon's host, and this cell begins with none")
	}
	caps, err := e.caps(e.life, p.backend)
	if err == nil && caps.Mounts != "" {
		err = cell.Errorf(cell.Unsupported, opName, "leave out --cache: what runs here uses the host's caches; or "+cell.Isolated, "cannot keep caches: %s", caps.Mounts)
	}
	return err
}

func cacheView(k *state.Cache) api.Cache {
	v := api.Cache{ID: k.ID, Name: k.Name, Source: k.Source, Image: k.Image, Bytes: k.Bytes(), Dirs: []string{}, Written: k.Written, Used: k.Used, Run: string(k.Run)}
	for _, d := range k.Dirs {
		v.Dirs = append(v.Dirs, d.Target)
	}
	return v
}
