package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/policy/decide"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// sourceRecord is what is kept of the newest import of a source, beside its
// index. It can be lost: then the source is imported anew.
type sourceRecord struct {
	Source      string              `json:"source"`
	State       workspace.State     `json:"state"`
	Tree        cell.Digest         `json:"tree"`
	Fingerprint cell.Digest         `json:"fingerprint"`
	LeftOut     []workspace.LeftOut `json:"left_out"`
	Notes       []string            `json:"notes"`
	Files       int                 `json:"files"`
	Bytes       int64               `json:"bytes"`
	Index       cell.Digest         `json:"index"`
	Parts       []partRecord        `json:"parts,omitempty"` // of several directories
	Boot        string              `json:"boot"`            // when the base was last known to be whole (see gc.Manager.Survived)
}

// partRecord is what is kept of one directory of several. Its index is one of those that follow each other in the file.
type partRecord struct {
	workspace.Directory
	Fingerprint cell.Digest         `json:"fingerprint"`
	LeftOut     []workspace.LeftOut `json:"left_out"`
	Notes       []string            `json:"notes"`
	Files       int                 `json:"files"`
	Bytes       int64               `json:"bytes"`
	Index       int                 `json:"index"` // size, in bytes
}

// importSource brings a source into a base, from what is known of it.
func (e *Engine) importSource(ctx context.Context, p workspace.Provider, dirs []workspace.Directory, with secret.With, names []string, mask bool, made *gc.Pin, progress func(files, bytes int64)) (*workspace.Imported, string, error) {
	names = append([]string(nil), names...)
	sort.Strings(names)
	words := []string{p.Name()}
	for _, d := range dirs {
		words = append(words, d.Source)
		if len(dirs) > 1 {
			words = append(words, d.At)
		}
	}
	if len(dirs) > 1 {
		words = append(words, "")
	}
	words = append(words, names...)
	if mask {
		words = append(words, "", string(policy.SecretsMask)) // no name is empty
	}
	key := cell.Sum([]byte(strings.Join(words, "\x00")))
	name := strings.TrimPrefix(key.String(), "sha256:")[:32]
	release, err := e.locks.Acquire(ctx, gc.ImportLock(name), "an import", nil)
	if err != nil {
		return nil, "", err
	}
	defer release()
	prev, err := e.lastImport(name)
	if err != nil {
		e.log.Warn("cannot use the last import", "source", dirs[0].Source, "error", err)
	}
	im, err := workspace.ImportAll(ctx, workspace.ImportRequest{
		With: with, Mask: mask, Provider: p, Objects: e.cfg.Objects, Prev: prev, Parser: e.cfg.Parser, Progress: progress,
		WithIn: func(at string) secret.With { return withOf(with, at) },
	}, dirs)
	if err != nil {
		return nil, "", err
	}
	made.Use(im)
	if prev == nil || im.Fingerprint != prev.Fingerprint {
		if err := e.keepImport(name, dirs[0].Source, im); err != nil {
			return nil, "", err
		}
	} else {
		now := time.Now() // it was used
		os.Chtimes(e.sources.path(name, "json"), now, now)
	}
	e.sources.load(name, im)
	return im, name, nil
}

// sourceNow imports the source of a cell anew, as it was imported for the cell.
// left reports whether a path is one that the import left out, or below one.
func (e *Engine) sourceNow(ctx context.Context, c *state.Cell) (_ workspace.Side, left func(path string) bool, err error) {
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return workspace.Side{}, nil, err
	}
	with, err := secret.NewWith(c.With)
	if err != nil {
		return workspace.Side{}, nil, err
	}
	pol, err := decide.Parse([]byte(c.Setup.PolicyText))
	if err != nil {
		return workspace.Side{}, nil, err
	}
	made := e.pins.Begin()
	defer made.End()
	im, _, err := e.importSource(ctx, p, c.Parts(), with, c.With, pol.Secrets == policy.SecretsMask, made, func(int64, int64) {})
	if err != nil {
		return workspace.Side{}, nil, err
	}
	return workspace.Side{Tree: im.Tree, Contents: p.Contents(im.State)}, func(path string) bool {
		return slices.ContainsFunc(im.LeftOut, func(l workspace.LeftOut) bool {
			return l.Reserved() && (path == l.Path || strings.HasPrefix(path, l.Path+"/"))
		})
	}, nil
}

