package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/engine"
)

// templateBase is the default template of all clients. It, and those of E2B's other clients, are
// an empty workspace on the default backend.
const templateBase = "base"

var baseTemplates = []string{templateBase, "code-interpreter-v1", "code-interpreter"}

// make makes a sandbox from a pando template, a template built through this front, a snapshot,
// or the base.
func (f *Front) make(ctx context.Context, req *createRequest, labels map[string]string, lease api.LeaseRequest) (api.Cell, error) {
	e := f.cfg.Engine.For(labels)
	name := labels[labelTemplate]
	env := envOf(req.EnvVars)
	var c api.Cell
	var err error
	var of startPoint
	switch {
	case e.HasTemplate(name):
		if err = f.unasked(req, name); err == nil {
			c, err = ofTemplate(ctx, e, name)
			env = append(e.LeasedEnv(cell.ID(c.ID)), env...)
		}
	case slices.Contains(baseTemplates, name):
		place := e.HomePlace(home)
		create := api.CreateRequest{Place: place, Env: append([]string{"HOME=" + place}, env...), Labels: labels, Backend: labels[metaBackend], Lease: lease, CallerEnv: []string{"PATH=" + f.cfg.Path}}
		lent, done, err := f.lendTo(ctx, req.Network)
		if err != nil {
			return c, err
		}
		defer done()
		if err = req.Network.policy(&create, req.AllowInternet, lent); err != nil {
			return c, err
		}
		if c, err = e.Create(ctx, create); err != nil {
			return c, err
		}
		return f.find(cell.ID(c.ID))
	default:
		if _, err = f.startPoint(name); err != nil { // not found, whatever else was asked for
			return c, err
		}
		if err = f.unasked(req, name); err != nil {
			return c, err
		}
		// It gets none of the template's labels, not even for a moment: a build that ends then
		// would take it for an earlier one, and remove it.
		if c, of, err = f.forkOf(ctx, e, name); err == nil {
			env = append(of.env, env...)
			for _, l := range []string{labelAlias, labelDir} {
				if v := of.labels[l]; v != "" {
					labels[l] = v
				}
			}
		}
	}
	if err != nil {
		return c, err
	}
	id := cell.ID(c.ID)
	lease.Labels, lease.Env = labels, env
	if _, err := e.Lease(ctx, id, lease); err != nil {
		_, rerr := e.Remove(context.WithoutCancel(ctx), id, false)
		return c, errors.Join(err, rerr)
	}
	if err := f.begin(ctx, id, of.labels); err != nil {
		_, rerr := e.Remove(context.WithoutCancel(ctx), id, false)
		return c, errors.Join(err, rerr)
	}
	return f.find(id)
}

// unasked rejects options of the base alone: a fork has the network and policy of its source.
func (f *Front) unasked(req *createRequest, of string) error {
	if b := req.Metadata[metaBackend]; b != "" {
		return cell.Errorf(cell.Unsupported, "e2b.create", "leave out metadata "+metaBackend, "cannot make a sandbox of %s on backend %s: it has the backend of its source", cell.Clip(of), b)
	}
	if req.Network == nil && req.AllowInternet == nil {
		return nil
	}
	return cell.Errorf(cell.Unsupported, "e2b.create", "leave out network and allowInternetAccess, or give them when the template is made",
		"cannot change the network of a sandbox of %s: it has that of its source", cell.Clip(of))
}

// envOf returns a map of variables as a sorted list.
func envOf(vars map[string]string) (env []string) {
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, k+"="+vars[k])
	}
	return env
}

// ofTemplate makes a cell from a pando template.
func ofTemplate(ctx context.Context, e *engine.View, name string) (api.Cell, error) {
	res, err := e.ForkTemplate(ctx, name, api.WarmForkRequest{Count: 1}, nil)
	if err != nil {
		return api.Cell{}, err
	}
	if p := res.Forks[0].Error; p != nil {
		return api.Cell{}, cell.Errorf(cell.Kind(p.Kind), "e2b.create", p.Hint, "%s", p.Message)
	}
	return res.Forks[0].Cell, nil
}

// startPoint is the state of a template or snapshot, and what is known of its cell.
type startPoint struct {
	cell   cell.ID
	number int // of the checkpoint; 0: its head
	labels map[string]string
	env    []string
}

