package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// wholeFile bounds files that are read before they are sent, so that the answer has their
// digest; in bytes.
const wholeFile = 4 << 20

// maxPath bounds a path in a cell.
const maxPath = 4096

// octets is the media type of a file's bytes.
const octets = "application/octet-stream"

// checkPath rejects invalid paths.
func checkPath(p string) error {
	switch {
	case len(p) > maxPath:
		return cell.Errorf(cell.Invalid, "daemon.file", "", "the path is longer than %d bytes", maxPath)
	case strings.Contains(p, "\x00"):
		return cell.Errorf(cell.Invalid, "daemon.file", "", "%q is no path", cell.Clip(p))
	}
	return nil
}

// fileOf resolves the cell and the path of a request.
func (d *Daemon) fileOf(r *http.Request) (id cell.ID, p string, err error) {
	p = r.URL.Query().Get("path")
	if p == "" {
		return "", "", cell.Errorf(cell.Invalid, "daemon.file", "give it as ?path=PATH", "no path is given")
	}
	if err := checkPath(p); err != nil {
		return "", "", err
	}
	id, err = d.cellOf(r)
	return id, p, err
}

func fileView(f cell.FileInfo) api.File {
	return api.File{Path: f.Path, Type: f.Type, Size: f.Size, Mode: f.Mode, UID: f.UID, GID: f.GID, MTime: f.MTime, Target: f.Target, Leads: f.Leads}
}

// manage runs an action that answers with one file.
func (d *Daemon) manage(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader) (api.File, error) {
	list, err := d.cfg.Engine.Files(ctx, id, a, in)
	if err != nil {
		return api.File{}, err
	}
	if len(list) != 1 {
		return api.File{}, cell.Errorf(cell.Internal, "daemon.file", "", "the cell's keeper answered with %d files", len(list))
	}
	return fileView(list[0]), nil
}

// isRegular rejects everything that has no bytes to send.
func isRegular(f api.File) error {
	switch {
	case f.Type == cell.TypeDirectory || f.Leads == cell.TypeDirectory:
		return cell.Errorf(cell.Invalid, "daemon.file", "list it, or read it as an archive: GET /v1/cells/CELL/list, /files", "%s is a directory", strconv.Quote(cell.Clip(f.Path)))
	case f.Type == cell.TypeSymlink && f.Leads == "":
		return cell.Errorf(cell.NotFound, "daemon.file", "", "%s is a symlink that leads nowhere", strconv.Quote(cell.Clip(f.Path)))
	case f.Type != cell.TypeFile && f.Leads != cell.TypeFile:
		return cell.Errorf(cell.Invalid, "daemon.file", "", "%s is no regular file", strconv.Quote(cell.Clip(f.Path)))
	}
	return nil
}

// digestOf returns the digest of a file's present bytes; "" when there is no file.
func (d *Daemon) digestOf(ctx context.Context, id cell.ID, p string) (string, error) {
	h := sha256.New()
	err := d.cfg.Engine.Manage(ctx, id, cell.FileAct{Act: cell.FileRead, Path: p}, nil, h)
	if cell.KindOf(err) == cell.NotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return sum(h), nil
}

func sum(h hash.Hash) string { return cell.Digest(h.Sum(nil)).String() }

func (d *Daemon) statFile(w http.ResponseWriter, r *http.Request) (any, error) {
	id, p, err := d.fileOf(r)
	if err != nil {
		return nil, err
	}
	f, err := d.manage(r.Context(), id, cell.FileAct{Act: cell.FileStat, Path: p}, nil)
	if err != nil || !queryBool(r, "digest") {
		return f, err
	}
	if err := isRegular(f); err != nil {
		return nil, err
	}
	if f.Digest, err = d.digestOf(r.Context(), id, p); err != nil {
		return nil, err
	}
	setTag(w, f.Digest)
	return f, nil
}

