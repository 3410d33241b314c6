package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
)

// root finds the root file system of the execution's cell; an OCI image is
// pulled when it isn't here. A cell that exists keeps the image that its name
// meant when it was made.
func (x *execution) root(ctx context.Context) (rootFS, error) {
	e, name := x.e, x.p.image
	var img oci.Image
	var err error
	switch name.Kind {
	case image.KindOCI, image.KindDockerfile:
	default:
		if x.p.service != nil {
			err = x.serve(nil)
		}
		return rootFS{dir: name.Path}, err
	}
	if key := x.c.ImageKey; !key.IsZero() {
		if img, err = e.images.Get(key); cell.KindOf(err) == cell.NotFound && x.l != nil {
			img, err = e.pullAgain(ctx, &x.c, name, x.l.Report)
		}
	} else if name.Kind == image.KindDockerfile {
		img, err = x.build(ctx)
	} else {
		img, err = e.imageFor(ctx, name, x.l)
	}
	if err != nil {
		return rootFS{}, err
	}
	if img.Digest.IsZero() { // it was made here
		img.Digest = img.ID
	}
	x.c.ImageKey, x.c.ImageID = img.ID, orElse(x.c.ImageID, img.Digest.String())
	x.run.ImageID = x.c.ImageID
	e.images.Use(img.ID)
	if x.p.service != nil {
		if err := x.serve(&img); err != nil {
			return rootFS{}, err
		}
	}
	if x.p.step != nil { // the stage says what its commands are told
		img.Env = x.p.step.policy.Env
	}
	return rootFS{dir: img.Root, kept: true, settings: image.Settings{Env: img.Env, User: img.User, Workdir: img.Workdir}}, nil
}

// imageFor returns the image of a name, without asking a registry about one that
// is here. l is the run that waits for it; nil when nothing may be fetched.
func (e *Engine) imageFor(ctx context.Context, name image.Name, l *run.Live) (oci.Image, error) {
	r, err := oci.Parse(name.Ref, "")
	if err != nil {
		return oci.Image{}, err
	}
	if r.Path == "" || l == nil {
		img, err := e.images.Known(r)
		if l == nil || cell.KindOf(err) != cell.NotFound {
			return img, err
		}
	}
	return e.images.Pull(ctx, r, oci.PullOptions{Report: pulling(r, l.Report)})
}

// pullAgain fetches the image of a cell that was removed meanwhile: the same, or
// none.
func (e *Engine) pullAgain(ctx context.Context, c *state.Cell, name image.Name, report func(api.Progress)) (oci.Image, error) {
	if name.Kind == image.KindDockerfile {
		return oci.Image{}, cell.Errorf(cell.NotFound, "engine.image", c.ImageAgain(), "cannot start cell %s: its image %s was removed", c.Title(), name)
	}
	r, err := oci.Parse(name.Ref, "")
	if err != nil {
		return oci.Image{}, err
	}
	if d, err := cell.ParseDigest(c.ImageID); err == nil && r.Path == "" {
		r.Digest = d
	}
	img, err := e.images.Pull(ctx, r, oci.PullOptions{Report: pulling(r, report)})
	if err == nil && img.ID != c.ImageKey {
		err = cell.Errorf(cell.Conflict, "engine.image", "work in a new cell", "cannot bring back the image of cell %s: %s is another image now", c.Title(), name)
	}
	return img, err
}

// pulling puts the progress of a pull into words.
func pulling(r oci.Reference, report func(api.Progress)) func(oci.Progress) {
	return func(p oci.Progress) {
		out := api.Progress{Step: p.Step, Done: p.Done, Total: p.Total, Unit: "bytes", Note: r.String()}
		if p.Layers > 0 {
			out.Note = fmt.Sprintf("layer %d of %d, %s", p.Layer, p.Layers, p.Digest)
		}
		report(out)
	}
}

