package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pando-dev/pando/internal/cell"
)

// served is a registry on loopback that counts what is asked.
type served struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	wrap  func(w http.ResponseWriter, r *http.Request) bool // answers itself, or says false
}

func serve(t testing.TB) *served {
	s := &served{}
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v2/"))
		wrap := s.wrap
		s.mu.Unlock()
		if wrap == nil || !wrap(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *served) host() string { return strings.TrimPrefix(s.URL, "http://") }

// took returns what was asked since it was called last.
func (s *served) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked
	s.asked = nil
	return out
}

// push uploads an image under a tag, and returns the digest of what has the tag.
func (s *served) push(t testing.TB, b *built, repo, tag string) cell.Digest {
	t.Helper()
	raw := b.finish(t)
	do := func(method, path, mediaType string, body []byte) {
		req, err := http.NewRequest(method, s.URL+"/v2/"+repo+path, bytes.NewReader(body))
		must(t, err)
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		defer resp.Body.Close()
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %s: %s", method, path, resp.Status, readAll(t, resp.Body))
		}
	}
	var manifests [][]byte
	for d, blob := range b.blobs {
		var m struct{ MediaType string }
		if json.Unmarshal(blob, &m) == nil && (m.MediaType == typeManifest || m.MediaType == typeIndex) {
			manifests = append(manifests, blob)
			continue
		}
		do("POST", "/blobs/uploads/?digest="+url.QueryEscape(d.String()), "application/octet-stream", blob)
	}
	for _, m := range manifests {
		do("PUT", "/manifests/"+cell.Sum(m).String(), typeManifest, m)
	}
	if b.top != nil {
		do("PUT", "/manifests/"+tag, typeIndex, raw)
	} else {
		do("PUT", "/manifests/"+tag, typeManifest, manifests[0])
		raw = manifests[0]
	}
	s.took()
	return cell.Sum(raw)
}

func TestPullFromARegistry(t *testing.T) {
	reg, s := serve(t), newStore(t)
	b := buildImage(t, tarOf(t, item{name: "a", text: "1"}), tarOf(t, item{name: "b", text: "2"}))
	top := reg.push(t, b, "app/web", "1.0")
	r, err := Parse(reg.host()+"/app/web:1.0", "/")
	must(t, err)
	if _, err := s.Known(r); cell.KindOf(err) != cell.NotFound {
		t.Errorf("known before it was pulled: %v", err)
	}
	layers := map[int]int64{}
	img, err := s.Pull(t.Context(), r, PullOptions{Report: func(p Progress) {
		if p.Step == "pulling" {
			layers[p.Layer] = p.Done
			if p.Layers != 2 || p.Done > p.Total || p.Digest == "" {
				t.Errorf("progress %+v", p)
			}
		}
	}})
	must(t, err)
	wantListing(t, img.Root, "-rw-r--r-- a 1", "-rw-r--r-- b 2")
	if img.Digest != top || len(layers) != 2 || layers[1] == 0 {
		t.Errorf("image %s, want %s; progress %v", img.Digest, top, layers)
	}
	first := reg.took()
	if len(first) != 4 {
		t.Errorf("asked %q, want manifest, config, and two layers", first)
	}
	if known, err := s.Known(r); err != nil || known.ID != img.ID || known.Digest != top {
		t.Errorf("Known = %+v, %v", known, err)
	}

	// Again, it costs its manifest; by digest, too.
	again, err := s.Pull(t.Context(), r, PullOptions{})
	must(t, err)
	if asked := reg.took(); len(asked) != 1 || again.ID != img.ID {
		t.Errorf("the second pull asked %q", asked)
	}
	byDigest, err := pull(t, s, reg.host()+"/app/web@"+top.String())
	must(t, err)
	if asked := reg.took(); len(asked) != 1 || byDigest.ID != img.ID {
		t.Errorf("by digest: asked %q", asked)
	}
	list, err := s.List()
	must(t, err)
	if len(list) != 1 || len(list[0].Refs) != 2 {
		t.Errorf("kept %+v, want one image with two references", list)
	}
	must(t, s.Remove(img.ID, func() error { return nil }))
	if list, _ := s.List(); len(list) != 0 {
		t.Errorf("kept %+v after it was removed", list)
	}
	if _, err := s.Known(r); cell.KindOf(err) != cell.NotFound {
		t.Errorf("known after it was removed: %v", err)
	}
	if m, _ := filepath.Glob(filepath.Join(s.dir, "*.partial")); len(m) > 0 {
		t.Errorf("%q left", m)
	}
}

