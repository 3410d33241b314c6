package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Login is a user name and a password for a registry. They are sent only to the registry's
// own host, and to the host that it names for tokens. With the user IdentityUser the password is
// an identity token (OAuth 2 calls it a refresh token), which only the latter gets.
type Login struct {
	User     string
	Password string
}

// IdentityUser is what Docker's credential helpers call the user of an identity token.
const IdentityUser = "<token>"

func (l Login) identity() bool { return l.User == IdentityUser }

// registry is a source in a registry, spoken to as the OCI distribution
// specification (v1.1) and Docker's registry token documentation say.
type registry struct {
	ref   Reference
	login Login
	lim   Limits
	http  *http.Client
	agent string

	mu     sync.Mutex // guards what follows
	scheme string
	bearer string // what the registry wants as Authorization; "" for nothing
}

// How long a registry may be silent, and how often a transfer that broke off
// is taken up again.
const (
	silence = 60 * time.Second
	tries   = 3
)

func openRegistry(r Reference, login Login, lim Limits, agent string) *registry {
	g := &registry{ref: r, login: login, lim: lim, agent: agent, scheme: "https"}
	if loopback(r.Registry) {
		g.scheme = "http"
	}
	g.http = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 20 * time.Second}).DialContext,
			TLSHandshakeTimeout: 20 * time.Second, ResponseHeaderTimeout: silence, MaxIdleConnsPerHost: 4, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Host != via[0].URL.Host { // net/http keeps it for other ports and for subdomains
				req.Header.Del("Authorization")
			}
			if len(via) > 5 {
				return errors.New("too many redirections")
			}
			if !g.mayAsk(req.URL.Scheme, req.URL.Host) {
				return fmt.Errorf("it leads to %s://%s, which is not asked", req.URL.Scheme, cell.Clip(req.URL.Host))
			}
			return nil
		},
	}
	return g
}

// mayAsk reports whether a host that the registry names may be spoken to: over
// TLS, and not on this host, unless the registry is here, too.
func (g *registry) mayAsk(scheme, host string) bool {
	if loopback(g.ref.Registry) && loopback(host) {
		return scheme == "http" || scheme == "https"
	}
	return scheme == "https" && !loopback(host)
}

func (g *registry) remote() bool { return true }

func (g *registry) close() error {
	g.http.CloseIdleConnections()
	return nil
}

// host is where a registry's API is.
func (g *registry) host() string {
	if g.ref.Registry == "docker.io" {
		return "registry-1.docker.io"
	}
	return g.ref.Registry
}

const accepted = typeIndex + ", " + typeManifest + ", " + typeDockerIndex + ", " + typeDockerManifest

// find implements source.
func (g *registry) find(ctx context.Context, r Reference) (*found, error) {
	b, told, err := g.manifest(ctx, r.name())
	if err != nil {
		return nil, err
	}
	if !r.Digest.IsZero() {
		if got := cell.Sum(b); got != r.Digest {
			return nil, corrupt("cannot use %s: its content is %s", r, got)
		}
	}
	return resolve(b, told, g.lim, func(d descriptor) ([]byte, string, error) { return g.manifest(ctx, d.Digest.String()) })
}

func (g *registry) manifest(ctx context.Context, name string) (b []byte, told string, err error) {
	resp, err := g.get(ctx, "/manifests/"+name, map[string]string{"Accept": accepted})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(io.LimitReader(resp.Body, maxManifest+1)); err != nil {
		return nil, "", g.unreachable(err)
	}
	if len(b) > maxManifest {
		return nil, "", corrupt("cannot use %s: its manifest has more than %d bytes", g.ref, maxManifest)
	}
	if said := resp.Header.Get("Docker-Content-Digest"); strings.HasPrefix(said, "sha256:") && said != cell.Sum(b).String() {
		return nil, "", corrupt("cannot use %s: the registry says it is %s, and gives %s", g.ref, cell.Clip(said), cell.Sum(b))
	}
	return b, resp.Header.Get("Content-Type"), nil
}

// open implements source. A transfer that breaks off is taken up where it was.
func (g *registry) open(ctx context.Context, d descriptor) (io.ReadCloser, error) {
	if d.Digest.IsZero() {
		return nil, corrupt("cannot use %s: a blob has no digest", g.ref)
	}
	t := &transfer{g: g, ctx: ctx, d: d}
	return t, t.connect()
}

// transfer reads one blob.
type transfer struct {
	g      *registry
	ctx    context.Context
	d      descriptor
	n      int64
	failed int
	resp   *http.Response
	stop   context.CancelFunc
	quiet  *time.Timer
}

