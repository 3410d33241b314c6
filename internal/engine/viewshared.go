package engine

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
)

// The View of what is not a cell's: templates, images, credentials, approvals, and
// what is about the whole installation.

// Templates: see spawn.Manager. Counts of templates for all callers are of the
// caller's cells.
func (v *View) Templates() []api.Template {
	all := v.e.spawn.Templates()
	if !v.restricted() {
		return all
	}
	all = slices.DeleteFunc(all, func(t api.Template) bool { return v.mustTemplate(t.Name, false) != nil })
	for i := range all {
		all[i] = v.shownTemplate(all[i])
	}
	return all
}

// Template: see spawn.Manager.
func (v *View) Template(name string) (api.Template, error) {
	if err := v.mustTemplate(name, false); err != nil {
		return api.Template{}, err
	}
	t, err := v.e.spawn.Template(name)
	return v.shownTemplate(t), err
}

// HasTemplate reports whether there is a template of that name.
func (v *View) HasTemplate(name string) bool {
	_, err := v.e.reg.Template(name)
	return err == nil && v.mustTemplate(name, false) == nil
}

// shownTemplate is a template without what the caller does not see of it.
func (v *View) shownTemplate(t api.Template) api.Template {
	if !v.restricted() || t.Name == "" {
		return t
	}
	t.Cells = v.titles(v.e.spawn.Dependents(t.Name))
	if !v.sees(cell.ID(t.Cell)) {
		t.Forks = int64(len(t.Cells))
	}
	return t
}

// BuildTemplate: see spawn.Manager.
func (v *View) BuildTemplate(ctx context.Context, req api.TemplateRequest, out func(api.StreamLine), seen ...Seen) (t api.Template, err error) {
	if err := v.e.gc.Room(); err != nil && !req.DryRun {
		return api.Template{}, err
	}
	if err := v.mayImport(req.From, req.Upload); err != nil {
		return api.Template{}, err
	}
	if !req.DryRun {
		var a *act
		ctx, a = v.e.act(ctx, "template", "")
		defer func() {
			if t, err := v.e.reg.Template(req.Name); err == nil {
				a.cell = t.Cell
			}
			a.over(&err)
		}()
	}
	t, err = v.e.spawn.BuildTemplate(v.with(ctx), req, out, func() error {
		return unless(func() string { return v.e.templateTag(req.Name) }, seen)
	})
	return v.shownTemplate(t), err
}

// RemoveTemplate: see spawn.Manager.
func (v *View) RemoveTemplate(ctx context.Context, name string, req api.TemplateRemoval) (api.Template, error) {
	if err := v.mustTemplate(name, true); err != nil {
		return api.Template{}, err
	}
	if v.restricted() && !req.Force {
		if all := v.e.spawn.Dependents(name); len(v.titles(all)) < len(all) {
			return api.Template{}, cell.Errorf(cell.Denied, "engine.RemoveTemplate", "leave them with --force", "cannot remove template %s: cells were forked from it that are not yours", name)
		}
	}
	t, err := v.e.spawn.RemoveTemplate(ctx, name, req)
	return v.shownTemplate(t), err
}

// ForkTemplate: see spawn.Manager.
func (v *View) ForkTemplate(ctx context.Context, name string, req api.WarmForkRequest, out func(api.StreamLine)) (api.WarmForkResult, error) {
	if err := v.mustTemplate(name, false); err != nil {
		return api.WarmForkResult{Template: name, Forks: []api.WarmFork{}}, err
	}
	if req.DryRun {
		return v.e.spawn.ForkTemplate(ctx, name, req, out)
	}
	ctx, done, err := v.making(ctx, max(req.Count, 1), v.e.labelsOfTemplate(name))
	if err != nil {
		return api.WarmForkResult{Template: name, Forks: []api.WarmFork{}}, err
	}
	defer done()
	ctx, a := v.e.act(ctx, "fork", "")
	defer a.over(&err)
	if t, err := v.e.reg.Template(name); err == nil {
		a.cell = t.Cell
	}
	res, err := v.e.spawn.ForkTemplate(ctx, name, req, out)
	v.e.figures.forked(res)
	a.say(attribute.String("pando.template", name), attribute.Int("pando.forks", len(res.Forks)), attribute.Int("pando.pool.hits", res.Hits))
	return res, err
}

