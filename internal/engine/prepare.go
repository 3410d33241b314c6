package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// execution is one run on its way through prepare, start, wait and finish. It
// holds the cell's lock.
type execution struct {
	e   *Engine
	p   *runPlan
	l   *run.Live
	run *state.Run

	made     *gc.Pin // until the command runs: what is not recorded yet
	c        state.Cell
	imported *workspace.Imported // of the source; nil when nothing could be known of it
	before   state.Checkpoint
	plan     *image.HostPlan
	built    []string // notes of the image that was made
	inst     backend.Instance
	proc     backend.Process
}

// prepare brings the cell to the state in which the command can start:
// workspace, checkpoint before, root file system.
func (x *execution) prepare(ctx context.Context) error {
	e := x.e
	x.c = *x.p.cell
	if err := e.gc.KeepReserve(); err != nil {
		if durable.IsFull(err) {
			return cell.Errorf(cell.Unavailable, "engine", e.gc.Hint()+"; then try again", "cannot go on: %w", err)
		}
		return err
	}
	if x.c.Head != "" {
		if _, err := e.alive.Living(ctx, &x.c); err != nil {
			return err
		}
	}
	failpoint.Step("make the folder of a run")
	if err := os.MkdirAll(x.run.Folder, 0o700); err != nil {
		return err
	}
	if err := e.evidence.WriteManifest(x.run, &x.p.policy); err != nil {
		return err
	}
	var g errgroup.Group
	if e.alive.Instance(x.c.ID) == nil {
		g.Go(func() (err error) {
			x.plan, err = x.imagePlan(ctx)
			return err
		})
	}
	t := time.Now()
	err := x.source(ctx)
	x.run.Timings.Import = ms(time.Since(t))
	if gerr := g.Wait(); err == nil {
		err = gerr
	}
	if err != nil {
		return err
	}
	x.noteImage() // both have notes
	t = time.Now()
	if x.c.Head == "" {
		if err = x.firstCheckpoint(); err == nil {
			err = x.makeServices(ctx, nil)
		}
	} else {
		err = x.beforeCheckpoint(ctx)
	}
	x.run.Timings.Checkpoint = ms(time.Since(t))
	if err != nil {
		return err
	}
	x.run.Before = x.before.Point()
	x.run.In.Before = x.before.ID
	x.nameOutside()
	x.run.Provider = state.Provider{Name: x.c.Provider, Why: x.c.WhyNot}
	x.run.LeftOut = leftOutOf(x.c.LeftOut, x.p.policy.Files.Hidden)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// source imports the source for a new cell, and looks at it again for one
// that exists: what it was before the run.
func (x *execution) source(ctx context.Context) error {
	e := x.e
	if x.c.Head != "" {
		if x.c.NoSource && x.c.ImportKey == "" {
			return nil // it was uploaded: there is nothing that could have changed
		}
		var err error
		if x.imported, err = e.lastImport(x.c.ImportKey); err != nil || x.imported == nil {
			x.imported = nil
			x.run.Notes = append(x.run.Notes, "the source could not be looked at: what was known of it is gone")
			return nil
		}
		now, err := workspace.Fingerprint(ctx, x.imported, e.cfg.Parser)
		if err != nil {
			x.imported = nil
			x.run.Notes = append(x.run.Notes, fmt.Sprintf("the source could not be looked at: %v", err))
			return nil
		}
		x.run.In.SourceFP = now
		return nil
	}
	p, why, err := e.provider(ctx, x.p.backend)
	if err != nil {
		return err
	}
	progress := func(files, bytes int64) {
		x.l.Report(api.Progress{Step: "importing", Done: files, Unit: "files", Note: x.p.source})
	}
	var im *workspace.Imported
	key := ""
	if x.p.req.Upload != "" {
		im, err = x.importUpload(ctx, p, progress)
	} else {
		im, key, err = e.importSource(ctx, p, x.sources(), x.p.with, x.p.req.WithSecret, x.p.policy.Secrets == policy.SecretsMask, x.made, progress)
	}
	if err != nil {
		return err
	}
	x.imported = im
	x.run.In.SourceFP = im.Fingerprint
	x.run.Notes = append(x.run.Notes, im.Notes...)
	if e.unsigned(&x.c, im) && !e.govern.SignsGit(&x.c) {
		x.run.Notes = append(x.run.Notes, "git does not sign commits and tags in the cell: the key stays outside")
	}
	x.c.ImportKey, x.c.LeftOut, x.c.Provider, x.c.WhyNot, x.c.With = key, im.LeftOut, p.Name(), why, x.p.req.WithSecret
	if x.p.from == "" {
		x.c.KnownHeads = result.HeadsOf(&x.c)
	}
	return nil
}

// sources are the directories that come into a new cell: those of its plan, or the empty ones in which a service has its data.
func (x *execution) sources() []workspace.Directory {
	dirs := x.p.sources()
	if len(x.c.Repositories) == 0 || x.p.from == "" {
		return dirs
	}
	empty := dirs[0].Source
	dirs = x.c.Parts()
	for i := range dirs {
		dirs[i].Source = empty
	}
	return dirs
}

// planImage makes the image's plan, and its notes the run's.
func (x *execution) planImage(ctx context.Context) (err error) {
	if x.plan, err = x.imagePlan(ctx); err == nil {
		x.noteImage()
	}
	return err
}

// imagePlan finds out what the cell will see of the host, or of its image. Of x it changes
// the identity of the image alone: the source is imported meanwhile.
func (x *execution) imagePlan(ctx context.Context) (*image.HostPlan, error) {
	e, req := x.e, x.p.req
	root, err := x.root(ctx)
	if err != nil {
		return nil, err
	}
	r := image.HostRequest{
		Root: "/", Env: req.CallerEnv, Home: e.cfg.User.Home, Cwd: orElse(req.CallerDir, x.c.Source),
		User: e.cfg.User, Source: x.c.Source, Further: x.c.Repositories, Top: x.c.Top(), Workdir: x.workdir(), Command: req.Command,
		Mounts: mountFlags(x.p), EtcDir: e.etcDir(),
		State: e.ownDirs(), Confined: x.p.confined, Caches: x.p.caches,
	}
	if x.c.NoSource {
		r.Source, r.Place, r.Top = "", x.c.Source, ""
	}
	if root.dir == "" {
		return image.Host(r)
	}
	return image.Rooted(image.RootedRequest{HostRequest: r, Dir: root.dir, Kept: root.kept, Builds: x.c.Builds, ReadOnly: x.p.policy.Files.ReadOnlyRoot, Settings: root.settings, Used: x.c.Setup.Policy != (cell.Digest{})})
}

// noteImage adds the notes of the image's plan, if one was made, to the run's.
func (x *execution) noteImage() {
	if x.plan == nil {
		return
	}
	x.run.Notes = append(x.run.Notes, x.built...)
	for _, n := range x.plan.Notes {
		text := n.Path + ": " + n.What
		if n.Fix != "" {
			text += " (" + n.Fix + ")"
		}
		x.run.Notes = append(x.run.Notes, text)
	}
}

// nameOutside puts what the source points to outside itself among what the cell
// does not have. A cell without a new plan keeps what was said of it.
func (x *execution) nameOutside() {
	if x.plan == nil {
		return
	}
	list := slices.DeleteFunc(slices.Clone(x.c.LeftOut), func(l workspace.LeftOut) bool { return l.Kind == workspace.Outside })
	for _, o := range x.plan.Outside {
		list = append(list, workspace.LeftOut{Path: o.From, Kind: workspace.Outside, Why: o.Why, Fix: o.Fix})
	}
	x.c.LeftOut, x.c.Shared = list, cell.Digest{}
}

func mountFlags(p *runPlan) (out []string) {
	for _, m := range p.policy.Files.Mounts {
		out = append(out, m.String())
	}
	return out
}

// workdir is where the command runs: what was asked, or where the caller stands in the
// source, or its top.
func (x *execution) workdir() string {
	w := x.p.req.Workdir
	switch {
	case w == "":
		return x.standing()
	case filepath.IsAbs(w):
		return filepath.Clean(w)
	}
	return filepath.Join(x.c.Source, w)
}

// standing is the folder of the workspace in which the caller of a run is, if it is one.
func (x *execution) standing() string {
	top := x.c.Top()
	if x.run.ID == "" || x.c.NoSource || x.p.confined || x.p.req.CallerDir == "" {
		return x.c.Source
	}
	dir, err := filepath.EvalSymlinks(x.p.req.CallerDir)
	if err != nil {
		return x.c.Source
	}
	if !slices.ContainsFunc(x.c.Parts(), func(d workspace.Directory) bool { return dir == d.Source || strings.HasPrefix(dir, d.Source+"/") }) {
		return x.c.Source
	}
	rel, err := filepath.Rel(top, dir)
	if err != nil || rel == "." || !filepath.IsLocal(rel) {
		return x.c.Source
	}
	tree, err := x.e.tree(x.l.Context(), &x.before)
	if err != nil {
		return x.c.Source
	}
	if at, err := tree.Lookup(rel); err != nil || at.Type != workspace.Folder {
		return x.c.Source
	}
	return filepath.Join(top, rel)
}

// firstCheckpoint makes the base of a new cell its checkpoint 1.
func (x *execution) firstCheckpoint() error {
	tree, err := x.e.trees.put(x.imported.Tree)
	if err != nil {
		return err
	}
	x.before = state.Checkpoint{
		ID: cell.NewCheckpointID(), Cell: x.c.ID, Number: x.c.Next, Kind: state.KindBase, Run: x.run.RunID(), Created: time.Now().UTC(),
		State: x.imported.State, Tree: tree, Content: x.imported.Tree.ContentDigest(),
	}
	x.c.Next++
	x.c.Head = x.before.ID
	return nil
}

// beforeCheckpoint is the state of an existing cell now: its head, or a new
// checkpoint when something changed since.
func (x *execution) beforeCheckpoint(ctx context.Context) error {
	k, err := x.e.settle(ctx, &x.c, state.KindBefore, "", x.run.RunID())
	if err != nil {
		return err
	}
	x.before = k
	return nil
}

// settle makes the present state of a cell a checkpoint and its head, if it
// is not one already. At rest that moves nothing; under living processes the
// topmost layer is copied while they are frozen. c is changed and committed.
// The caller holds the cell's lock.
func (e *Engine) settle(ctx context.Context, c *state.Cell, kind, message string, run cell.RunID) (state.Checkpoint, error) {
	return e.settleWith(ctx, c, state.Checkpoint{Kind: kind, Message: message, Run: run}, run, false)
}

// settleWith is settle, with what the new checkpoint is about, for a run, a caller within one (see live.Manager.Within),
// or ""; with memory, it has what runs in the cell, too, where that can be captured.
func (e *Engine) settleWith(ctx context.Context, c *state.Cell, k state.Checkpoint, within cell.RunID, memory bool) (state.Checkpoint, error) {
	return e.settleAll(ctx, c, k, within, memory, k.Kind == state.KindFork)
}

// settleAll is settleWith. A checkpoint that is more than a look has what the cell's services keep. With whole it fails where
// that can't be had; else it is without that.
func (e *Engine) settleAll(ctx context.Context, c *state.Cell, k state.Checkpoint, within cell.RunID, memory, whole bool) (out state.Checkpoint, err error) {
	if len(c.Services) == 0 || k.Kind == state.KindLooked {
		return e.settleFiles(ctx, c, k, within, memory, func() {})
	}
	err = e.besideServices(ctx, c, whole, func(at map[string]cell.CheckpointID, goOn func()) (err error) {
		k.Services = at
		out, err = e.settleFiles(ctx, c, k, within, memory, goOn)
		return err
	})
	return out, err
}

// settleFiles is settleWith for a cell without services, or with those of k. taken is called when the cell's files were.
func (e *Engine) settleFiles(ctx context.Context, c *state.Cell, k state.Checkpoint, within cell.RunID, memory bool, taken func()) (state.Checkpoint, error) {
	head, err := e.reg.Checkpoint(c.Head)
	if err != nil {
		return head, err
	}
	if err := e.reg.Unfinished(c, within); err != nil {
		return head, err
	}
	began := time.Now()
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return head, err
	}
	k.ID, k.Cell, k.Number, k.Parent, k.Created = cell.NewCheckpointID(), c.ID, c.Next, head.ID, time.Now().UTC()
	if c.Gen == nil {
		return e.settleHome(ctx, p, c, k, head)
	}
	inst, err := e.alive.Living(ctx, c)
	if err != nil {
		return head, err
	}
	withHome, err := e.layHome(ctx, p, c, &k)
	if err != nil {
		return head, err
	}
	var t *taking
	if inst != nil {
		t, err = e.underLiving(ctx, p, inst, c, &k, memory, withHome)
		defer t.close()
		taken()
	} else {
		if err = affordable(ctx, p, c); err == nil {
			k.State, err = p.Freeze(ctx, *c.Gen)
		}
		if err == nil && withHome {
			err = keepHome(ctx, p, c, &k)
		}
	}
	if err != nil {
		return head, err
	}
	k.TookMS = ms(time.Since(began))
	same, err := e.sameAsHead(ctx, p, &k, &head, c.Gen.Base)
	if err != nil {
		return head, err
	}
	if same && inst != nil && k.Memory == nil { // else it is the cell's own, or belongs to the memory
		k.State = head.State
	}
	if k.Memory != nil || k.Home != nil || movedOn(&k, &head) { // which are not the same
		same = false
	}
	if k.Kind == state.KindAfter && e.madeDuring(&head, k.Run) { // that is kept and given up by itself
		same = false
	}
	if same {
		if inst == nil {
			layer := c.Gen.Layer
			c.Gen = nil
			if err := e.reg.Commit(c); err != nil {
				return head, err
			}
			e.dropLayer(c.Provider, layer) // after the record has stopped naming it
		}
		t.keep(&head) // the next look need not doubt what this one compared
		return head, nil
	}
	next := *c
	next.Next++
	next.Head = k.ID
	if inst == nil {
		next.Gen = nil
	}
	if err := e.reg.Commit(&next, &k); err != nil {
		return head, err
	}
	t.keep(&k)
	if gen := c.Gen; inst == nil && !slices.Contains(k.State.Layers, gen.Layer) { // it was copied
		e.dropLayer(c.Provider, gen.Layer)
	}
	*c = next
	return k, nil
}

