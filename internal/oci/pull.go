package oci

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/linux"
)

// parallel is how many layers are transferred at once.
const parallel = 3

// Pull makes an image known by its reference, and fetches and unpacks it unless
// it is kept already: then only its manifest is asked for. When it fails nothing
// remains. Kinds: NotFound, Denied (by the registry, or a hostile image),
// Corrupt, Unsupported, Unavailable.
func (s *Store) Pull(ctx context.Context, r Reference, o PullOptions) (img Image, err error) {
	report := o.Report
	if report == nil {
		report = func(Progress) {}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return img, err
	}
	stage := filepath.Join(s.dir, random()+partial)
	failpoint.Step("make the folder of a pull")
	if err := os.Mkdir(stage, 0o700); err != nil {
		return img, err
	}
	defer func() { err = errors.Join(err, linux.RemoveTree(stage)) }()
	var src source
	if r.Path == "" {
		src = openRegistry(r, o.Login, s.lim, s.agent)
	} else if src, err = openFiles(r.Path, s.lim, func() (*os.File, error) { return scratchFile(stage) }); err != nil {
		return img, err
	}
	defer src.close()
	report(Progress{Step: "looking"})
	f, err := src.find(ctx, r)
	if err != nil {
		return img, err
	}
	id := f.config.Digest
	unlock := s.lock(id)
	defer unlock()
	img, err = s.Get(id)
	if cell.KindOf(err) == cell.NotFound || cell.KindOf(err) == cell.Corrupt {
		if err := s.fetch(ctx, src, f, stage, report); err != nil {
			return img, err
		}
		img, err = s.Get(id)
	}
	if err != nil {
		return img, err
	}
	img.Digest = f.digest
	return img, s.changeRefs(func(m map[string]refRecord) { m[r.String()] = refRecord{id, f.digest, time.Now().UTC()} })
}