func (d *Daemon) listFiles(_ http.ResponseWriter, r *http.Request) (any, error) {
	p := orElse(r.URL.Query().Get("path"), ".")
	if err := checkPath(p); err != nil {
		return nil, err
	}
	depth, err := queryInt(r, "depth")
	if err != nil {
		return nil, err
	}
	if depth < 0 {
		return nil, cell.Errorf(cell.Invalid, "daemon.file", "", "depth can't be negative")
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	list, err := d.cfg.Engine.Files(r.Context(), id, cell.FileAct{Act: cell.FileList, Path: p, Depth: max(depth, 1)}, nil)
	if err != nil {
		return nil, err
	}
	out := make([]api.File, 0, len(list))
	for _, f := range list {
		out = append(out, fileView(f))
	}
	return out, nil
}

// readFile sends the bytes of one file. Up to wholeFile bytes the answer has the digest, as its
// ETag.
func (d *Daemon) readFile(w http.ResponseWriter, r *http.Request) (any, error) {
	id, p, err := d.fileOf(r)
	if err != nil {
		return nil, err
	}
	f, err := d.manage(r.Context(), id, cell.FileAct{Act: cell.FileStat, Path: p}, nil)
	if err != nil {
		return nil, err
	}
	if err := isRegular(f); err != nil {
		return nil, err
	}
	head := w.Header()
	head.Set("Content-Disposition", disposition(path.Base(f.Path)))
	head.Set("X-Content-Type-Options", "nosniff")
	if f.Size <= wholeFile {
		var b bytes.Buffer
		if err := d.cfg.Engine.Manage(r.Context(), id, cell.FileAct{Act: cell.FileRead, Path: p, Size: wholeFile + 1}, nil, &b); err != nil {
			head.Del("Content-Disposition")
			return nil, err
		}
		if b.Len() <= wholeFile { // it has not grown meanwhile
			tag := cell.Sum(b.Bytes()).String()
			setTag(w, tag)
			if tags, ok := readTags(r.Header.Get("If-None-Match")); ok && tags.has(tag) {
				w.WriteHeader(http.StatusNotModified)
				return done{}, nil
			}
			head.Set("Content-Type", octets)
			head.Set("Content-Length", strconv.Itoa(b.Len()))
			w.Write(b.Bytes())
			return done{}, nil
		}
	}
	out := &sized{w: w, left: f.Size}
	err = d.cfg.Engine.Manage(r.Context(), id, cell.FileAct{Act: cell.FileRead, Path: p, Size: f.Size}, nil, out)
	switch {
	case err != nil && !out.begun:
		head.Del("Content-Disposition")
		return nil, err
	case err != nil || out.left > 0: // breaking the connection is the only way to report it
		panic(http.ErrAbortHandler)
	}
	return done{}, nil
}

// sized is a body of known length; its header is sent with the first bytes.
type sized struct {
	w     http.ResponseWriter
	left  int64
	begun bool
}

func (s *sized) Write(p []byte) (int, error) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", octets)
		s.w.Header().Set("Content-Length", strconv.FormatInt(s.left, 10))
	}
	n, err := s.w.Write(p)
	s.left -= int64(n)
	return n, err
}

// lockFile locks the file of a request against other writers on these routes, and then checks
// If-Match and If-None-Match, so that none comes between check and write.
func (d *Daemon) lockFile(r *http.Request) (id cell.ID, path string, release func(), err error) {
	if id, path, err = d.fileOf(r); err != nil {
		return "", "", nil, err
	}
	if release, err = d.writers.lock(r.Context(), string(id)+"\x00"+path); err != nil {
		return "", "", nil, err
	}
	if err := d.unchanged(r, id, path); err != nil {
		release()
		return "", "", nil, err
	}
	return id, path, release, nil
}

