package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/policy"
	upl "github.com/pando-dev/pando/internal/upload"
	"github.com/pando-dev/pando/internal/workspace"
)

// A source of a caller on another host is sent as an archive, unpacked into a folder of
// the state, and imported from there by one run, cell or template, which ends the upload.
// What nothing uses goes after uploadTTL, or when its caller sends more, and all of them
// go with the daemon: the caller sends them again.
const (
	uploadTTL  = time.Hour
	maxUploads = 4 // that wait, of one caller
)

// An upload is a source that was sent and that nothing has imported yet.
type upload struct {
	id    string
	dir   string
	token string // of the caller; "" for the user
	at    time.Time
}

// Upload keeps the source that an archive holds until it is imported.
func (v *View) Upload(ctx context.Context, r io.Reader) (_ api.Upload, err error) {
	e := v.e
	if err := e.gc.Room(); err != nil {
		return api.Upload{}, err
	}
	e.expireUploads(time.Now())
	e.makeRoom(v.token)
	var b [16]byte
	rand.Read(b[:])
	u := upload{id: "u-" + hex.EncodeToString(b[:]), token: v.token, at: time.Now()}
	u.dir = filepath.Join(e.cfg.Home.Uploads(), u.id)
	failpoint.Step("make the folder of an upload")
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		return api.Upload{}, full(err)
	}
	out := api.Upload{ID: u.id}
	if out.Files, out.Bytes, err = upl.Unpack(ctx, u.dir, r); err != nil {
		e.removeUpload(u)
		return api.Upload{}, full(err)
	}
	out.Expires = u.at.Add(uploadTTL).UTC()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.uploads = append(e.uploads, u)
	return out, nil
}

// expireUploads removes what nothing used in time.
func (e *Engine) expireUploads(now time.Time) {
	e.dropUploads(func(u upload) bool { return now.Sub(u.at) > uploadTTL })
}

// makeRoom removes the oldest uploads of a caller, so that another one may wait.
func (e *Engine) makeRoom(token string) {
	e.mu.Lock()
	mine := 0
	for _, u := range e.uploads {
		if u.token == token {
			mine++
		}
	}
	e.mu.Unlock()
	e.dropUploads(func(u upload) bool { // oldest first
		if u.token != token || mine < maxUploads {
			return false
		}
		mine--
		return true
	})
}

func (e *Engine) dropUploads(which func(upload) bool) {
	var gone []upload
	e.mu.Lock()
	e.uploads = slices.DeleteFunc(e.uploads, func(u upload) bool {
		drop := which(u)
		if drop {
			gone = append(gone, u)
		}
		return drop
	})
	e.mu.Unlock()
	for _, u := range gone {
		e.removeUpload(u)
	}
}

func (e *Engine) removeUpload(u upload) {
	failpoint.Step("remove an upload")
	if err := workspace.RemoveTree(u.dir); err != nil {
		e.log.Warn("cannot remove an uploaded source", "path", u.dir, "error", err)
	}
}

// findUpload returns the upload of that id.
func (e *Engine) findUpload(id string) (upload, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, u := range e.uploads {
		if u.id == id {
			return u, nil
		}
	}
	return upload{}, noUpload(id)
}

// takeUpload returns the upload of that id, which is the caller's to remove then.
func (e *Engine) takeUpload(id string) (upload, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, u := range e.uploads {
		if u.id == id {
			e.uploads = slices.Delete(e.uploads, i, i+1)
			return u, nil
		}
	}
	return upload{}, noUpload(id)
}

func noUpload(id string) error {
	return cell.Errorf(cell.NotFound, "engine.upload", "send it again: an upload is for one run, cell or template, within the hour", "no uploaded source %s", clip(id))
}

// mayImport refuses a source that the caller may not name, or that is not where the
// caller thinks: a path means one thing on the host of a remote caller, and another here.
func (v *View) mayImport(from, id string) error {
	if v == nil {
		return nil
	}
	const opName = "engine.mayImport"
	if id != "" {
		if from != "" {
			return cell.Errorf(cell.Invalid, opName, "leave out one of them", "cannot use both a directory and an uploaded source")
		}
		u, err := v.e.findUpload(id)
		if err != nil {
			return err
		}
		if v.token != "" && u.token != v.token {
			return noUpload(id)
		}
		return nil
	}
	if from != "" && v.token != "" && !v.here && v.forRace == "" { // the directory of a race was looked at when it was asked for
		return cell.Errorf(cell.Invalid, opName, "send the directory: pando run and pando template build do, and pando upload DIR prints an id for the field upload (POST /v1/uploads)",
			"cannot use %s: it is a path of another host than the daemon's", clip(from))
	}
	return v.sameDirectory(from)
}

// importUpload brings an uploaded source into a base, and ends the upload.
func (x *execution) importUpload(ctx context.Context, p workspace.Provider, progress func(files, bytes int64)) (*workspace.Imported, error) {
	e := x.e
	u, err := e.takeUpload(x.p.req.Upload)
	if err != nil {
		return nil, err
	}
	defer e.removeUpload(u)
	im, err := workspace.Import(ctx, workspace.ImportRequest{
		Source: u.dir, With: x.p.with, Mask: x.p.policy.Secrets == policy.SecretsMask, Provider: p, Objects: e.cfg.Objects, Parser: e.cfg.Parser, Progress: progress,
	})
	if err == nil {
		x.made.Use(im)
	}
	return im, err
}
