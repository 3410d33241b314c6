package daemon

import (
	"cmp"
	"net/http"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
)

func tokenOf(t access.Token) api.Token {
	return api.Token{ID: t.ID, Name: t.Name, Scope: string(t.Level), Created: t.Created, Expires: t.Expires, Expired: t.Expired(time.Now())}
}

func (d *Daemon) listTokens(http.ResponseWriter, *http.Request) (any, error) {
	out := []api.Token{}
	for _, u := range d.cfg.Tokens.List() {
		t := tokenOf(u.Token)
		t.Used = u.Last.UTC()
		out = append(out, t)
	}
	return out, nil
}

func (d *Daemon) createToken(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.TokenRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, secret, err := d.cfg.Tokens.Create(req.Name, access.Level(cmp.Or(req.Scope, string(access.Run))), req.Expires)
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
