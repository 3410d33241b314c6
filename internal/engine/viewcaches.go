package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
)

// Caches lists the caches that are kept for sources, or for one.
func (v *View) Caches(source string) ([]api.Cache, error) {
	if err := v.whole("the caches of sources"); err != nil {
		return nil, err
	}
	out := []api.Cache{}
	for _, k := range v.e.reg.Caches() {
		if source == "" || k.Source == source {
			out = append(out, cacheView(&k))
		}
	}
	return out, nil
}

// CheckCache compares the files of a cache that are named by what they hold with their names.
func (v *View) CheckCache(ctx context.Context, id string) (api.CacheCheck, error) {
	if err := v.whole("the caches of sources"); err != nil {
		return api.CacheCheck{}, err
	}
	k, err := v.e.reg.Cache(id)
	if err != nil {
		return api.CacheCheck{}, err
	}
	found, err := v.e.caches.Verify(ctx, id)
	return api.CacheCheck{Cache: cacheView(&k), Files: found.Files, Bad: append([]string{}, found.Bad...)}, err
}

// RemoveCache removes a cache.
func (v *View) RemoveCache(id string) (api.Cache, error) {
	if err := v.whole("the caches of sources"); err != nil {
		return api.Cache{}, err
	}
	k, err := v.e.reg.Cache(id)
	if err != nil {
		return api.Cache{}, err
	}
	return cacheView(&k), v.e.caches.Remove(id)
}