func TestPullChoosesThePlatform(t *testing.T) {
	reg, s := serve(t), newStore(t)
	b := buildImage(t, tarOf(t, item{name: "a", text: "1"}))
	b.top = func(d map[string]any) map[string]any {
		ours := map[string]any{}
		for k, v := range d {
			ours[k] = v
		}
		ours["platform"] = map[string]any{"os": "linux", "architecture": b.config["architecture"]}
		other := b.put(t, typeManifest, map[string]any{"schemaVersion": 2, "mediaType": typeManifest, "config": blobDesc(typeConfig, []byte("x")), "layers": []any{}})
		other["platform"] = map[string]any{"os": "linux", "architecture": "s390x"}
		return map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []any{other, ours}}
	}
	reg.push(t, b, "m", "latest")
	img, err := pull(t, s, reg.host()+"/m")
	must(t, err)
	wantListing(t, img.Root, "-rw-r--r-- a 1")
}

// A registry that lies, breaks off, or sends its caller elsewhere.
func TestG57HostileRegistries(t *testing.T) {
	b := buildImage(t, tarOf(t, item{name: "a", text: strings.Repeat("x", 1000)}))
	big := 0
	for name, c := range map[string]struct {
		wrap func(w http.ResponseWriter, r *http.Request) bool
		kind cell.Kind
	}{
		"another manifest than was asked for": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/sha256:") {
				return false
			}
			w.Header().Set("Content-Type", typeManifest)
			io.WriteString(w, `{"schemaVersion":2,"mediaType":"`+typeManifest+`","config":{},"layers":[]}`)
			return true
		}, cell.Corrupt},
		"a manifest without an end": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			for range 1024 {
				if _, err := w.Write(make([]byte, 16<<10)); err != nil {
					break
				}
			}
			return true
		}, cell.Corrupt},
		"a blob without an end": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			for range 1024 {
				if _, err := w.Write(make([]byte, 16<<10)); err != nil {
					break
				}
				big += 16 << 10
			}
			return true
		}, cell.Corrupt},
		"a blob that always breaks off": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			w.Header().Set("Content-Length", "100000")
			w.Write([]byte("x"))
			return true
		}, cell.Unavailable},
		"a redirection without TLS": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
			return true
		}, cell.Unavailable},
		"a redirection without an end": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
			return true
		}, cell.Unavailable},
		"a login without TLS": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://192.0.2.1/token",service="x"`)
			w.WriteHeader(401)
			return true
		}, cell.Denied},
		"a login that is never enough": {func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasPrefix(r.URL.Path, "/token") {
				io.WriteString(w, `{"token":"t"}`)
				return true
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
			w.WriteHeader(401)
			return true
		}, cell.Denied},
		"no image":     {func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(404); return true }, cell.NotFound},
		"too often":    {func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(429); return true }, cell.Unavailable},
		"out of order": {func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(503); return true }, cell.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			reg, s := serve(t), newStore(t)
			d := reg.push(t, b, "m", "1")
			reg.wrap = c.wrap
			_, err := pull(t, s, reg.host()+"/m:1@"+d.String())
			if cell.KindOf(err) != c.kind {
				t.Errorf("the pull says %v (%s), want %s", err, cell.KindOf(err), c.kind)
			}
			nothingLeft(t, s)
		})
	}
	if big > 8<<20 {
		t.Errorf("%d bytes were read of a blob that says it is small", big)
	}
}

// The hosts that a registry may redirect to.
func TestG57RegistriesSendNobodyInside(t *testing.T) {
	for _, c := range []struct {
		registry, url string
		may           bool
	}{
		{"docker.io", "https://auth.docker.io", true}, {"docker.io", "https://cdn.example:8443", true}, {"docker.io", "http://auth.docker.io", false}, {"docker.io", "https://127.0.0.1", false},
		{"docker.io", "http://localhost:5000", false}, {"docker.io", "https://[::1]:5000", false}, {"docker.io", "ftp://x.example", false},
		{"localhost:5000", "http://localhost:5001", true}, {"localhost:5000", "http://127.0.0.1", true}, {"localhost:5000", "http://x.example", false}, {"localhost:5000", "https://x.example", true},
	} {
		u, err := url.Parse(c.url)
		must(t, err)
		g := openRegistry(Reference{Registry: c.registry, Repository: "a"}, Login{}, smallLimits, "test")
		if got := g.mayAsk(u.Scheme, u.Host); got != c.may {
			t.Errorf("%s may send to %s: %v", c.registry, c.url, got)
		}
		first := &http.Request{URL: &url.URL{Scheme: "https", Host: c.registry}}
		if err := g.http.CheckRedirect(&http.Request{URL: u}, []*http.Request{first}); (err == nil) != c.may {
			t.Errorf("%s redirects to %s: %v", c.registry, c.url, err)
		}
	}
}