// startPoint finds the state that a template's name stands for: a checkpoint, or the head of a cell
// that was built as a template.
func (f *Front) startPoint(name string) (o startPoint, err error) {
	e := f.cfg.Engine
	if k, ok := f.snapshotNamed(name); ok {
		o.cell, o.number = cell.ID(k.Cell), k.Number
		was, _ := e.Record(o.cell)
		o.labels = was.Labels
	} else if t, ok := f.built(name); ok {
		if t.Labels[labelBuild] != buildReady {
			return o, cell.Errorf(cell.Conflict, "e2b.create", "wait until its build has ended; if it failed, build it again", "cannot make a sandbox of template %s: it is not ready, its build is %s", cell.Clip(name), t.Labels[labelBuild])
		}
		o.cell, o.number, o.labels = cell.ID(t.ID), t.Head, t.Labels
	} else {
		return o, cell.Errorf(cell.NotFound, "e2b.create", "use base, a snapshot, or a template: "+strings.Join(f.templateNames(e.Templates()), ", "), "template '%s' not found", cell.Clip(name))
	}
	o.env = e.LeasedEnv(o.cell)
	return o, nil
}

// forkOf makes a cell of the state that a template's name stands for, without its labels.
func (f *Front) forkOf(ctx context.Context, e *engine.View, name string) (api.Cell, startPoint, error) {
	for again := false; ; again = true {
		o, err := f.startPoint(name)
		if err != nil {
			return api.Cell{}, o, err
		}
		res, err := e.Fork(ctx, o.cell, api.ForkRequest{Number: o.number})
		if err == nil {
			return res.Cells[0], o, nil
		}
		if again || cell.KindOf(err) != cell.NotFound { // a build that has ended just now removed the one before it
			return api.Cell{}, o, err
		}
	}
}

func (f *Front) templateNames(list []api.Template) (names []string) {
	for _, t := range list {
		names = append(names, t.Name)
	}
	return append(names, templateBase)
}

type forkResult struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *problem     `json:"error,omitempty"`
}

type forkRequest struct {
	Timeout *int64 `json:"timeout"`
	Count   int    `json:"count"`
}

// fork makes copies of a sandbox: with its memory where possible, with its files if it has no
// processes.
func (f *Front) fork(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var req forkRequest
	if !decode(w, r, &req) {
		return
	}
	if paused(c) {
		refuse(w, http.StatusConflict, "cannot fork "+c.ID+": it is paused; connect to it first")
		return
	}
	life := int64(lifeV2)
	if req.Timeout != nil {
		life = *req.Timeout
	}
	id := cell.ID(c.ID)
	cells, err := f.copies(r.Context(), c, max(req.Count, 1))
	if err != nil {
		f.failOf(w, c, err)
		return
	}
	var kids []cell.ID
	for _, k := range cells {
		kids = append(kids, cell.ID(k.ID))
	}
	err = f.cfg.Engine.LeaseLike(r.Context(), id, seconds(life), kids...)
	out := []forkResult{}
	for _, kid := range kids {
		var v api.Cell
		kerr := err
		if kerr == nil {
			v, kerr = f.find(kid)
		}
		if kerr != nil {
			if _, rerr := f.cfg.Engine.Remove(context.WithoutCancel(r.Context()), kid, false); rerr != nil {
				kerr = errors.Join(kerr, rerr)
			}
			out = append(out, forkResult{Error: &problem{statusOf(kerr), sentence(kerr)}})
			continue
		}
		f.contextsOf(kid, f.box(id))
		view := f.view(r, &v)
		out = append(out, forkResult{Sandbox: &view})
	}
	f.note(id, "info", "forked: "+strconv.Itoa(len(out)))
	answer(w, http.StatusCreated, out)
}

// copies forks a cell: with its memory if it has processes, else its files.
func (f *Front) copies(ctx context.Context, c *api.Cell, count int) ([]api.Cell, error) {
	id := cell.ID(c.ID)
	res, err := f.cfg.Engine.Fork(ctx, id, api.ForkRequest{Count: count})
	if cell.KindOf(err) != cell.Unsupported {
		return res.Cells, err
	}
	// It has processes.
	more, err := f.cfg.Engine.Branch(ctx, id, api.BranchRequest{Count: count})
	return more.Cells, err
}

// A snapshot is a checkpoint of a sandbox.
type snapshotView struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

type snapshotRequest struct {
	Name string `json:"name"`
}

