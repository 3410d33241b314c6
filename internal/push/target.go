package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	lockEvery = 100 * time.Millisecond // how often a lock that another call has is tried
	idleMost  = time.Minute            // how long a server may do nothing
)

// Open returns the target that a user names: a directory, which is made, or the URL of a server that takes PUT. token is sent
// to the server as a bearer, if it is not empty.
func Open(where, token string) (Target, error) {
	if !strings.HasPrefix(where, "http://") && !strings.HasPrefix(where, "https://") {
		if strings.Contains(where, "://") {
			return nil, cell.Errorf(cell.Invalid, op, "name a directory, or a URL with http or https", "cannot copy receipts to %s", clean(where))
		}
		return directory(where), nil
	}
	u, err := url.Parse(where)
	if err != nil || u.Host == "" {
		return nil, cell.Errorf(cell.Invalid, op, "", "cannot copy receipts to a URL that can't be read")
	}
	return &server{base: u, token: token, idle: idleMost, client: &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: idleMost},
		CheckRedirect: sameHost,
	}}, nil
}

var (
	errElsewhere = errors.New("it redirects to another host")
	errIdle      = errors.New("it does nothing for too long")
)

// sameHost refuses redirects to other hosts, which would get what is copied and what the URL has of secrets.
func sameHost(req *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) > 5 || req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		return errElsewhere
	}
	return nil
}

// clean is a URL without what may be secret in it.
func clean(where string) string {
	u, err := url.Parse(where)
	if err != nil {
		return "this URL"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// directory is a directory of the machine where the command runs.
type directory string

func (d directory) String() string { return string(d) }

func (d directory) Get(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), name))
}

func (d directory) Create(_ context.Context, name string, r io.Reader, _ int64) error {
	if _, err := os.Lstat(filepath.Join(string(d), name)); err == nil {
		return fs.ErrExist
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.write(name, r)
}

func (d directory) Replace(_ context.Context, name string, r io.Reader, _ int64) error {
	return d.write(name, r)
}

// Lock waits for the other calls on this machine and on those that share the directory's locks.
func (d directory) Lock(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(string(d), ".lock"), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockEvery); err != nil {
		if errors.Is(err, errors.ErrUnsupported) { // by the filesystem
			return func() {}, nil
		}
		return nil, fmt.Errorf("cannot lock %s: %w", d, err)
	}
	return func() { lock.Close() }, nil
}

func (d directory) write(name string, r io.Reader) (err error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(d), ".part-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(string(d), name)); err != nil {
		return err
	}
	if runtime.GOOS == "windows" { // which has no directories to sync
		return nil
	}
	dir, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// server is one that keeps objects below a URL: a PUT of S3's kind (with a signed query or a gateway), WebDAV, or a program.
type server struct {
	base   *url.URL
	token  string
	client *http.Client
	idle   time.Duration
}

// A watched is what is sent to a server, or comes from it; a request that does nothing for too long ends.
type watched struct {
	io.Reader
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   time.Duration
	timer  *time.Timer
	sends  bool      // the server is also waited for between reads
	body   io.Closer // of an answer
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.idle)
	n, err := w.Reader.Read(p)
	if err != nil || !w.sends {
		w.timer.Stop()
	}
	if err != nil && errors.Is(context.Cause(w.ctx), errIdle) {
		err = errIdle
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	if w.body == nil {
		return nil
	}
	w.cancel(nil)
	return w.body.Close()
}

func (s *server) String() string { return clean(s.base.String()) }

func (s *server) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	resp, err := s.do(ctx, "GET", name, nil, 0, false)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone {
		return nil, fs.ErrNotExist
	}
	return nil, s.refused("read", name, resp)
}

func (s *server) Create(ctx context.Context, name string, r io.Reader, size int64) error {
	return s.put(ctx, name, r, size, true)
}

func (s *server) Replace(ctx context.Context, name string, r io.Reader, size int64) error {
	return s.put(ctx, name, r, size, false)
}

// Lock does nothing: what HTTP has for it few servers have.
func (s *server) Lock(context.Context) (func(), error) { return func() {}, nil }

func (s *server) put(ctx context.Context, name string, body io.Reader, size int64, isNew bool) error {
	resp, err := s.do(ctx, "PUT", name, body, size, isNew) // a file is closed by its owner
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case isNew && resp.StatusCode == http.StatusPreconditionFailed:
		return fs.ErrExist
	}
	return s.refused("write", name, resp)
}

func (s *server) do(ctx context.Context, method, name string, body io.Reader, size int64, isNew bool) (*http.Response, error) {
	u := *s.base
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/"+name, ""
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.idle, func() { cancel(errIdle) })
	timer.Stop()
	if body != nil {
		body = &watched{Reader: body, ctx: ctx, cancel: cancel, idle: s.idle, timer: timer, sends: true}
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		cancel(nil)
		return nil, cell.Errorf(cell.Invalid, op, "", "cannot use the URL of %s", s)
	}
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	if isNew {
		req.Header.Set("If-None-Match", "*")
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.client.Do(req)
	timer.Stop()
	if err != nil {
		idle := errors.Is(context.Cause(ctx), errIdle)
		cancel(nil)
		var with *url.Error // names the whole URL, with its credentials
		if errors.As(err, &with) {
			err = with.Err
		}
		if errors.Is(err, errElsewhere) {
			return nil, cell.Errorf(cell.Invalid, op, "name the URL of that host, if you trust it", "cannot copy receipts to %s: %w", s, err)
		}
		if idle {
			err = errIdle
		}
		return nil, cell.Errorf(cell.Unavailable, op, "the next call goes on from there", "cannot reach %s: %w", s, err)
	}
	resp.Body = &watched{Reader: resp.Body, ctx: ctx, cancel: cancel, idle: s.idle, timer: timer, body: resp.Body}
	return resp, nil
}

func (s *server) refused(what, name string, resp *http.Response) error {
	kind := cell.Unavailable
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		kind = cell.Denied
	}
	return cell.Errorf(kind, op, "", "cannot %s %s of %s: it answers %s", what, name, s, fmt.Sprint(resp.StatusCode, " ", http.StatusText(resp.StatusCode)))
}
