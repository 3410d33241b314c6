package e2b

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/state"
)

// A build begins in a cell of the base. One from another template, or from an image, runs its
// steps in a second cell; the template keeps the id of the first.

// labelTID is the original id of a template after its cell was replaced.
const labelTID = "e2b:template-id"

// baseImages are names of the image of E2B's base template, which is the base here.
var baseImages = []string{"", "e2bdev/base", "e2bdev/base:latest"}

// registryLogin has the credentials for a private registry.
type registryLogin struct {
	Type     string `json:"type"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// mayBegin rejects what a build can't start from.
func (f *Front) mayBegin(req *buildRequest) error {
	const op = "e2b.build"
	e := f.cfg.Engine
	switch t := req.FromTemplate; {
	case t == "" || slices.Contains(baseTemplates, t):
	case e.HasTemplate(t):
		return cell.Errorf(cell.Unsupported, op, "start from base, an image, or a template built through this API", "cannot build from template %s: it is one of pando template build, with forks of its memory", cell.Clip(t))
	default:
		_, err := f.startPoint(t)
		return err
	}
	if slices.Contains(baseImages, req.FromImage) {
		return nil
	}
	if r := req.Registry; r != nil && r.Type != "registry" {
		return cell.Errorf(cell.Unsupported, op, "give a user and a password", "cannot log in to a registry of type %s", cell.Clip(r.Type))
	}
	ref, err := imageOf(req.FromImage)
	if err != nil {
		return err
	}
	if !allowsImage(f.cfg.BuildImages, ref) {
		name := ref.Registry + "/" + ref.Repository
		return cell.Errorf(cell.Denied, op, "the operator can allow it with pando serve --build-image "+name, "cannot build from image %s: builds may not start from it", cell.Clip(name))
	}
	return nil
}

// imageOf parses the name of an image in a registry. It rejects paths of the host.
func imageOf(name string) (oci.Reference, error) {
	ref, err := oci.Parse(name, "")
	if err == nil && (ref.Path != "" || paths.IsImage(name)) {
		err = cell.Errorf(cell.Denied, "e2b.build", "name an image of a registry", "cannot build from %s: it is a path", cell.Clip(name))
	}
	return ref, err
}

// allowsImage reports whether builds may start from an image. A pattern is the name of a
// repository, or a prefix of one with "*" after it.
func allowsImage(patterns []string, ref oci.Reference) bool {
	name := ref.Registry + "/" + ref.Repository
	return slices.ContainsFunc(patterns, func(p string) bool {
		if begin, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(name, begin)
		}
		r, err := oci.Parse(p, "")
		return err == nil && r.Path == "" && r.Registry+"/"+r.Repository == name
	})
}

// buildBase returns the cell for the steps of a build: its own, or one made from another template
// or image.
func (f *Front) buildBase(ctx context.Context, c *api.Cell, b *build, req *buildRequest) (id cell.ID, dir string, err error) {
	e := f.cfg.Engine
	labels := map[string]string{labelBuild: buildRunning, labelBID: b.id}
	if req.FromTemplate == "" || slices.Contains(baseTemplates, req.FromTemplate) {
		if slices.Contains(baseImages, req.FromImage) {
			return cell.ID(c.ID), ".", nil
		}
		ref, err := imageOf(req.FromImage)
		if err != nil {
			return "", "", err
		}
		if r := req.Registry; r != nil {
			b.say("info", "fetching "+ref.String())
			if _, err := e.PullImage(ctx, api.ImagePullRequest{Image: ref.String(), User: r.Username, Password: r.Password}, func(api.StreamLine) {}); err != nil {
				return "", "", err
			}
		}
		create := api.CreateRequest{Place: home, Env: []string{"HOME=" + home}, Image: "oci:" + ref.String(), Limits: b.limits, Labels: labels}
		if len(f.cfg.BuildAllow) > 0 {
			create.Policy, e = allowing(f.cfg.BuildAllow), e.ByOperator()
		}
		made, err := e.Create(ctx, create)
		return cell.ID(made.ID), ".", err
	}
	made, of, err := f.forkOf(ctx, e, req.FromTemplate)
	if err != nil {
		return "", "", err
	}
	id = cell.ID(made.ID)
	_, err = e.Lease(ctx, id, api.LeaseRequest{Labels: labels, Env: of.env})
	if err == nil && len(f.cfg.BuildAllow) > 0 {
		err = e.ByOperator().Regovern(ctx, id, allowing(f.cfg.BuildAllow))
	}
	return id, cmp.Or(of.labels[labelDir], "."), err
}

// begunAs finds the cell of a template by its original id.
func (f *Front) begunAs(id string) (api.Cell, bool) {
	list, _, err := f.cfg.Engine.Records(state.Query{Label: labelBuild, Labels: map[string]string{labelTID: id}})
	if err != nil || len(list) == 0 {
		return api.Cell{}, false
	}
	return list[0], true
}
