package daemon

import (
	"cmp"
	"net/http"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

func tokenOf(t access.Token) api.Token {
	v := api.Token{ID: t.ID, Name: t.Name, Scope: string(t.Level), Created: t.Created, Expires: t.Expires, Expired: t.Expired(time.Now()),
		Labels: t.Labels, MaxCells: t.MaxCells, Rate: t.Rate}
	if t.TTL > 0 {
		v.TTL = t.TTL.String()
	}
	return v
}

// boundsOf returns the bounds in a request for a token. Zero is rejected: it would be no bound.
func boundsOf(req api.TokenRequest) (b access.Bounds, err error) {
	const op = "daemon.createToken"
	b.Labels = req.Labels
	if req.MaxCells != nil {
		if b.MaxCells = *req.MaxCells; b.MaxCells == 0 {
			return b, cell.Errorf(cell.Invalid, op, "leave it out for any number; for reading alone use scope read", "0 is no number of cells")
		}
	}
	if req.Rate != nil {
		if b.Rate = *req.Rate; b.Rate == 0 {
			return b, cell.Errorf(cell.Invalid, op, "leave it out for the daemon's own limit", "0 is no number of requests in a second")
		}
	}
	if req.TTL != "" {
		if b.TTL, err = time.ParseDuration(req.TTL); err != nil || b.TTL <= 0 {
			return b, cell.Errorf(cell.Invalid, op, "write it as 90s, 10m or 12h", "%q is no time to live", cell.Clip(req.TTL))
		}
	}
	return b, b.Check()
}

func (d *Daemon) listTokens(http.ResponseWriter, *http.Request) (any, error) {
	out := []api.Token{}
	for _, u := range d.cfg.Tokens.List() {
		t := tokenOf(u.Token)
		t.Used = u.Last.UTC()
		if t.MaxCells > 0 {
			t.Cells = d.cfg.Engine.Made(t.ID)
		}
		out = append(out, t)
	}
	return out, nil
}

func (d *Daemon) createToken(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.TokenRequest](w, r)
	if err != nil {
		return nil, err
	}
	bounds, err := boundsOf(req)
	if err != nil {
		return nil, err
	}
	t, secret, err := d.cfg.Tokens.Make(req.Name, access.Level(cmp.Or(req.Scope, string(access.Run))), req.Expires, bounds)
	if err != nil {
		return nil, err
	}
	out := tokenOf(t)
	out.Secret = secret
	return out, nil
}

func (d *Daemon) removeToken(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := d.cfg.Tokens.Remove(r.PathValue("token"))
	return tokenOf(t), err
}