// Images: see Engine.
func (v *View) Images() ([]api.Image, error) {
	list, err := v.e.images.List()
	if err != nil {
		return nil, err
	}
	out := []api.Image{}
	for i := range list {
		one := v.e.imageView(&list[i])
		if v.restricted() {
			one.Cells = v.titles(v.e.cellsOn(&list[i]))
		}
		out = append(out, one)
	}
	return out, nil
}

// PullImage: see Engine.
func (v *View) PullImage(ctx context.Context, req api.ImagePullRequest, out func(api.StreamLine)) (api.Image, error) {
	if err := v.e.gc.Room(); err != nil {
		return api.Image{}, err
	}
	img, err := v.e.PullImage(ctx, req, out)
	if v.restricted() {
		img.Cells = []string{}
	}
	return img, err
}

// RemoveImage: see Engine.
func (v *View) RemoveImage(sel, dir string, dry bool) (api.Image, error) {
	if err := v.whole("removing an image"); err != nil {
		return api.Image{}, err
	}
	return v.e.RemoveImage(sel, dir, dry)
}

// Credentials: see govern.Manager.
func (v *View) Credentials() []api.Credential {
	all := v.e.govern.Credentials()
	for i := range all {
		all[i] = v.shownCredential(all[i])
	}
	return all
}

// withoutPath is a text without the path of a login file, for a caller that may not name the host's files.
func (v *View) withoutPath(text, path string) string {
	switch {
	case path == "" || !v.restricted() && !v.isConfined():
		return text
	case text == path:
		return ""
	}
	return strings.ReplaceAll(text, path, "its file")
}

// shownCredential is a credential without the cells that the caller does not see, and without the path of a
// login file for a caller that may not name the host's files.
func (v *View) shownCredential(c api.Credential) api.Credential {
	if v.restricted() {
		c.Lent = slices.DeleteFunc(c.Lent, func(l api.CredentialLent) bool { return !v.sees(cell.ID(l.Cell)) })
	}
	c.Problem, c.Path = v.withoutPath(c.Problem, c.Path), v.withoutPath(c.Path, c.Path)
	return c
}

// AddCredential: see govern.Manager.
func (v *View) AddCredential(ctx context.Context, req api.CredentialRequest) (api.Credential, error) {
	if err := v.whole("storing a credential"); err != nil {
		return api.Credential{}, err
	}
	return v.e.govern.AddCredential(ctx, req)
}

// RemoveCredential: see govern.Manager.
func (v *View) RemoveCredential(ctx context.Context, name string) (api.RevokeResult, error) {
	if err := v.whole("removing a credential"); err != nil {
		return api.RevokeResult{}, err
	}
	return v.e.govern.RemoveCredential(ctx, name)
}

// CheckCredential: see govern.Manager.
func (v *View) CheckCredential(name string) (api.CredentialCheck, error) {
	c, err := v.e.govern.CheckCredential(name)
	for i := range c.Problems {
		c.Problems[i] = v.withoutPath(c.Problems[i], c.Credential.Path)
	}
	c.Credential = v.shownCredential(c.Credential)
	return c, err
}

// RevokeCredential: see govern.Manager.Revoke.
func (v *View) RevokeCredential(ctx context.Context, name string, req api.RevokeRequest) (api.RevokeResult, error) {
	return v.e.govern.Revoke(ctx, name, req, v, v.sees)
}

// Approvals: see govern.Manager.
func (v *View) Approvals(all bool) []api.Approval {
	return slices.DeleteFunc(v.e.govern.Approvals(all), func(a api.Approval) bool { return !v.sees(cell.ID(a.Cell)) })
}

// Answer: see govern.Manager.
func (v *View) Answer(ctx context.Context, id string, allow bool, scope string) (api.Approval, error) {
	return v.e.govern.Answer(ctx, id, allow, scope, v.sees)
}