// madeDuring reports whether a checkpoint was made while a run went on, for something else.
func (e *Engine) madeDuring(k *state.Checkpoint, id cell.RunID) bool {
	r, err := e.reg.Run(id)
	return err == nil && r.In.Before != k.ID && (k.Kind != state.KindAfter || k.Run != id)
}

// dropLayer removes a layer that nothing names, in the background.
func (e *Engine) dropLayer(provider, layer string) {
	e.background(func(context.Context) { e.gc.DropLayer(provider, layer) })
}

// sameAsHead computes the new state's tree and compares it with the head's.
func (e *Engine) sameAsHead(ctx context.Context, p workspace.Provider, k, head *state.Checkpoint, base workspace.State) (bool, error) {
	if k.State.Same(head.State) {
		k.Tree, k.Content = head.Tree, head.Content
		return true, nil
	}
	t, err := e.treeAbove(ctx, p, k, base)
	if err != nil {
		return false, err
	}
	if k.Tree, err = e.trees.put(t); err != nil {
		return false, err
	}
	k.Content = t.ContentDigest()
	if _, err := e.tree(ctx, head); err != nil {
		return false, err
	}
	return k.Tree == head.Tree, nil
}

// treeAbove computes the tree of a new state from that of the state it was
// begun on, or of the last copy, which it lies over.
func (e *Engine) treeAbove(ctx context.Context, p workspace.Provider, k *state.Checkpoint, base workspace.State) (*workspace.Tree, error) {
	if n := len(k.State.Layers); n > len(base.Layers)+1 {
		base = workspace.State{Provider: k.State.Provider, Layers: k.State.Layers[:n-1]}
	}
	for id := k.Parent; id != ""; {
		up, err := e.reg.Checkpoint(id)
		if err != nil {
			break
		}
		if up.State.Same(base) {
			t, err := e.tree(ctx, &up)
			if err != nil {
				return nil, err
			}
			return p.Tree(ctx, t, k.State)
		}
		id = up.Parent
	}
	return p.Walk(ctx, k.State, e.cfg.Objects)
}

// leftOutOf gives what was left out in the words of the API. hidden is what the
// policy hides.
func leftOutOf(list []workspace.LeftOut, hidden []string) []state.LeftOut {
	noGit := slices.Contains(hidden, ".git") || slices.Contains(hidden, ".git/objects")
	out := make([]state.LeftOut, 0, len(list))
	for _, l := range list {
		out = append(out, state.LeftOut{Path: l.Path, Why: l.Why, Kind: l.Kind, Of: l.Fields, Fix: l.Fix, Masked: l.Masked, History: l.History && !noGit})
	}
	return out
}
