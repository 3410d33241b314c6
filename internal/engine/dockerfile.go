package engine

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/dockerfile"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Dockerfile is made into an image by the first run that names it. Each RUN is a run of its own, in a cell that
// is made from the image of the step before, with the backend, network and limits of the run that wants the image. Such a cell
// writes to all of the image, its root directory too; what it changed becomes the next layer, and the cell goes.

const (
	whyTop = "the image's root directory"
	// topFolder holds, in the folder of a cell that makes an image, what is in its root directory.
	topFolder = "top"
	// buildLease is how long a build's cell is kept that a daemon left behind when it ended.
	buildLease = "24h"
)

// An imageStep is what a cell of a build is made for.
type imageStep struct {
	on     cell.Digest // the image that it is made from
	name   string      // of the image that is made, as --image names it
	policy policy.Result
}

// build makes the image of the execution's Dockerfile. Without a live run (a plan) it finds what is kept alone.
func (x *execution) build(ctx context.Context) (oci.Image, error) {
	const opName = "engine.build"
	e, name := x.e, x.p.image
	f, file, err := e.readDockerfile(name.Path)
	if err != nil {
		return oci.Image{}, err
	}
	if x.l != nil {
		release, err := e.locks.Acquire(ctx, cell.ID("image "+name.String()), "an image", nil) // others wait for its steps
		if err != nil {
			return oci.Image{}, err
		}
		defer release()
	}
	made := x.made
	if made == nil { // a plan, which imports as the run will: what is copied tells whether the image is kept
		made = e.pins.Begin()
		defer made.End()
	}
	c := dockerfile.Config{
		Images: e.images, Name: name.String(), File: filepath.Base(file), Plan: x.l == nil,
		Image: func(ctx context.Context, ref string) (oci.Image, error) {
			r, err := oci.Parse(ref, "")
			if err == nil && r.Path != "" || paths.IsImage(ref) {
				err = cell.Errorf(cell.Denied, opName, "name an image of a registry", "cannot use %s: a Dockerfile names no files of the host", cell.Clip(ref))
			}
			if err == nil && r.OnLoopback() {
				if _, err = e.images.Known(r); cell.KindOf(err) == cell.NotFound {
					err = cell.Errorf(cell.Denied, opName, "pull it first: pando image pull "+r.String(), "cannot pull %s: a Dockerfile names a registry of this host", r)
				}
			}
			if err != nil {
				return oci.Image{}, err
			}
			img, err := e.imageFor(ctx, image.Name{Kind: image.KindOCI, Ref: r.String()}, x.l)
			if err == nil {
				e.images.Use(img.ID)
			}
			return img, err
		},
		Context: func(ctx context.Context) (dockerfile.Context, error) {
			return x.buildContext(ctx, filepath.Dir(file), made)
		},
		Use: made.UseImage,
		Run: x.buildStep,
		Report: func(step, steps int, text string) {
			x.report(api.Progress{Step: "building", Done: int64(step), Total: int64(steps), Unit: "steps", Note: text})
		},
	}
	img, err := f.Build(ctx, c, name.Stage)
	if err == nil && x.l != nil {
		err = e.images.Name(name.String(), img.ID)
	}
	if err != nil {
		return oci.Image{}, full(err)
	}
	x.built = append(f.Notes, x.built...)
	return img, nil
}

// buildContext imports the directory of a Dockerfile, as a source is imported. What the run's policy hides in its source, and what the
// run lets in of it although it looks secret, count where the directory is the source.
func (x *execution) buildContext(ctx context.Context, dir string, made *gc.Pin) (out dockerfile.Context, err error) {
	e := x.e
	p, _, err := e.provider(ctx, x.p.backend)
	if err != nil {
		return out, err
	}
	var with secret.With
	var names []string
	if dir == x.p.source && x.p.from == "" {
		with, names = x.p.with, x.p.req.WithSecret
	}
	im, _, err := e.importSource(ctx, p, []workspace.Directory{{Source: dir}}, with, names, x.p.policy.Secrets == policy.SecretsMask, made, func(files, _ int64) {
		x.report(api.Progress{Step: "importing", Done: files, Unit: "files", Note: dir})
	})
	if err != nil {
		return out, err
	}
	if len(names) > 0 {
		x.built = append(x.built, "the image may have what looks like a secret: "+join(names)+" (--with-secret)")
	}
	if dir != x.p.source {
		for _, l := range im.LeftOut {
			x.built = append(x.built, fmt.Sprintf("%s of the Dockerfile's directory is not in the image: %s", clip(l.Path), l.Why))
		}
		if more := len(x.built) - maxLeftOut; more > 0 {
			x.built = append(x.built[:maxLeftOut], fmt.Sprintf("and %d more paths of the Dockerfile's directory are not in the image", more))
		}
	}
	out.Side = workspace.Side{Tree: im.Tree, Contents: p.Contents(im.State)}
	for _, hidden := range x.p.policy.Files.Hidden {
		if rel, err := filepath.Rel(dir, filepath.Join(x.p.source, hidden)); err == nil {
			if strings.Trim(rel, "./") == "" { // it, or one above it
				rel = "."
			}
			out.Hidden = append(out.Hidden, filepath.ToSlash(rel))
		}
	}
	return out, nil
}