func (f *Front) snapshot(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var req snapshotRequest
	if !decode(w, r, &req) {
		return
	}
	name := strings.TrimSpace(req.Name)
	if strings.Contains(name, nameSeparator) {
		refuse(w, http.StatusBadRequest, "cannot name a snapshot "+cell.Clip(name))
		return
	}
	if name != "" {
		if _, ok := f.snapshotNamed(name); ok || slices.Contains(baseTemplates, name) {
			refuse(w, http.StatusConflict, "cannot make a snapshot of that name: there is "+cell.Clip(name))
			return
		}
	}
	id := cell.ID(c.ID)
	k, err := f.cfg.Engine.Checkpoint(r.Context(), id, api.CheckpointRequest{Message: snapshotMark + name})
	if err == nil && !slices.Contains(namesOf(&k), name) { // nothing had changed: an older checkpoint gets a further name
		if k.Message == "" || strings.HasPrefix(k.Message, snapshotMark) {
			k, err = f.cfg.Engine.NameCheckpoint(r.Context(), id, k.Number, snapshotMark+strings.Join(append(namesOf(&k), name), nameSeparator))
		} else {
			ignore(w, "name")
		}
	}
	if err != nil {
		f.failOf(w, c, err)
		return
	}
	f.note(cell.ID(c.ID), "info", "snapshot "+k.ID)
	answer(w, http.StatusCreated, viewSnapshot(&k))
}

// snapshotMark begins the message of a checkpoint made through this front.
const snapshotMark = "e2b snapshot "

func viewSnapshot(k *api.Checkpoint) snapshotView {
	v := snapshotView{SnapshotID: k.ID, Names: []string{}}
	for _, name := range namesOf(k) {
		if name != "" {
			v.Names = append(v.Names, name)
		}
	}
	return v
}

// nameSeparator stands between the names of one snapshot.
const nameSeparator = " | "

// namesOf returns the names of a checkpoint made through this front: at least one, which may be
// "".
func namesOf(k *api.Checkpoint) []string {
	names, ok := strings.CutPrefix(k.Message, snapshotMark)
	if !ok {
		return nil
	}
	return strings.Split(names, nameSeparator)
}

// snapshotNamed finds a snapshot by its id or its name.
func (f *Front) snapshotNamed(name string) (found api.Checkpoint, ok bool) {
	if k, err := f.cfg.Engine.CheckpointOf(cell.CheckpointID(name)); err == nil {
		return k, true
	}
	if name == "" {
		return found, false
	}
	for _, k := range f.cfg.Engine.Marked(snapshotMark) {
		if slices.Contains(namesOf(&k), name) {
			return k, true
		}
	}
	return found, false
}

func (f *Front) snapshots(w http.ResponseWriter, r *http.Request) {
	known(w, r, "sandboxID", "name", "limit", "nextToken")
	q := r.URL.Query()
	var out []snapshotView
	for _, k := range f.cfg.Engine.Marked(snapshotMark) {
		v := viewSnapshot(&k)
		if (q.Get("sandboxID") == "" || q.Get("sandboxID") == k.Cell) && (q.Get("name") == "" || slices.Contains(v.Names, q.Get("name"))) {
			out = append(out, v)
		}
	}
	page(w, r, out, func(v snapshotView) string { return v.SnapshotID })
}

// network is the network access of a sandbox, in E2B's form.
type network struct {
	AllowOut      []string        `json:"allowOut,omitempty"`
	DenyOut       []string        `json:"denyOut,omitempty"`
	AllowPublic   *bool           `json:"allowPublicTraffic,omitempty"`
	Rules         json.RawMessage `json:"rules,omitempty"`
	EgressProxy   json.RawMessage `json:"egressProxy,omitempty"`
	MaskHost      string          `json:"maskRequestHost,omitempty"`
	HTTPSPorts    []int           `json:"httpsPorts,omitempty"`
	AllowInternet *bool           `json:"allow_internet_access,omitempty"` // of an update
}

func isSet(raw json.RawMessage) bool {
	return len(raw) > 0 && !slices.Contains([]string{"null", "{}", "[]"}, string(raw))
}