// writeFile writes the body into one file.
func (d *Daemon) writeFile(w http.ResponseWriter, r *http.Request) (any, error) {
	id, p, release, err := d.lockFile(r)
	if err != nil {
		return nil, err
	}
	defer release()
	in := &uploadBody{Reader: r.Body}
	h := sha256.New()
	f, err := d.manage(r.Context(), id, cell.FileAct{Act: cell.FileWrite, Path: p}, io.TeeReader(in, h))
	if err != nil {
		return nil, in.why(err)
	}
	f.Digest = sum(h)
	setTag(w, f.Digest)
	return f, nil
}

func (d *Daemon) removeFile(w http.ResponseWriter, r *http.Request) (any, error) {
	id, p, release, err := d.lockFile(r)
	if err != nil {
		return nil, err
	}
	defer release()
	f, err := d.manage(r.Context(), id, cell.FileAct{Act: cell.FileStat, Path: p}, nil)
	if err != nil {
		return nil, err
	}
	if _, err := d.cfg.Engine.Files(r.Context(), id, cell.FileAct{Act: cell.FileRemove, Path: p}, nil); err != nil {
		return nil, err
	}
	return f, nil
}

// unchanged checks the preconditions of a request for a file.
func (d *Daemon) unchanged(r *http.Request, id cell.ID, p string) error {
	if !conditional(r) {
		return nil
	}
	tag, err := d.digestOf(r.Context(), id, p)
	if err != nil {
		return err
	}
	return checkPreconditions(r, tag)
}

func (d *Daemon) makeDirectory(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.actOn(w, r, cell.FileMkdir)
}

func (d *Daemon) renameFile(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.actOn(w, r, cell.FileMove)
}

// actOn runs the file action of a JSON body.
func (d *Daemon) actOn(w http.ResponseWriter, r *http.Request, act string) (any, error) {
	req, err := decode[api.FileRequest](w, r)
	if err != nil {
		return nil, err
	}
	a := cell.FileAct{Act: act, Path: req.Path, To: req.To}
	switch {
	case a.Path == "":
		return nil, cell.Errorf(cell.Invalid, "daemon.file", "give it as {\"path\": PATH}", "no path is given")
	case a.To == "" && act == cell.FileMove:
		return nil, cell.Errorf(cell.Invalid, "daemon.file", "give the new path as {\"to\": PATH}", "no new path is given")
	case a.To != "" && act != cell.FileMove:
		return nil, cell.Errorf(cell.Invalid, "daemon.file", "leave out to", "to is only for renaming")
	}
	for _, p := range []string{a.Path, a.To} {
		if err := checkPath(p); err != nil {
			return nil, err
		}
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.manage(r.Context(), id, a, nil)
}

// watchFiles streams changes in a directory. Changes without a listener are lost.
func (d *Daemon) watchFiles(w http.ResponseWriter, r *http.Request) (any, error) {
	id, p, err := d.fileOf(r)
	if err != nil {
		return nil, err
	}
	return d.tellChanges(w, r, func(ctx context.Context, tell func(any) error) error {
		return d.cfg.Engine.Watch(ctx, id, p, queryBool(r, "below"), func(ev cell.FileEvent) error {
			return tell(api.FileEvent{Path: ev.Path, What: ev.What})
		})
	})
}

// nameLocks serialises writers of the same name.
type nameLocks struct {
	mu sync.Mutex // guards the fields below
	of map[string]*nameLock
}

type nameLock struct {
	free    chan struct{} // has one element while the lock is free
	waiting int           // number of waiters and holders
}

// lock waits for the lock of name, until release is called or ctx ends.
func (t *nameLocks) lock(ctx context.Context, name string) (release func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*nameLock{}
	}
	x := t.of[name]
	if x == nil {
		x = &nameLock{free: make(chan struct{}, 1)}
		x.free <- struct{}{}
		t.of[name] = x
	}
	x.waiting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		if x.waiting--; x.waiting == 0 {
			delete(t.of, name)
		}
		t.mu.Unlock()
	}
	select {
	case <-x.free:
		return func() {
			x.free <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, cell.Errorf(cell.Interrupted, "daemon.file", "", "interrupted while another request writes it")
	}
}
