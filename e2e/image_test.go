package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imageregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"
)

// registryCmd starts an image registry on loopback, $REGISTRY. It counts what it
// is asked for; `asked N` compares and begins anew. With "slow", blobs come in
// small pieces; with "basic" or "token", images are given to the user me with
// the password $REGISTRY_PASSWORD alone, by that scheme, or by token with the identity token
// identity-$REGISTRY_PASSWORD.
func registryCmd(ts *testscript.TestScript, neg bool, args []string) {
	how := strings.Join(args, " ")
	slow := how == "slow"
	login := &registryLogin{how: how, password: ts.Getenv("REGISTRY_PASSWORD")}
	inner := imageregistry.New(imageregistry.Logger(log.New(io.Discard, "", 0)))
	counted := &askedCount{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" && r.URL.Path != "/v2/" {
			counted.add()
		}
		if (how == "basic" || how == "token") && login.refuses(w, r) {
			return
		}
		if slow && r.Method == "GET" && strings.Contains(r.URL.Path, "/blobs/") {
			w = &slowly{w}
		}
		inner.ServeHTTP(w, r)
	}))
	ts.Defer(srv.Close)
	ts.Setenv("REGISTRY", strings.TrimPrefix(srv.URL, "http://"))
	imageRegistries.Store(srv.URL, counted)
}

// registryLogin is a registry's demand for a login.
type registryLogin struct{ how, password string }