// A transfer that breaks off is taken up where it was.
func TestTransfersAreTakenUp(t *testing.T) {
	reg, s := serve(t), newStore(t)
	var text strings.Builder
	for i := range 20000 {
		text.WriteString(itoa(i * 7919))
	}
	b := buildImage(t, tarOf(t, item{name: "a", text: text.String()}))
	reg.push(t, b, "m", "1")
	var broken atomic.Int32
	reg.wrap = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || broken.Load() > 1 {
			return false
		}
		d, _ := cell.ParseDigest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		blob := b.blobs[d]
		if len(blob) < 4096 {
			return false
		}
		if broken.Add(1) == 1 {
			w.Header().Set("Content-Length", itoa(len(blob)))
			w.Write(blob[:1000])
			return true // closed too early
		}
		if got := r.Header.Get("Range"); got != "bytes=1000-" {
			t.Errorf("taken up with Range %q", got)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
		return true
	}
	img, err := pull(t, s, reg.host()+"/m:1")
	must(t, err)
	wantListing(t, img.Root, "-rw-r--r-- a "+text.String())
}

// Credentials go to the registry that asks for them, and to its tokens.
func TestLogin(t *testing.T) {
	b := buildImage(t, tarOf(t, item{name: "a", text: "1"}))
	for _, how := range []string{"bearer", "basic"} {
		t.Run(how, func(t *testing.T) {
			reg := serve(t)
			reg.push(t, b, "private/app", "1")
			reg.wrap = func(w http.ResponseWriter, r *http.Request) bool {
				user, pass, _ := r.BasicAuth()
				if r.URL.Path == "/token" {
					if q := r.URL.Query(); q.Get("scope") != "repository:private/app:pull" || q.Get("service") != "my, registry" {
						t.Errorf("a token was asked for with %q", r.URL.RawQuery)
					}
					if user != "me" || pass != "secret" {
						w.WriteHeader(401)
						return true
					}
					io.WriteString(w, `{"access_token":"abc"}`)
					return true
				}
				if how == "bearer" && r.Header.Get("Authorization") == "Bearer abc" || how == "basic" && user == "me" && pass == "secret" {
					return false
				}
				challenge := `Basic realm="x"`
				if how == "bearer" {
					challenge = `Bearer realm="http://` + r.Host + `/token",service="my, registry",scope="repository:private/app:pull"`
				}
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(401)
				return true
			}
			r, err := Parse(reg.host()+"/private/app:1", "/")
			must(t, err)
			s := newStore(t)
			if _, err := s.Pull(t.Context(), r, PullOptions{}); cell.KindOf(err) != cell.Denied || strings.Contains(err.Error(), "secret") {
				t.Errorf("without credentials: %v", err)
			}
			if _, err := s.Pull(t.Context(), r, PullOptions{Login: Login{"me", "wrong"}}); cell.KindOf(err) != cell.Denied || strings.Contains(err.Error(), "wrong") {
				t.Errorf("with wrong ones: %v", err)
			}
			if _, err := s.Pull(t.Context(), r, PullOptions{Login: Login{"me", "secret"}}); err != nil {
				t.Errorf("with the right ones: %v", err)
			}
		})
	}
}

// An identity token goes to the service for tokens alone: not to a registry that asks for a
// password, and not to where a redirection leads.
func TestIdentityToken(t *testing.T) {
	b := buildImage(t, tarOf(t, item{name: "a", text: "1"}))
	elsewhere := serve(t)
	elsewhere.wrap = func(w http.ResponseWriter, r *http.Request) bool {
		t.Errorf("the token may have gone elsewhere: %s %s", r.Method, r.URL)
		return false
	}
	for how, works := range map[string]bool{"bearer": true, "wrong": false, "basic": false, "redirected": false} {
		t.Run(how, func(t *testing.T) {
			reg := serve(t)
			reg.push(t, b, "private/app", "1")
			reg.wrap = func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case strings.Contains(r.Header.Get("Authorization"), "Basic"):
					t.Errorf("it was sent as a password: %s", r.URL)
				case r.URL.Path == "/token" && how == "redirected":
					http.Redirect(w, r, elsewhere.URL+"/token", http.StatusTemporaryRedirect)
					return true
				case r.URL.Path == "/token":
					r.ParseForm()
					if f := r.PostForm; r.Method != "POST" || f.Get("grant_type") != "refresh_token" || f.Get("service") != "s" || f.Get("scope") != "repository:private/app:pull" || f.Get("client_id") == "" {
						t.Errorf("a token was asked for with %s %v", r.Method, f)
					}
					if r.PostForm.Get("refresh_token") != "s3cr3t-1" {
						w.WriteHeader(401)
						return true
					}
					io.WriteString(w, `{"access_token":"abc"}`)
					return true
				case r.Header.Get("Authorization") == "Bearer abc":
					return false
				}
				challenge := `Bearer realm="http://` + r.Host + `/token",service="s"`
				if how == "basic" {
					challenge = `Basic realm="x"`
				}
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(401)
				return true
			}
			r, err := Parse(reg.host()+"/private/app:1", "/")
			must(t, err)
			token := "s3cr3t-1"
			if how == "wrong" {
				token = "s3cr3t-2"
			}
			_, err = newStore(t).Pull(t.Context(), r, PullOptions{Login: Login{IdentityUser, token}})
			if works != (err == nil) || (how == "wrong" || how == "basic") && cell.KindOf(err) != cell.Denied || err != nil && strings.Contains(err.Error(), token) {
				t.Error(err)
			}
		})
	}
}