// Disk: see gc.Manager.
func (v *View) Disk(ctx context.Context, objects bool) (api.Disk, error) {
	if err := v.whole("what pando holds on disk"); err != nil {
		return api.Disk{}, err
	}
	return v.e.gc.Disk(ctx, objects)
}

// GC: see gc.Manager.Collect.
func (v *View) GC(ctx context.Context, dry bool) (res api.GCResult, err error) {
	if err := v.whole("freeing disk space"); err != nil {
		return api.GCResult{}, err
	}
	if dry {
		return v.e.gc.Collect(ctx, dry)
	}
	ctx, a := v.e.act(ctx, "gc", "")
	defer a.over(&err)
	if res, err = v.e.gc.Collect(ctx, dry); err == nil {
		v.e.figures.collected(res.Bytes)
	}
	return res, err
}

// SpaceWarning: see gc.Manager.Warning; "" for a caller that doesn't see the whole installation.
func (v *View) SpaceWarning() string {
	if v.restricted() {
		return ""
	}
	return v.e.gc.Warning()
}

// Ready reports whether something new can be made: there is room on the disk, and among the
// cells that there may be. It is cheap, since probes ask it that know no token.
func (v *View) Ready() bool {
	free, keep, err := v.e.gc.Free()
	return err == nil && free >= keep && v.e.reg.Size() < v.e.cfg.MaxCells
}

// reader is the caller as one that receipts are shown to.
func (v *View) reader() evidence.Reader {
	r := evidence.Reader{SelectRun: v.SelectRun, SelectCell: v.SelectCell}
	if v.restricted() {
		r.Sees = v.sees
	}
	return r
}

// mayRead refuses all receipts, "all", to a caller that does not see all cells.
func (v *View) mayRead(sel string) error {
	if sel != "all" {
		return nil
	}
	return v.whole("all receipts")
}

// Receipts: see evidence.Manager.
func (v *View) Receipts(limit int) ([]api.Receipt, error) {
	return v.e.evidence.Receipts(v.reader(), limit)
}

// Receipt: see evidence.Manager.
func (v *View) Receipt(sel, dir string) (api.Receipt, error) {
	return v.e.evidence.Receipt(v.reader(), sel, dir)
}

// ExportReceipts: see evidence.Manager.
func (v *View) ExportReceipts(sel, dir string) ([]byte, error) {
	if err := v.mayRead(sel); err != nil {
		return nil, err
	}
	return v.e.evidence.ExportReceipts(v.reader(), sel, dir)
}

// Bundle: see evidence.Manager.
func (v *View) Bundle(of []string, dir string) (*evidence.Bundle, error) {
	for _, sel := range of {
		if err := v.mayRead(sel); err != nil {
			return nil, err
		}
	}
	return v.e.evidence.Bundle(v.reader(), of, dir)
}

// BundleFrom: see evidence.Manager.
func (v *View) BundleFrom(from, to int64) (*evidence.Bundle, error) {
	if err := v.mayRead("all"); err != nil {
		return nil, err
	}
	return v.e.evidence.BundleFrom(from, to)
}

// Ledger: see evidence.Manager.
func (v *View) Ledger(since int64) (api.Ledger, error) {
	if err := v.mayRead("all"); err != nil {
		return api.Ledger{}, err
	}
	return v.e.evidence.LedgerHead(since)
}

// ChangeKey: see evidence.Manager.
func (v *View) ChangeKey(ctx context.Context, req api.KeyChangeRequest) (api.Ledger, error) {
	if err := v.mayRead("all"); err != nil {
		return api.Ledger{}, err
	}
	return v.e.evidence.ChangeKey(ctx, req)
}

// Verify: see evidence.Manager.
func (v *View) Verify(sel, dir string) (api.Verification, error) {
	if err := v.mayRead(sel); err != nil {
		return api.Verification{}, err
	}
	return v.e.evidence.Verify(v.reader(), sel, dir)
}
