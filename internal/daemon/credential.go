package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
)

func (d *Daemon) listCredentials(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Credentials(), nil
}

func (d *Daemon) addCredential(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.CredentialRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.AddCredential(r.Context(), req)
}

func (d *Daemon) removeCredential(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.RemoveCredential(r.Context(), selector(r, "credential"))
}

func (d *Daemon) revokeCredential(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RevokeRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.RevokeCredential(r.Context(), selector(r, "credential"), req)
}

func (d *Daemon) checkCredential(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.CheckCredential(selector(r, "credential"))
}
