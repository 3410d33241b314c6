package oci

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// authorize gets what a registry asks for with 401: the credentials themselves,
// or a token.
func (g *registry) authorize(ctx context.Context, challenges []string) error {
	value := ""
	for _, c := range challenges {
		scheme, params := challenge(c)
		switch {
		case strings.EqualFold(scheme, "bearer"):
			token, err := g.token(ctx, params)
			if err != nil {
				return err
			}
			value = "Bearer " + token
		case strings.EqualFold(scheme, "basic") && value == "" && g.login != (Login{}) && !g.login.identity():
			value = g.login.basic()
		}
	}
	if value == "" {
		return g.refused(http.StatusUnauthorized)
	}
	g.mu.Lock()
	g.bearer = value
	g.mu.Unlock()
	return nil
}

func (l Login) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.User+":"+l.Password))
}

// token asks the service that the registry names for a token to pull.
func (g *registry) token(ctx context.Context, params map[string]string) (string, error) {
	u, err := url.Parse(params["realm"])
	if err != nil || !g.mayAsk(u.Scheme, u.Host) || u.User != nil {
		return "", cell.Errorf(cell.Denied, "oci.Pull", "use another registry", "cannot get %s: the registry asks to log in at %q, which is not asked", g.ref, cell.Clip(params["realm"]))
	}
	req, err := g.tokenRequest(ctx, u, params["service"])
	if err != nil {
		return "", err
	}
	req.Header.Set("User-Agent", g.agent)
	client := *g.http
	if g.login.identity() { // a redirection could take the body along, to any host
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", g.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", g.refused(resp.StatusCode)
	}
	var t struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&t); err != nil {
		return "", g.unreachable(err)
	}
	if t.Token == "" {
		t.Token = t.Access
	}
	if t.Token == "" || strings.ContainsAny(t.Token, "\r\n") {
		return "", g.refused(http.StatusUnauthorized)
	}
	return t.Token, nil
}

// tokenRequest asks for a token with user and password, or with an identity token: see "Token
// authentication" and "OAuth 2 token authentication" of the distribution registry.
func (g *registry) tokenRequest(ctx context.Context, u *url.URL, service string) (*http.Request, error) {
	scope := "repository:" + g.ref.Repository + ":pull"
	if g.login.identity() {
		form := url.Values{"grant_type": {"refresh_token"}, "client_id": {"pando"}, "service": {service}, "scope": {scope}, "refresh_token": {g.login.Password}}
		req, err := http.NewRequestWithContext(ctx, "POST", u.String(), strings.NewReader(form.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return req, err
	}
	q := u.Query()
	if service != "" {
		q.Set("service", service)
	}
	q.Set("scope", scope)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, "GET", u.String(), nil)
	if err == nil && g.login != (Login{}) {
		req.Header.Set("Authorization", g.login.basic())
	}
	return req, err
}

// challenge takes a WWW-Authenticate header apart (RFC 9110, 11.6.1), as far as
// registries use it: one scheme, and parameters.
func challenge(s string) (scheme string, params map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	params = map[string]string{}
	for rest = strings.TrimLeft(rest, " ,"); rest != ""; rest = strings.TrimLeft(rest, " ,") {
		name, after, ok := strings.Cut(rest, "=")
		if !ok {
			break
		}
		var value string
		if quoted, ok := strings.CutPrefix(after, `"`); ok {
			var b strings.Builder
			i := 0
			for ; i < len(quoted) && quoted[i] != '"'; i++ {
				if quoted[i] == '\\' && i+1 < len(quoted) {
					i++
				}
				b.WriteByte(quoted[i])
			}
			value, rest = b.String(), quoted[min(i+1, len(quoted)):]
		} else {
			value, rest, _ = strings.Cut(after, ",")
		}
		params[strings.ToLower(strings.TrimSpace(name))] = value
	}
	return scheme, params
}