// scratchFile is a file that has no name.
func scratchFile(dir string) (*os.File, error) {
	at := filepath.Join(dir, "scratch-"+random())
	f, err := os.OpenFile(at, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return f, os.Remove(at)
}

// fetch transfers and unpacks an image below stage, and puts it in its place.
func (s *Store) fetch(ctx context.Context, src source, f *found, stage string, report func(Progress)) error {
	b, err := readBlob(ctx, src, f.config, maxConfig)
	if err != nil {
		return err
	}
	conf, err := readConfig(b, len(f.layers))
	if err != nil {
		return err
	}
	var all int64
	for _, l := range f.layers {
		if all += l.Size; all > s.lim.Bytes {
			return tooMuch("its layers have more than %d bytes", s.lim.Bytes)
		}
	}
	if err := room(stage, all); err != nil {
		return err
	}
	made := filepath.Join(stage, "image")
	root := filepath.Join(made, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	u, err := newUnpacker(root, s.lim, s.own)
	if err != nil {
		return err
	}
	defer u.close()
	u.spare = func(n int64) error { return room(stage, n) }
	if err := s.layers(ctx, src, f.layers, conf.RootFS.DiffIDs, stage, u, report); err != nil {
		return err
	}
	if err := u.finish(); err != nil {
		return err
	}
	img := Image{ID: f.config.Digest, Digest: f.digest, Layers: len(f.layers), Created: conf.Created, Pulled: time.Now().UTC(),
		Env: conf.Config.Env, User: conf.Config.User, Workdir: conf.Config.WorkingDir,
		Shell: conf.Config.Shell, OnBuild: conf.Config.OnBuild, Service: conf.service(), Counts: u.count, OneID: !s.own}
	return s.place(made, img)
}

// layers transfers the layers, several at once, and unpacks them in their order
// as they come.
func (s *Store) layers(ctx context.Context, src source, list []descriptor, diffs []cell.Digest, stage string, u *unpacker, report func(Progress)) error {
	g, gctx := errgroup.WithContext(ctx)
	slots := make(chan struct{}, parallel)
	ready := make([]chan *os.File, len(list))
	for i := range ready {
		ready[i] = make(chan *os.File, 1)
	}
	said := reporter{report: report, layers: len(list)}
	if src.remote() {
		g.Go(func() error { // in their order: the first is unpacked first
			for i, d := range list {
				select {
				case slots <- struct{}{}:
				case <-gctx.Done():
					return context.Cause(gctx)
				}
				g.Go(func() error {
					defer func() { <-slots }()
					f, err := transferred(gctx, src, d, stage, func(n int64) { said.say("pulling", i, d, n) })
					if err != nil {
						return err
					}
					ready[i] <- f
					return nil
				})
			}
			return nil
		})
	}
	g.Go(func() error {
		for i, d := range list {
			var in io.ReadCloser
			if src.remote() {
				select {
				case in = <-ready[i]:
				case <-gctx.Done():
					return context.Cause(gctx)
				}
			} else {
				var err error
				if in, err = src.open(gctx, d); err != nil {
					return err
				}
			}
			err := unpackLayer(gctx, u, in, d, diffs[i], func(n int64) { said.say("unpacking", i, d, n) })
			in.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
	err := g.Wait()
	for _, c := range ready { // what came and was not unpacked any more
		select {
		case f := <-c:
			f.Close()
		default:
		}
	}
	return err
}

// transferred copies a blob into a file without a name, and verifies it.
func transferred(ctx context.Context, src source, d descriptor, stage string, told func(int64)) (_ *os.File, err error) {
	in, err := src.open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	f, err := scratchFile(stage)
	if err != nil {
		return nil, err
	}
	v := newVerifier(in, d, told)
	if _, err = io.Copy(f, v); err == nil {
		err = v.verify()
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// unpackLayer unpacks a layer and verifies it: compressed, as the manifest says,
// and the tar, as the config says. Until both are known to be right nothing of
// it has a name that counts.
func unpackLayer(ctx context.Context, u *unpacker, in io.Reader, d descriptor, diff cell.Digest, told func(int64)) error {
	v := newVerifier(in, d, told)
	got, err := u.layer(ctx, v, d)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, v); err != nil {
		return err
	}
	if err := v.verify(); err != nil {
		return err
	}
	if got != diff {
		return corrupt("cannot unpack layer %s: its content is %s, and the config says %s", d.short(), got, diff)
	}
	return nil
}

// verifier digests what is read of a blob.
type verifier struct {
	r    io.Reader
	d    descriptor
	h    hash.Hash
	n    int64
	told func(int64)
}

func newVerifier(r io.Reader, d descriptor, told func(int64)) *verifier {
	return &verifier{r, d, sha256.New(), 0, told}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	if v.n += int64(n); v.n > v.d.Size {
		return 0, corrupt("cannot use layer %s: it has more than %d bytes", v.d.short(), v.d.Size)
	}
	v.h.Write(p[:n])
	v.told(v.n)
	return n, err
}

// verify compares what was read, which is all of it, with what was declared.
func (v *verifier) verify() error {
	var got cell.Digest
	v.h.Sum(got[:0])
	switch {
	case v.n != v.d.Size:
		return corrupt("cannot use layer %s: it has %d bytes instead of %d", v.d.short(), v.n, v.d.Size)
	case v.d.file == "" && got != v.d.Digest:
		return corrupt("cannot use layer %s: its content is %s", v.d.Digest, got)
	}
	return nil
}

// reporter thins progress out, and lets one goroutine at a time tell it.
type reporter struct {
	report func(Progress)
	layers int

	mu   sync.Mutex
	last []time.Time
}

// often is how often progress of one layer is told.
const often = 100 * time.Millisecond

func (r *reporter) say(step string, i int, d descriptor, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) <= i {
		r.last = append(r.last, slices.Repeat([]time.Time{{}}, r.layers-len(r.last))...)
	}
	if n < d.Size && time.Since(r.last[i]) < often {
		return
	}
	r.last[i] = time.Now()
	r.report(Progress{Step: step, Layer: i + 1, Layers: r.layers, Digest: d.short(), Done: n, Total: d.Size})
}
