package e2b

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Tags name builds of a template: NAME:TAG is the one build of NAME with TAG, and NAME alone the
// newest.

// tagsOf returns the tags of a build.
func tagsOf(c *api.Cell) []string {
	if c.Labels[labelTags] == "" {
		return nil
	}
	return strings.Split(c.Labels[labelTags], ",")
}

// nameAndTags splits the tag off a template's name, and checks the tags: without any, the
// default one.
func nameAndTags(name string, tags []string) (string, []string, error) {
	name, tag, tagged := strings.Cut(name, ":")
	if tagged {
		tags = append(slices.Clone(tags), tag)
	}
	if len(tags) == 0 {
		tags = []string{defaultTag}
	}
	if err := checkTags(tags); err != nil {
		return "", nil, err
	}
	slices.Sort(tags)
	return name, slices.Compact(tags), nil
}

func checkTags(tags []string) error {
	for _, t := range tags {
		if cell.CheckName(t) != nil {
			return cell.Errorf(cell.Invalid, "e2b.tags", "use letters, digits, dots, hyphens and underscores", "%q is no tag", cell.Clip(t))
		}
	}
	return nil
}

// setTags replaces the tags of a build.
func (f *Front) setTags(ctx context.Context, c *api.Cell, tags []string) error {
	labels := maps.Clone(c.Labels)
	slices.Sort(tags)
	if labels[labelTags] = strings.Join(slices.Compact(tags), ","); len(tags) == 0 {
		delete(labels, labelTags)
	}
	_, err := f.cfg.Engine.Lease(ctx, cell.ID(c.ID), api.LeaseRequest{Labels: labels})
	return err
}

type tagsRequest struct {
	Target string   `json:"target"` // NAME or NAME:TAG
	Tags   []string `json:"tags"`
}

// assignTags gives tags to a build, and takes them from others of its name.
func (f *Front) assignTags(w http.ResponseWriter, r *http.Request) {
	var req tagsRequest
	if !decode(w, r, &req) {
		return
	}
	c, ok := f.built(req.Target)
	switch err := checkTags(req.Tags); {
	case err != nil:
		fail(w, err)
		return
	case len(req.Tags) == 0:
		refuse(w, http.StatusBadRequest, "cannot assign no tags")
		return
	case !ok || c.Labels[labelBuild] != buildReady:
		refuse(w, http.StatusNotFound, "template '"+cell.Clip(req.Target)+"' not found")
		return
	}
	for _, id := range f.cfg.Engine.Labelled(labelBuild) {
		o, err := f.cfg.Engine.Record(id)
		if err != nil || o.ID == c.ID || o.Labels[labelAlias] != c.Labels[labelAlias] {
			continue
		}
		had := tagsOf(&o)
		if left := slices.DeleteFunc(slices.Clone(had), func(t string) bool { return slices.Contains(req.Tags, t) }); len(left) < len(had) {
			if err := f.setTags(r.Context(), &o, left); err != nil {
				fail(w, err)
				return
			}
		}
	}
	all := append(tagsOf(&c), req.Tags...)
	if err := f.setTags(r.Context(), &c, all); err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusCreated, map[string]any{"buildID": c.Labels[labelBID], "tags": req.Tags})
}

type untagRequest struct {
	Name string   `json:"name"`
	Tags []string `json:"tags"`
}

// removeTags removes tags from the builds of a name.
func (f *Front) removeTags(w http.ResponseWriter, r *http.Request) {
	var req untagRequest
	if !decode(w, r, &req) {
		return
	}
	found := false
	for _, id := range f.cfg.Engine.Labelled(labelBuild) {
		c, err := f.cfg.Engine.Record(id)
		if err != nil || c.Labels[labelAlias] != req.Name && c.ID != req.Name {
			continue
		}
		found = true
		had := tagsOf(&c)
		if left := slices.DeleteFunc(slices.Clone(had), func(t string) bool { return slices.Contains(req.Tags, t) }); len(left) < len(had) {
			if err := f.setTags(r.Context(), &c, left); err != nil {
				fail(w, err)
				return
			}
		}
	}
	if !found {
		refuse(w, http.StatusNotFound, "template '"+cell.Clip(req.Name)+"' not found")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// listTags lists the tags of all builds of a name, given by name or id.
func (f *Front) listTags(w http.ResponseWriter, name string) {
	of, ok := f.built(name)
	if !ok {
		refuse(w, http.StatusNotFound, "template '"+cell.Clip(name)+"' not found")
		return
	}
	type view struct {
		Tag       string    `json:"tag"`
		BuildID   string    `json:"buildID"`
		CreatedAt time.Time `json:"createdAt"`
	}
	out := []view{}
	for _, id := range f.cfg.Engine.Labelled(labelBuild) {
		c, err := f.cfg.Engine.Record(id)
		if err != nil || c.Labels[labelAlias] != of.Labels[labelAlias] || c.Labels[labelBuild] != buildReady {
			continue
		}
		for _, t := range tagsOf(&c) {
			out = append(out, view{t, c.Labels[labelBID], c.Created})
		}
	}
	slices.SortFunc(out, func(a, b view) int { return strings.Compare(a.Tag, b.Tag) })
	answer(w, http.StatusOK, out)
}

// allowing is a policy with the rules of --allow.
func allowing(hosts []string) string {
	b, err := json.Marshal(map[string]any{"version": 1, "network": map[string]any{"allow": hosts}})
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return string(b) // JSON is YAML, too
}