func (t *transfer) connect() error {
	ctx, stop := context.WithCancel(t.ctx)
	header := map[string]string{}
	if t.n > 0 {
		header["Range"] = "bytes=" + strconv.FormatInt(t.n, 10) + "-"
	}
	resp, err := t.g.get(ctx, "/blobs/"+t.d.Digest.String(), header)
	if err != nil {
		stop()
		return err
	}
	if t.n > 0 && resp.StatusCode != http.StatusPartialContent { // all of it again
		if _, err := io.CopyN(io.Discard, resp.Body, t.n); err != nil {
			resp.Body.Close()
			stop()
			return t.g.unreachable(err)
		}
	}
	t.resp, t.stop, t.quiet = resp, stop, time.AfterFunc(silence, stop)
	return nil
}

func (t *transfer) Read(p []byte) (int, error) {
	for {
		t.quiet.Reset(silence)
		n, err := t.resp.Body.Read(p)
		if t.n += int64(n); t.n > t.d.Size {
			return 0, corrupt("cannot use %s: it has more than %d bytes", t.d.Digest, t.d.Size)
		}
		if n > 0 || err == io.EOF && t.n == t.d.Size {
			if err != io.EOF {
				err = nil // it comes again, if it is one
			}
			if n > 0 {
				err = nil
			}
			return n, err
		}
		if err == nil {
			continue
		}
		if t.ctx.Err() != nil {
			return 0, context.Cause(t.ctx)
		}
		t.Close()
		if t.failed++; t.failed >= tries {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, t.g.unreachable(err)
		}
		select {
		case <-time.After(time.Duration(t.failed) * 500 * time.Millisecond):
		case <-t.ctx.Done():
			return 0, context.Cause(t.ctx)
		}
		if err := t.connect(); err != nil {
			return 0, err
		}
	}
}

func (t *transfer) Close() error {
	if t.resp == nil {
		return nil
	}
	t.quiet.Stop()
	t.stop()
	return t.resp.Body.Close()
}

// get asks the registry, with a token if it wants one.
func (g *registry) get(ctx context.Context, rest string, header map[string]string) (*http.Response, error) {
	for asked := false; ; asked = true {
		g.mu.Lock()
		scheme, bearer := g.scheme, g.bearer
		g.mu.Unlock()
		req, err := http.NewRequestWithContext(ctx, "GET", scheme+"://"+g.host()+"/v2/"+g.ref.Repository+rest, nil)
		if err != nil {
			return nil, err
		}
		for k, v := range header {
			req.Header.Set(k, v)
		}
		req.Header.Set("User-Agent", g.agent)
		if bearer != "" {
			req.Header.Set("Authorization", bearer)
		}
		resp, err := g.http.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, g.unreachable(err)
		}
		switch resp.StatusCode {
		case http.StatusOK, http.StatusPartialContent:
			return resp, nil
		case http.StatusUnauthorized:
			challenges := resp.Header.Values("Www-Authenticate")
			drain(resp)
			if asked {
				return nil, g.refused(resp.StatusCode)
			}
			if to := resp.Request.URL.Host; to != req.URL.Host { // what it names is not the registry's to answer for
				return nil, cell.Errorf(cell.Denied, "oci.Pull", "pull it from there, if you trust it", "cannot get %s: the registry leads to %s, which requires credentials of its own", g.ref, cell.Clip(to))
			}
			if err := g.authorize(ctx, challenges); err != nil {
				return nil, err
			}
			continue
		case http.StatusBadRequest:
			if scheme == "http" && !asked { // it speaks TLS
				drain(resp)
				g.mu.Lock()
				g.scheme = "https"
				g.mu.Unlock()
				continue
			}
		}
		drain(resp)
		return nil, g.refused(resp.StatusCode)
	}
}

func drain(resp *http.Response) {
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
}

// unreachable is the error for a registry that could not be asked.
func (g *registry) unreachable(err error) error {
	if k := cell.KindOf(err); k != cell.Internal {
		return err
	}
	return cell.Errorf(cell.Unavailable, "oci.Pull", "see whether this host can reach it, and try again", "cannot get %s: %w", g.ref, err)
}

// refused is the error for an answer other than the image.
func (g *registry) refused(status int) error {
	const op = "oci.Pull"
	switch status {
	case http.StatusNotFound:
		return cell.Errorf(cell.NotFound, op, "check its name and tag", "cannot get %s: the registry has no such image", g.ref)
	case http.StatusUnauthorized, http.StatusForbidden:
		if g.login == (Login{}) {
			return cell.Errorf(cell.Denied, op, "check its name; if it is private: pando image pull --docker-login "+g.ref.String(), "cannot get %s: the registry requires credentials", g.ref)
		}
		to := cell.Clip(g.login.User)
		if g.login.identity() {
			to = "the owner of the identity token"
		}
		return cell.Errorf(cell.Denied, op, "check the name, and what the credentials are for", "cannot get %s: the registry does not give it to %s", g.ref, to)
	case http.StatusTooManyRequests:
		return cell.Errorf(cell.Unavailable, op, "try again later, or log in", "cannot get %s: the registry has had too many requests", g.ref)
	}
	return cell.Errorf(cell.Unavailable, op, "try again later", "cannot get %s: the registry answers %d %s", g.ref, status, http.StatusText(status))
}