// Where a registry keeps its blobs elsewhere, the login is not sent there, not even to another
// port of the same host.
func TestLoginStaysWithTheRegistry(t *testing.T) {
	b := buildImage(t, tarOf(t, item{name: "a", text: "1"}))
	blobs, reg := serve(t), serve(t)
	var sent, asked atomic.Int64
	blobs.push(t, b, "private/app", "1")
	blobs.wrap = func(w http.ResponseWriter, r *http.Request) bool {
		asked.Add(1)
		if r.Header.Get("Authorization") != "" {
			sent.Add(1)
		}
		return false
	}
	reg.push(t, b, "private/app", "1")
	reg.wrap = func(w http.ResponseWriter, r *http.Request) bool {
		if user, _, _ := r.BasicAuth(); user != "me" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(401)
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, blobs.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	r, err := Parse(reg.host()+"/private/app:1", "/")
	must(t, err)
	if _, err := newStore(t).Pull(t.Context(), r, PullOptions{Login: Login{"me", "secret"}}); err != nil {
		t.Fatal(err)
	}
	if asked.Load() == 0 || sent.Load() > 0 {
		t.Errorf("the other server was asked %d times, %d of them with the login", asked.Load(), sent.Load())
	}
}

// A server that the registry redirects to asks for a login. It gets none, and neither does the
// service for tokens that it names.
func TestRedirectsAskForNoLogin(t *testing.T) {
	b := buildImage(t, tarOf(t, item{name: "a", text: "1"}))
	for what, part := range map[string]string{"manifest": "/manifests/", "blob": "/blobs/"} {
		for _, login := range []Login{{}, {"me", "secret"}, {IdentityUser, "secret"}} {
			blobs, reg, tokens := serve(t), serve(t), serve(t)
			reg.push(t, b, "private/app", "1")
			var asked, sent atomic.Int64
			tokens.wrap = func(w http.ResponseWriter, r *http.Request) bool { sent.Add(1); return false }
			blobs.wrap = func(w http.ResponseWriter, r *http.Request) bool {
				asked.Add(1)
				if r.Header.Get("Authorization") != "" {
					sent.Add(1)
				}
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+tokens.URL+`/token",service="x"`)
				w.WriteHeader(401)
				return true
			}
			reg.wrap = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, part) {
					http.Redirect(w, r, blobs.URL+r.URL.Path, http.StatusTemporaryRedirect)
					return true
				}
				return false
			}
			r, err := Parse(reg.host()+"/private/app:1", "/")
			must(t, err)
			_, err = newStore(t).Pull(t.Context(), r, PullOptions{Login: login})
			if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), blobs.host()) {
				t.Errorf("%s, %q: %v, want denied with the other host", what, login.User, err)
			}
			if asked.Load() == 0 || sent.Load() > 0 {
				t.Errorf("%s, %q: the other server was asked %d times, a login went out %d times", what, login.User, asked.Load(), sent.Load())
			}
		}
	}
}

