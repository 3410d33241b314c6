package daemon

import (
	"context"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (d *Daemon) listTemplates(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Templates(), nil
}

// templateOf returns the template name in a path, after checking it.
func templateOf(r *http.Request) (string, error) {
	name := r.PathValue("template")
	return name, cell.CheckName(name)
}

func (d *Daemon) getTemplate(w http.ResponseWriter, r *http.Request) (any, error) {
	name, err := templateOf(r)
	if err != nil {
		return nil, err
	}
	if tag := d.cfg.Engine.TemplateTag(name); tag != "" { // read before the template: a change in between makes it stale
		setTag(w, tag)
	}
	return d.cfg.Engine.Template(name)
}

func (d *Daemon) buildTemplate(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.TemplateRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, req.Name, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.BuildTemplate(ctx, req, out, precondition(r))
	})
}

func (d *Daemon) removeTemplate(w http.ResponseWriter, r *http.Request) (any, error) {
	name, err := templateOf(r)
	if err != nil {
		return nil, err
	}
	how := api.TemplateRemoval{Cascade: queryBool(r, "cascade"), Force: queryBool(r, "force"), DryRun: queryBool(r, "dry_run")}
	if allowed(r, Admin) != nil {
		if err := d.mayRemoveTemplate(r, name, &how); err != nil {
			return nil, err
		}
	}
	return d.cfg.Engine.RemoveTemplate(r.Context(), name, how)
}

// mayRemoveTemplate is mayRemove for a template and, with cascade, its forks. It removes the
// forks itself: a fork that another token makes meanwhile then makes the removal of the template
// fail.
func (d *Daemon) mayRemoveTemplate(r *http.Request, name string, how *api.TemplateRemoval) error {
	t, err := d.cfg.Engine.Template(name)
	if err != nil {
		return err
	}
	if err := d.mayRemove(r, cell.ID(t.Cell), "it"); err != nil || !how.Cascade {
		return err
	}
	var forks []cell.ID
	for _, fork := range t.Cells {
		id, err := d.cfg.Engine.SelectCell(fork, "")
		if err != nil {
			return err
		}
		if err := d.mayRemove(r, id, "cell "+fork); err != nil {
			return err
		}
		forks = append(forks, id)
	}
	if how.DryRun {
		return nil
	}
	for _, id := range forks {
		if _, err := d.cfg.Engine.Remove(r.Context(), id, false); err != nil && cell.KindOf(err) != cell.NotFound {
			return err
		}
	}
	how.Cascade = false
	return nil
}

func (d *Daemon) forkTemplate(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decodeCounted[api.WarmForkRequest](w, r)
	if err != nil {
		return nil, err
	}
	name, err := templateOf(r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.ForkTemplate(ctx, name, req, out)
	})
}

func (d *Daemon) getOverview(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.AllStats(r.Context())
}
