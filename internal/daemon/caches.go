package daemon

import "net/http"

func (d *Daemon) listCaches(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Caches(r.URL.Query().Get("source"))
}

func (d *Daemon) checkCache(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.CheckCache(r.Context(), r.PathValue("cache"))
}

func (d *Daemon) removeCache(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.RemoveCache(r.PathValue("cache"))
}