// Another implementation's archives and layouts are read, and give the same
// image as the registry does.
func TestArchivesOfOthers(t *testing.T) {
	lower := tarOf(t, item{name: "d", kind: tar.TypeDir}, item{name: "d/a", text: "1"}, item{name: "d/b", text: "2"})
	upper := tarOf(t, item{name: "d/.wh.a"}, item{name: "c", text: "3"})
	img := v1.Image(empty.Image)
	for _, raw := range [][]byte{lower, upper} {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
		must(t, err)
		img, err = mutate.AppendLayers(img, l)
		must(t, err)
	}
	conf, err := img.ConfigFile()
	must(t, err)
	conf = conf.DeepCopy()
	conf.Config.Env = []string{"A=1"}
	img, err = mutate.ConfigFile(img, conf)
	must(t, err)
	dir := t.TempDir()
	tag, err := name.NewTag("example.test/app:1")
	must(t, err)
	must(t, tarball.WriteToFile(filepath.Join(dir, "docker.tar"), tag, img))
	raw, err := os.ReadFile(filepath.Join(dir, "docker.tar"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "docker.tar.gz"), gz(t, raw), 0o644))
	p, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	must(t, err)
	must(t, p.AppendImage(img, layout.WithAnnotations(map[string]string{refName: "1"})))
	must(t, p.AppendImage(empty.Image, layout.WithAnnotations(map[string]string{refName: "other"})))
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	must(t, w.AddFS(os.DirFS(filepath.Join(dir, "layout"))))
	must(t, w.Close())
	must(t, os.WriteFile(filepath.Join(dir, "layout.tar"), packed.Bytes(), 0o644))

	want, err := img.ConfigName()
	must(t, err)
	for _, ref := range []string{"docker.tar", "docker.tar.gz", "layout:1", "layout.tar:1"} {
		t.Run(ref, func(t *testing.T) {
			s := newStore(t)
			got, err := pull(t, s, filepath.Join(dir, ref))
			must(t, err)
			wantListing(t, got.Root, "drwxr-xr-x d", "-rw-r--r-- d/b 2", "-rw-r--r-- c 3")
			if got.ID.String() != want.String() {
				t.Errorf("image %s, want %s", got.ID, want)
			}
			again, err := s.Pull(context.Background(), mustParse(t, filepath.Join(dir, ref)), PullOptions{Report: func(p Progress) {
				if p.Step == "unpacking" {
					t.Error("it is unpacked again")
				}
			}})
			if err != nil || again.ID != got.ID {
				t.Errorf("again: %v, %v", again.ID, err)
			}
		})
	}
	s := newStore(t)
	if _, err := pull(t, s, filepath.Join(dir, "layout")); cell.KindOf(err) != cell.Invalid || !strings.Contains(err.Error(), "1, other") {
		t.Errorf("of two images none was named: %v", err)
	}
	if _, err := pull(t, s, filepath.Join(dir, "layout:2")); cell.KindOf(err) != cell.NotFound {
		t.Errorf("a tag that is not there: %v", err)
	}
	nothingLeft(t, s)
}

func mustParse(t testing.TB, s string) Reference {
	r, err := Parse(s, "/")
	must(t, err)
	return r
}

func TestParse(t *testing.T) {
	d := "sha256:" + strings.Repeat("a", 64)
	for in, want := range map[string]string{
		"python": "docker.io/library/python:latest", "python:3.12-slim": "docker.io/library/python:3.12-slim", "me/app": "docker.io/me/app:latest",
		"docker.io/library/python:3": "docker.io/library/python:3", "index.docker.io/python": "docker.io/library/python:latest", "ghcr.io/a/b/c:1": "ghcr.io/a/b/c:1",
		"localhost/a": "localhost/a:latest", "localhost:5000/a:1": "localhost:5000/a:1", "127.0.0.1:5000/a@" + d: "127.0.0.1:5000/a@" + d, "[::1]:5000/a:1": "[::1]:5000/a:1", "a:1@" + d: "docker.io/library/a:1@" + d,
	} {
		r, err := Parse(in, "/")
		if err != nil || r.String() != want {
			t.Errorf("Parse(%q) = %s, %v, want %s", in, r, err, want)
			continue
		}
		if again, err := Parse(r.String(), "/"); err != nil || again != r {
			t.Errorf("Parse(%q) = %+v, %v, want %+v", r, again, err, r)
		}
	}
	for _, in := range []string{"", "a:", "a:b:c", "a@sha256:1", "a@", "A", "a//b", "a/../b", "a b", "host.x/", "host.x:/a", "host.x:p/a", "-a", "a:-b", "http://host/a", "user:pw@host.x/a", "host.x/a?b", "[::1/a", "a\x00", strings.Repeat("a", 300)} {
		if r, err := Parse(in, "/"); cell.KindOf(err) != cell.Invalid {
			t.Errorf("Parse(%q) = %+v, %v, want an error", in, r, err)
		}
	}
	for _, in := range []string{"./none", "/none.tar", "none.tar.gz"} {
		if r, err := Parse(in, "/"); cell.KindOf(err) != cell.NotFound {
			t.Errorf("Parse(%q) = %+v, %v", in, r, err)
		}
	}
}