// maxLeftOut bounds the notes of what a context does not have.
const maxLeftOut = 5

func (x *execution) report(p api.Progress) {
	if x.l != nil {
		x.l.Report(p)
	}
}

// readDockerfile reads and checks a Dockerfile, or that of a directory. at is where it is, without symlinks.
func (e *Engine) readDockerfile(path string) (f *dockerfile.File, at string, err error) {
	const opName = "engine.readDockerfile"
	dir, err := filepath.EvalSymlinks(path)
	if st, serr := os.Stat(dir); err == nil && serr == nil && st.IsDir() {
		at = filepath.Join(dir, "Dockerfile")
	} else if dir, err = filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		at = filepath.Join(dir, filepath.Base(path))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	if at != "" {
		if err := e.checkSource(filepath.Dir(at)); err != nil {
			return nil, "", err
		}
	}
	in, err := os.OpenFile(at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", cell.Errorf(cell.NotFound, opName, "name a Dockerfile, or the directory that holds one", "cannot find a Dockerfile at %s", path)
	case errors.Is(err, unix.ELOOP):
		return nil, "", cell.Errorf(cell.Denied, opName, "name the file that it leads to", "cannot read %s: it is a symlink", at)
	case err != nil:
		return nil, "", err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return nil, "", err
	}
	if !st.Mode().IsRegular() {
		return nil, "", cell.Errorf(cell.Invalid, opName, "name a Dockerfile, or the directory that holds one", "cannot read %s: it is no file", at)
	}
	text, err := io.ReadAll(io.LimitReader(in, dockerfile.MaxSize+1))
	if err != nil {
		return nil, "", err
	}
	f, err = dockerfile.Parse(text)
	return f, at, err
}

// buildStep executes a RUN, and gives take what it changed.
func (x *execution) buildStep(ctx context.Context, on *oci.Image, r *dockerfile.Run, take func(run string, write func(*tar.Writer) error) error) (err error) {
	e, req := x.e, x.p.req
	step := &imageStep{on: on.ID, name: x.p.image.String(), policy: x.p.policy.WithoutKeys()}
	// Of the run's policy all counts but what is about its own workspace, files, variables and keys.
	step.policy.Files, step.policy.Home, step.policy.Env = policy.Files{}, policy.Home{}, slices.Clone(r.Env)
	if r.Offline {
		step.policy.Network = policy.Network{}
	}
	if !slices.ContainsFunc(r.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }) {
		step.policy.Env = append(step.policy.Env, "HOME=/root") // as in Docker's builds: it belongs to the image
	}
	step.policy.Environment.Set = nil
	for _, kv := range step.policy.Env {
		name, _, _ := strings.Cut(kv, "=")
		step.policy.Environment.Set = append(step.policy.Environment.Set, name)
	}
	v := e.All() // it counts as the run that wants it, and is over before that begins
	v.step = step
	ctx = context.WithValue(ctx, viewKey{}, v)
	made, err := e.Create(ctx, api.CreateRequest{Place: image.BuildDir + "/workspace", Backend: x.p.backend.Name(), Kernel: req.Kernel, Lease: api.LeaseRequest{For: buildLease, Then: api.LeaseRemove}})
	if err != nil {
		return err
	}
	id := cell.ID(made.ID)
	defer func() {
		if _, rerr := e.Remove(context.WithoutCancel(ctx), id, false); err == nil {
			err = rerr
		}
	}()
	run, err := e.StartRun(ctx, api.RunRequest{Cell: made.ID, Command: r.Command, Workdir: r.Workdir, OnSuccess: "accept", OnFailure: "pending"})
	if err != nil {
		return err
	}
	if run, err = e.runs.Wait(ctx, cell.RunID(run.ID)); err != nil {
		return err
	}
	if err := failedStep(e, &run, r); err != nil {
		return err
	}
	if _, err := e.Stop(ctx, id); err != nil {
		return err
	}
	release, err := e.locks.Acquire(ctx, id, "the layer of an image", nil)
	if err != nil {
		return err
	}
	defer release() // before it is removed
	if err := e.alive.AwaitGone(ctx, id); err != nil {
		return err
	}
	c, err := e.reg.Cell(id)
	if err != nil {
		return err
	}
	if c.State == cell.Removed || e.alive.Instance(id) != nil {
		return cell.Errorf(cell.Conflict, "engine.build", "start it again", "cell %s, in which %s was executed, was removed or used meanwhile", c.Title(), cell.Clip(r.Text))
	}
	return take(run.ID, func(w *tar.Writer) error { return e.writeBuilt(ctx, &c, on, w) })
}

