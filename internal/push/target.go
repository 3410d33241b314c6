package push

import (
	"bytes"
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

	"github.com/pando-dev/pando/internal/cell"
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
	return &server{base: u, token: token, client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: time.Minute}}}, nil
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

func (d directory) Put(_ context.Context, name string, f *os.File) error {
	if _, err := os.Lstat(filepath.Join(string(d), name)); err == nil {
		return fs.ErrExist
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.write(name, f)
}

func (d directory) Replace(_ context.Context, name string, text []byte) error {
	return d.write(name, bytes.NewReader(text))
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

func (s *server) Put(ctx context.Context, name string, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return s.put(ctx, name, io.NopCloser(f), st.Size(), true) // f is closed by its owner
}

func (s *server) Replace(ctx context.Context, name string, text []byte) error {
	return s.put(ctx, name, bytes.NewReader(text), int64(len(text)), false)
}

func (s *server) put(ctx context.Context, name string, body io.Reader, size int64, isNew bool) error {
	resp, err := s.do(ctx, "PUT", name, body, size, isNew)
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
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
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
	if err != nil {
		var with *url.Error // names the whole URL, with its credentials
		if errors.As(err, &with) {
			err = with.Err
		}
		return nil, cell.Errorf(cell.Unavailable, op, "the next call goes on from there", "cannot reach %s: %w", s, err)
	}
	return resp, nil
}

func (s *server) refused(what, name string, resp *http.Response) error {
	kind := cell.Unavailable
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		kind = cell.Denied
	}
	return cell.Errorf(kind, op, "", "cannot %s %s of %s: it answers %s", what, name, s, fmt.Sprint(resp.StatusCode, " ", http.StatusText(resp.StatusCode)))
}