// PullImage fetches an image, or sees whether what its name means has changed.
func (e *Engine) PullImage(ctx context.Context, req api.ImagePullRequest, out func(api.StreamLine)) (api.Image, error) {
	if n, err := image.ParseName(req.Image, req.CallerDir); err == nil && n.Kind == image.KindDockerfile {
		return api.Image{}, cell.Errorf(cell.Invalid, "engine.PullImage", "pando run --image "+req.Image+" -- true", "cannot pull %s: the first run that names a Dockerfile makes its image", cell.Clip(req.Image))
	}
	r, err := oci.Parse(strings.TrimPrefix(req.Image, image.KindOCI+":"), req.CallerDir)
	if err != nil {
		return api.Image{}, err
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	report := func(p api.Progress) { out(api.StreamLine{Progress: &p}) }
	img, err := e.images.Pull(ctx, r, oci.PullOptions{Login: oci.Login{User: req.User, Password: req.Password}, Report: pulling(r, report)})
	if err != nil {
		return api.Image{}, full(err)
	}
	all, err := e.Images()
	if err != nil {
		return api.Image{}, err
	}
	for _, i := range all {
		if i.ID == img.ID.String() {
			return i, nil
		}
	}
	return api.Image{}, cell.Errorf(cell.NotFound, "engine.PullImage", "pull it again", "cannot find image %s: it was removed meanwhile", r)
}

// Images lists the images that are here.
func (e *Engine) Images() ([]api.Image, error) {
	list, err := e.images.List()
	if err != nil {
		return nil, err
	}
	out := []api.Image{}
	for i := range list {
		out = append(out, e.imageView(&list[i]))
	}
	return out, nil
}

func (e *Engine) imageView(img *oci.Image) api.Image {
	n := img.Counts
	v := api.Image{ID: img.ID.String(), Digest: img.Digest.String(), Refs: img.Refs, Bytes: n.Bytes, Files: n.Files, Layers: img.Layers,
		Created: img.Created, Pulled: img.Pulled, Used: img.Used, Cells: []string{}, Env: img.Env, User: img.User, Workdir: img.Workdir}
	if v.Refs == nil {
		v.Refs = []string{}
	}
	if m := img.Made; m != nil {
		v.Made = &api.ImageMade{Dockerfile: m.Ref, Step: m.Step, Run: m.Run}
		if !m.From.IsZero() {
			v.Made.From = m.From.String()
		}
	}
	for _, c := range e.cellsOn(img) {
		v.Cells = append(v.Cells, c.Title())
	}
	if img.OneID && n.Owners > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d files belong to others in the image; here they are yours", n.Owners))
	} else if n.Owners > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d files belong to numbers that no cell has; here they have no owner", n.Owners))
	}
	for _, x := range []struct {
		n    int
		what string
	}{{n.SetID, "programs have lost their setuid or setgid right, which no cell gives"}, {n.XAttrs, "extended attributes were left out"}, {n.Special, "pipes were left out"}} {
		if x.n > 0 {
			v.Notes = append(v.Notes, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return v
}

// cellsOn are the cells that need an image: those that are made from it, and
// those that are being made from what its name means.
func (e *Engine) cellsOn(img *oci.Image) []state.Cell {
	by := []string{img.ID.String()}
	for _, ref := range img.Refs {
		if img.Made == nil {
			by = append(by, image.KindOCI+":"+ref)
		}
	}
	return e.reg.CellsOnImage(by)
}

// RemoveImage removes an image that no cell needs. sel is one of its references,
// or the beginning of its ID or digest; by one reference of several the image
// stays, and is known by the others.
func (e *Engine) RemoveImage(sel, dir string, dry bool) (api.Image, error) {
	const op = "engine.RemoveImage"
	img, ref, err := e.selectImage(sel, dir)
	if err != nil {
		return api.Image{}, err
	}
	if ref != "" && len(img.Refs) > 1 {
		img.Refs = slices.DeleteFunc(img.Refs, func(r string) bool { return r == ref })
		if dry {
			return e.imageView(&img), nil
		}
		return e.imageView(&img), e.images.Forget(ref)
	}
	needed := func() error {
		cells := e.cellsOn(&img)
		if len(cells) == 0 && e.pins.UsesImage(img.ID) {
			return cell.Errorf(cell.Conflict, op, "wait until the run that builds it has begun", "cannot remove image %s: a Dockerfile is being built with it", sel)
		}
		if len(cells) == 0 {
			return nil
		}
		return cell.Errorf(cell.Conflict, op, "remove them first: pando rm "+cells[0].Title(), "cannot remove image %s: %s made from it", sel, countCells(cells))
	}
	v := e.imageView(&img)
	v.Refs = []string{}
	if dry {
		return v, needed()
	}
	return v, e.images.Remove(img.ID, needed)
}

func countCells(cells []state.Cell) string {
	if len(cells) == 1 {
		return "cell " + cells[0].Title() + " is"
	}
	return fmt.Sprintf("%d cells, such as %s, are", len(cells), cells[0].Title())
}

// selectImage finds an image, and which of its references was meant, if one was.
func (e *Engine) selectImage(sel, dir string) (img oci.Image, ref string, err error) {
	const op = "engine.selectImage"
	list, err := e.images.List()
	if err != nil {
		return img, "", err
	}
	sel = strings.TrimPrefix(sel, image.KindOCI+":")
	names := []string{sel}
	if n, err := image.ParseName(sel, dir); err == nil && n.Kind == image.KindDockerfile {
		names = append(names, n.String())
	} else if r, err := oci.Parse(sel, dir); err == nil {
		names = append(names, r.String())
	} else if dir != "" {
		names = append(names, filepath.Join(dir, sel)) // of an archive that is gone
	}
	var found []oci.Image
	hex := strings.TrimPrefix(sel, "sha256:")
	for _, img := range list {
		for _, r := range img.Refs {
			if slices.Contains(names, r) {
				return img, r, nil
			}
		}
		if len(hex) >= 6 && (strings.HasPrefix(strings.TrimPrefix(img.ID.String(), "sha256:"), hex) || strings.HasPrefix(strings.TrimPrefix(img.Digest.String(), "sha256:"), hex)) {
			found = append(found, img)
		}
	}
	switch len(found) {
	case 1:
		return found[0], "", nil
	case 0:
		return img, "", cell.Errorf(cell.NotFound, op, "pando image ls shows those that are here", "cannot find image %s", sel)
	}
	return img, "", cell.Errorf(cell.Invalid, op, "give more of it", "%s is the beginning of %d images", sel, len(found))
}