// refuses answers a request to read without the login, and one for a token.
func (l *registryLogin) refuses(w http.ResponseWriter, r *http.Request) bool {
	user, password, _ := r.BasicAuth()
	known := user == "me" && password == l.password
	switch {
	case r.URL.Path == "/token" && (known || r.Method == "POST" && r.FormValue("grant_type") == "refresh_token" && r.FormValue("refresh_token") == "identity-"+l.password):
		fmt.Fprintf(w, `{"token":%q}`, "token of "+r.FormValue("scope"))
		return true
	case r.URL.Path == "/token":
	case r.Method != "GET":
		return false
	case l.how == "basic" && known, l.how == "token" && r.Header.Get("Authorization") == "Bearer token of repository:private/app:pull":
		return false
	case l.how == "basic":
		w.Header().Set("WWW-Authenticate", `Basic realm="the test's"`)
	default:
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="the test's"`, r.Host))
	}
	w.WriteHeader(http.StatusUnauthorized)
	return true
}

var imageRegistries sync.Map // URL → *askedCount

type askedCount struct {
	mu sync.Mutex
	n  int
}

func (c *askedCount) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

// slowly sends a mebibyte in ten seconds.
type slowly struct{ http.ResponseWriter }

func (s *slowly) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		var m int
		m, err = s.ResponseWriter.Write(p[:min(len(p), 10<<10)])
		s.ResponseWriter.(http.Flusher).Flush()
		n, p = n+m, p[m:]
		time.Sleep(100 * time.Millisecond)
	}
	return n, err
}

// ReadFrom keeps the copying from going round Write.
func (s *slowly) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{s}, r) }

func askedCmd(ts *testscript.TestScript, neg bool, args []string) {
	v, ok := imageRegistries.Load("http://" + ts.Getenv("REGISTRY"))
	if !ok || len(args) != 1 {
		ts.Fatalf("usage: asked N, after registry")
	}
	c := v.(*askedCount)
	c.mu.Lock()
	defer c.mu.Unlock()
	if strconv.Itoa(c.n) != args[0] {
		ts.Fatalf("the registry was asked %d times, want %s", c.n, args[0])
	}
	c.n = 0
}

// packImage makes an image of directories, each a layer, and brings it to a
// place: packimage layout:DIR:TAG|docker:FILE|push:REPO:TAG [env=NAME=VALUE]
// [user=NAME] DIR…
func packImage(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: packimage PLACE DIR…")
	}
	img := mutate.MediaType(v1.Image(empty.Image), "application/vnd.oci.image.manifest.v1+json")
	img = mutate.ConfigMediaType(img, "application/vnd.oci.image.config.v1+json")
	conf := v1.Config{}
	for _, a := range args[1:] {
		if kv, ok := strings.CutPrefix(a, "env="); ok {
			conf.Env = append(conf.Env, kv)
			continue
		}
		if u, ok := strings.CutPrefix(a, "user="); ok {
			conf.User = u
			continue
		}
		raw, err := tarTree(ts.MkAbs(a))
		ts.Check(err)
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
		ts.Check(err)
		img, err = mutate.AppendLayers(img, l)
		ts.Check(err)
	}
	file, err := img.ConfigFile()
	ts.Check(err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, conf
	img, err = mutate.ConfigFile(img, file)
	ts.Check(err)

	kind, rest, _ := strings.Cut(args[0], ":")
	at, tag, _ := strings.Cut(rest, ":")
	switch kind {
	case "layout":
		p, err := layout.FromPath(ts.MkAbs(at))
		if err != nil {
			p, err = layout.Write(ts.MkAbs(at), empty.Index)
		}
		ts.Check(err)
		ts.Check(p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})))
	case "docker":
		t, err := name.NewTag("example.test/app:1")
		ts.Check(err)
		ts.Check(tarball.WriteToFile(ts.MkAbs(at), t, img))
	case "push":
		push(ts, img, at, tag)
	default:
		ts.Fatalf("no place %s", args[0])
	}
}

// push uploads an image to $REGISTRY.
func push(ts *testscript.TestScript, img v1.Image, repo, tag string) {
	ts.Check(pushTo(ts.Getenv("REGISTRY"), img, repo, tag))
	digest, err := img.Digest()
	ts.Check(err)
	ts.Setenv("PUSHED", digest.String())
}

// pushTo uploads an image to a registry on this host.
func pushTo(registry string, img v1.Image, repo, tag string) error {
	send := func(method, path, mediaType string, body io.Reader) error {
		req, err := http.NewRequest(method, "http://"+registry+"/v2/"+repo+path, body)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode >= 300 {
			return fmt.Errorf("%s %s: %s", method, path, resp.Status)
		}
		return nil
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	conf, err := partial.ConfigLayer(img)
	if err != nil {
		return err
	}
	for _, l := range append(layers, conf) {
		d, err := l.Digest()
		if err != nil {
			return err
		}
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		err = send("POST", "/blobs/uploads/?digest="+url.QueryEscape(d.String()), "application/octet-stream", r)
		r.Close()
		if err != nil {
			return err
		}
	}
	raw, err := img.RawManifest()
	if err != nil {
		return err
	}
	return send("PUT", "/manifests/"+tag, "application/vnd.oci.image.manifest.v1+json", bytes.NewReader(raw))
}

// tarTree packs a directory as root would own it. A file called EVIL:NAME is
// called NAME in the archive, with %2F for a slash.
func tarTree(dir string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.Walk(dir, func(p string, st os.FileInfo, err error) error {
		if err != nil || p == dir {
			return err
		}
		to := ""
		if st.Mode()&os.ModeSymlink != 0 {
			if to, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(st, to)
		if err != nil {
			return err
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		if h.Name, err = filepath.Rel(dir, p); err != nil {
			return err
		}
		if evil, ok := strings.CutPrefix(st.Name(), "EVIL:"); ok {
			h.Name = strings.ReplaceAll(evil, "%2F", "/")
		}
		if err := w.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	return b.Bytes(), errors.Join(err, w.Close())
}

// noImages fails unless no image, and nothing of one, is kept.
func noImages(ts *testscript.TestScript, neg bool, args []string) {
	found, err := filepath.Glob(filepath.Join(ts.Getenv("PANDO_HOME"), "cache/images/oci/*"))
	ts.Check(err)
	var left []string
	for _, f := range found {
		if filepath.Base(f) != "refs.json" {
			left = append(left, f)
		}
	}
	if (len(left) == 0) == neg {
		ts.Fatalf("%s", fmt.Sprint("images: ", left))
	}
}

func (h *host) images() string {
	return filepath.Join(filepath.Dir(h.state()), "cache", "images", "oci")
}

// unpulled makes a layout with busybox, and takes away what was pulled of it.
func unpulled(h *host, _ string) {
	h.must(os.RemoveAll(h.images()))
	at := filepath.Join(h.work, "layout")
	if _, err := os.Lstat(at); err == nil {
		return
	}
	root := filepath.Join(h.work, "root")
	h.must(os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	h.must(os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	b, err := os.ReadFile(must1(exec.LookPath("busybox")))
	h.must(err)
	h.must(os.WriteFile(filepath.Join(root, "bin/busybox"), b, 0o755))
	for _, p := range []string{"sh", "cat"} {
		h.must(os.Symlink("busybox", filepath.Join(root, "bin", p)))
	}
	raw, err := tarTree(root)
	h.must(err)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	h.must(err)
	img, err := mutate.AppendLayers(empty.Image, l)
	h.must(err)
	p, err := layout.Write(at, empty.Index)
	h.must(err)
	h.must(p.AppendImage(img))
}