// failedStep says why a step failed, if it did.
func failedStep(e *Engine, run *api.Run, r *dockerfile.Run) error {
	const opName = "engine.build"
	if run.Error != nil {
		return run.Error
	}
	if run.ExitCode != nil && *run.ExitCode == 0 {
		return nil
	}
	how := "was ended"
	switch {
	case run.Signal != "":
		how = "was ended by " + run.Signal
	case run.ExitCode != nil:
		how = fmt.Sprintf("has exit code %d", *run.ExitCode)
	}
	text := ""
	for _, name := range []string{"stdout", "stderr"} {
		text += lastLines(filepath.Join(e.cfg.Home.Runs(), run.ID), name)
	}
	hint := "pando logs " + run.ID + " has its output, pando events " + run.ID + " what it was denied"
	return cell.Errorf(cell.Invalid, opName, hint, "%s %s%s", cell.Clip(r.Text), how, text)
}

// lastLines is the end of an output.
func lastLines(folder, name string) string {
	const lines, most = 8, 2 << 10
	f, err := evidence.OpenRecord(folder, name)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return ""
	}
	b := make([]byte, min(st.Size(), most))
	if _, err := f.ReadAt(b, st.Size()-int64(len(b))); err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(b), "")), "\n")
	return "\n" + redactor.String(strings.Join(all[max(0, len(all)-lines):], "\n"))
}

// layTop makes what a cell that makes an image has in its root directory beside mount points: the image's files there.
func (e *Engine) layTop(c *state.Cell, dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	name := dir
	dir += ".new" // what has the name is complete
	if err := linux.RemoveTree(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	on, err := e.images.Get(c.ImageKey)
	if err != nil {
		return err
	}
	err = oci.CopyTop(on.Root, dir, func(name string) bool { return slices.Contains(image.BuildsOwn, name) })
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(on.Root, "tmp")); errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o777); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	return os.Rename(dir, name)
}

// writeBuilt writes what a cell changed over its image as a layer.
func (e *Engine) writeBuilt(ctx context.Context, c *state.Cell, on *oci.Image, w *tar.Writer) error {
	own := map[string]bool{strings.TrimPrefix(image.BuildDir, "/"): true}
	for _, name := range image.BuildsOwn {
		own[name] = true
	}
	for _, m := range c.Setup.Mounts {
		if m.Role != cell.RoleImage { // its place in the image is empty, and no part of it
			own[strings.TrimPrefix(m.Target, "/")] = true
		}
	}
	for _, m := range c.Setup.Mounts {
		at := strings.TrimPrefix(m.Target, "/")
		switch {
		case m.Role == cell.RoleTop:
			if err := oci.WriteTop(ctx, w, on.Root, m.Source, func(name string) bool { return own[name] }); err != nil {
				return err
			}
		case m.Role == cell.RoleImage && m.Kind == cell.Overlay:
			upper, _ := e.rootLayer(c, m.Target)
			if err := oci.WriteUpper(ctx, w, at, upper, func(name string) bool { return own[name] }); err != nil {
				return err
			}
		}
	}
	return nil
}