// lastImport returns what is known of a source, nil when nothing is.
func (e *Engine) lastImport(name string) (*workspace.Imported, error) {
	if name == "" {
		return nil, nil
	}
	im := e.sources.loaded(name)
	if im != nil {
		return im, nil
	}
	b, err := readState(e.sources.path(name, "json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rec sourceRecord
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err != nil {
		return nil, err
	}
	raw, err := readState(e.sources.path(name, "index"))
	if err != nil {
		return nil, err
	}
	if cell.Sum(raw) != rec.Index {
		return nil, nil // one of the two was written before a crash, the other not
	}
	t, err := e.trees.get(rec.Tree)
	if err != nil {
		return nil, err
	}
	if p, err := e.providerOf(rec.State.Provider); err != nil || !haveLayers(p, rec.State) {
		return nil, err
	}
	if whole, err := e.gc.Survived(rec.Boot, rec.State, rec.Tree); err != nil || !whole {
		e.log.Warn("a base is not what it was before the host was started anew: its source is imported again", "source", rec.Source, "error", err)
		return nil, nil
	}
	if rec.Boot != linux.BootID() { // it is known to be whole now
		rec.Boot = linux.BootID()
		if b, err = json.Marshal(rec); err == nil {
			err = e.writeSource(name, "json", b)
		}
		if err != nil {
			return nil, err
		}
	}
	im = &workspace.Imported{State: rec.State, Tree: t, Fingerprint: rec.Fingerprint, LeftOut: rec.LeftOut, Notes: rec.Notes,
		Files: rec.Files, Bytes: rec.Bytes}
	if err := readIndexes(im, rec.Parts, raw); err != nil {
		return nil, err
	}
	e.sources.load(name, im)
	return im, nil
}

// readIndexes completes what is known of a source by its index, or by those of its parts.
func readIndexes(im *workspace.Imported, parts []partRecord, raw []byte) (err error) {
	if len(parts) == 0 {
		im.Index, err = workspace.DecodeIndex(raw)
		return err
	}
	for _, r := range parts {
		part := &workspace.Imported{State: im.State, Fingerprint: r.Fingerprint, LeftOut: r.LeftOut, Notes: r.Notes, Files: r.Files, Bytes: r.Bytes}
		if r.Index < 0 || r.Index > len(raw) {
			return cell.Errorf(cell.Corrupt, "engine.lastImport", "", "what is known of the source does not fit together")
		}
		if part.Index, err = workspace.DecodeIndex(raw[:r.Index]); err != nil {
			return err
		}
		if part.Tree, err = im.Tree.Part(r.At); err != nil {
			return err
		}
		raw = raw[r.Index:]
		im.Parts = append(im.Parts, workspace.Part{Directory: r.Directory, Imported: part})
	}
	return nil
}

func haveLayers(p workspace.Provider, s workspace.State) bool {
	all, err := p.Layers()
	if err != nil {
		return false
	}
	have := map[string]bool{}
	for _, l := range all {
		have[l] = true
	}
	for _, l := range s.Layers {
		if !have[l] {
			return false
		}
	}
	return true
}

// sources are the newest imports of sources. It implements gc.Sources.
type sources struct {
	dir string

	mu sync.Mutex // guards m
	m  map[string]*workspace.Imported
}

func (s *sources) path(name, ext string) string { return filepath.Join(s.dir, name+"."+ext) }

// loaded is one that is in memory; nil for others.
func (s *sources) loaded(name string) *workspace.Imported {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[name]
}

func (s *sources) load(name string, im *workspace.Imported) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[name] = im
}

func (s *sources) Loaded() []*workspace.Imported {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.m))
}

func (s *sources) Recorded() (list []gc.Source, err error) {
	paths, err := filepath.Glob(s.path("*", "json"))
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			continue // it went meanwhile
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		x := gc.Source{Name: name, Used: st.ModTime().UTC(), Files: []string{path, s.path(name, "index")}}
		var rec sourceRecord
		if b, err := readState(path); err == nil && json.Unmarshal(b, &rec) == nil {
			x.Path, x.State, x.Tree = rec.Source, rec.State, rec.Tree
		}
		list = append(list, x)
	}
	return list, err
}

func (s *sources) Forget(name string) {
	os.Remove(s.path(name, "json"))
	os.Remove(s.path(name, "index"))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, name)
}

// keepImport writes down what is known of a source. It is not synced: the two
// files check each other, and a loss costs one import.
func (e *Engine) keepImport(name, source string, im *workspace.Imported) error {
	if err := os.MkdirAll(e.cfg.Home.Sources(), 0o700); err != nil {
		return err
	}
	tree, err := e.trees.put(im.Tree)
	if err != nil {
		return err
	}
	var raw []byte
	var parts []partRecord
	if im.Index != nil {
		raw = im.Index.Encode()
	}
	for _, p := range im.Parts {
		ix := p.Index.Encode()
		raw = append(raw, ix...)
		parts = append(parts, partRecord{p.Directory, p.Fingerprint, p.LeftOut, p.Notes, p.Files, p.Bytes, len(ix)})
	}
	b, err := json.Marshal(sourceRecord{Parts: parts, Source: source, State: im.State, Tree: tree, Fingerprint: im.Fingerprint, LeftOut: im.LeftOut,
		Notes: im.Notes, Files: im.Files, Bytes: im.Bytes, Index: cell.Sum(raw), Boot: linux.BootID()})
	if err != nil {
		return err
	}
	for _, f := range []struct {
		ext  string
		data []byte
	}{{"index", raw}, {"json", b}} {
		if err := e.writeSource(name, f.ext, f.data); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) writeSource(name, ext string, data []byte) error {
	tmp := e.sources.path(name, ext+".new")
	failpoint.Step("write a source's " + ext)
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	failpoint.Step("rename a source's " + ext)
	return os.Rename(tmp, e.sources.path(name, ext))
}

// readState reads a file of the state. It is a regular file, and nothing that its name leads
// to.
func readState(path string) ([]byte, error) {
	return durable.ReadFile(durable.Disk(filepath.Dir(path)), filepath.Base(path))
}
