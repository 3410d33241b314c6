package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// as returns the daemon as the caller sees it: with an engine that shows only what the caller
// may see. All handlers get it, so none can skip that check.
func (d *Daemon) as(r *http.Request) *Daemon {
	p, _ := access.From(r.Context())
	if p.Token == "" && !p.Here {
		return d
	}
	own := &Daemon{cfg: d.cfg, common: d.common}
	own.cfg.Engine = d.cfg.Engine.As(p)
	return own
}

// within rejects routes that are not for tokens restricted to labels.
func within(r *http.Request, route Route) error {
	p, _ := access.From(r.Context())
	if !p.Restricted() || route.Traits.has(labelled) {
		return nil
	}
	return cell.Errorf(cell.Denied, "daemon", "use a token without labels", "it concerns the whole installation, and the token %s is restricted to %s", p.Name, access.LabelText(p.Bounds.Labels))
}
