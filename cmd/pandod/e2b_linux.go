package main

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/e2b"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/paths"
)

// e2bKey is the file of the key from which sandboxes' own tokens are made.
const e2bKey = "e2b.key"

// e2bFront is the front for programs written for E2B. path is the PATH of cells; "" for the
// default.
func e2bFront(h paths.Home, eng *engine.Engine, path string, upload int64, buildAllow, buildImages []string, log *slog.Logger) (daemon.Front, error) {
	keys := durable.Disk(h.Keys())
	key, err := durable.ReadFile(keys, e2bKey)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, 32)
		rand.Read(key)
		err = durable.WriteFile(keys, e2bKey, key, 0o600)
	}
	if err == nil && len(key) != 32 {
		err = cell.Errorf(cell.Corrupt, "e2bFront", "delete the file; existing sandbox tokens become invalid", "cannot use %s in %s: it is no key", e2bKey, h.Keys())
	}
	if err != nil {
		return daemon.Front{}, err
	}
	f := e2b.New(e2b.Config{Engine: eng.All().At(ceiling.E2B), Log: log, Key: key, Path: path, Upload: upload, BuildAllow: buildAllow, BuildImages: buildImages, Disk: h.State, Kept: durable.Disk(h.Sandboxes())})
	return daemon.Front{
		Match:   f.Match,
		Needs:   func(r *http.Request) access.Level { return access.Level(f.Needs(r)) },
		Refuse:  f.Refuse,
		Handler: f,
	}, nil
}