// check rejects options that pando implements otherwise or not at all.
func (n *network) check() error {
	if n == nil {
		return nil
	}
	for what, hint := range map[string]string{
		"egressProxy":     "leave network.egressProxy out: requests go through the sandbox's own gateway",
		"maskRequestHost": "leave network.maskRequestHost out: requests keep their header Host",
		"httpsPorts":      "leave network.httpsPorts out, and have the sandbox's program answer in plain HTTP",
	} {
		if map[string]bool{"egressProxy": isSet(n.EgressProxy), "maskRequestHost": n.MaskHost != "", "httpsPorts": len(n.HTTPSPorts) > 0}[what] {
			return cell.Errorf(cell.Unsupported, "e2b.network", hint, "cannot use network.%s: pando does not have this option of E2B", what)
		}
	}
	_, err := n.rules()
	return err
}

// label stores the network in labels, to return it later.
func (n *network) label(labels map[string]string, internet *bool) error {
	if err := n.check(); err != nil {
		return err
	}
	delete(labels, labelPrivate)
	delete(labels, labelNetwork)
	delete(labels, labelInternet)
	if n != nil {
		told := *n
		told.Rules = n.mask()
		b, err := json.Marshal(told)
		if err != nil {
			return err
		}
		labels[labelNetwork] = string(b)
		if n.AllowPublic != nil && !*n.AllowPublic {
			labels[labelPrivate] = "on"
		}
	}
	if internet != nil {
		labels[labelInternet] = strconv.FormatBool(*internet)
	}
	return nil
}

func networkIn(labels map[string]string) (n *network, internet *bool) {
	if s := labels[labelNetwork]; s != "" && json.Unmarshal([]byte(s), &n) != nil {
		n = nil
	}
	if s := labels[labelInternet]; s != "" {
		v := s == "true"
		internet = &v
	}
	return n, internet
}

// denied is the value of denyOut: everything, or single destinations.
func (n *network) denied() (all bool, rest []string) {
	for _, d := range n.DenyOut {
		if d == "0.0.0.0/0" || d == "::/0" || d == "*" {
			all = true
			continue
		}
		rest = append(rest, d)
	}
	return all, rest
}

// policy translates E2B's rules into a policy of pando. Without a rule nothing may be reached,
// and a denial wins over any rule that allows. lent are the credentials of its rules.
func (n *network) policy(to *api.CreateRequest, internet *bool, lent []string) error {
	if err := n.check(); err != nil {
		return err
	}
	if n == nil {
		n = &network{}
	}
	all, deny := n.denied()
	open := internet != nil && *internet && !all || internet == nil && len(deny) > 0 && !all
	if len(n.AllowOut) > 0 && len(deny) > 0 {
		return cell.Errorf(cell.Unsupported, "e2b.network", `set denyOut to ["0.0.0.0/0"], and allowOut to what may be reached`, "cannot use allowOut with this denyOut: in pando a denied address stays denied")
	}
	allow := slices.Clone(n.AllowOut)
	if open {
		allow = append(allow, "*", "0.0.0.0/0", "::/0")
	}
	if len(allow) == 0 {
		return nil
	}
	type rule struct {
		Host  string   `json:"host"`
		Ports []string `json:"ports,omitempty"`
	}
	rules := func(hosts []string, ports ...string) (out []rule) {
		for _, h := range hosts {
			out = append(out, rule{h, ports})
		}
		return out
	}
	doc := map[string]any{"version": 1, "network": map[string]any{"allow": rules(allow, "1-65535"), "deny": rules(deny)}}
	if len(deny) == 0 {
		delete(doc["network"].(map[string]any), "deny")
	}
	if len(lent) > 0 {
		doc["credentials"] = lent
	}
	b, err := json.Marshal(doc) // JSON is YAML, too
	to.Policy = string(b)
	return err
}

// setNetwork replaces the network access of a sandbox.
func (f *Front) setNetwork(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var n network
	if !decode(w, r, &n) {
		return
	}
	labels := maps.Clone(c.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	err := n.label(labels, n.AllowInternet)
	var rules api.CreateRequest
	var lent []string
	if err == nil {
		var done func()
		if lent, done, err = f.lendTo(r.Context(), &n); err == nil {
			defer done()
			err = n.policy(&rules, n.AllowInternet, lent)
		}
	}
	if err == nil {
		err = f.cfg.Engine.Regovern(r.Context(), cell.ID(c.ID), cmp.Or(rules.Policy, "version: 1\n"))
	}
	if err == nil {
		_, err = f.cfg.Engine.Lease(r.Context(), cell.ID(c.ID), api.LeaseRequest{Labels: labels})
	}
	if err != nil {
		f.failOf(w, c, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
