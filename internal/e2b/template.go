package e2b

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// A template built by steps is a cell in which they ran. A sandbox of it is a fork of its files;
// its start command runs in each.

// Labels of such cells.
const (
	labelBuild = state.LabelBuild // building, ready, or error: why
	labelStart = "e2b:start"      // the command that begins in each sandbox
	labelReady = "e2b:ready"      // the command that tells when that is ready
	labelBID   = "e2b:build-id"
	labelDir   = "e2b:workdir" // the directory of its sandboxes' commands
	labelTags  = "e2b:tags"    // of the build, separated by commas
)

// defaultTag is the tag of a name without one.
const defaultTag = "default"

const (
	buildWaiting = state.BuildWaiting
	buildRunning = state.BuildBuilding
	buildReady   = "ready"
	buildFailed  = "error"
)

// maxBuilds bounds the builds that a daemon remembers, and maxBuildLines the lines of one.
const (
	maxBuilds     = 256
	maxBuildLines = 20000
)

// startLimit is how long a build waits for its start, or for more of the files that its steps
// copy. Its cell is on the disk, and its client may be gone.
const startLimit = time.Hour

// build is a build of this daemon, running or ended.
type build struct {
	id   string
	cell string // the template's id; the cell of a failed build is removed

	mu     sync.Mutex // guards the fields below
	status string
	reason string
	step   string
	lines  []buildLine
	// archives are the files that steps copy, by their hash.
	archives map[string]*archive
	moved    string     // the cell of the steps, if it is not the original one
	limits   api.Limits // requested limits
	limit    *time.Timer
}

// await fails the build when startLimit is over, and calls then. Starting it ends that.
func (b *build) await(then func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = time.AfterFunc(startLimit, func() {
		b.mu.Lock()
		over := b.status == buildWaiting
		if over {
			b.status, b.reason = buildFailed, "it was not started within an hour; build it again"
		}
		b.mu.Unlock()
		if over {
			then()
		}
	})
}

// stays lets the build wait for its start as long as at its beginning.
func (b *build) stays() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status == buildWaiting {
		b.limit.Reset(startLimit)
	}
}

// start reports whether the build was waiting; if so, it runs now.
func (b *build) start() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status != buildWaiting {
		return false
	}
	b.limit.Stop()
	b.status = buildRunning
	return true
}

type buildLine struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

func (b *build) say(level, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(level, message)
}

// add is say for a caller that holds b.mu.
func (b *build) add(level, message string) {
	if len(b.lines) < maxBuildLines {
		b.lines = append(b.lines, buildLine{time.Now().UTC(), level, message, b.step})
	}
}

// remember adds a build, and drops the oldest ended one when there are too many. f.mu is not
// held.
func (f *Front) remember(b *build) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.builds[b.id] = b
	for len(f.builds) > maxBuilds {
		oldest := ""
		for id, o := range f.builds {
			o.mu.Lock()
			over := o.status == buildReady || o.status == buildFailed
			o.mu.Unlock()
			if over && (oldest == "" || id < oldest) { // ids begin with the time
				oldest = id
			}
		}
		if oldest == "" {
			return
		}
		delete(f.builds, oldest)
	}
}

// sweepBuilds removes those of the cells of an earlier daemon's builds that are unfinished or failed.
func (f *Front) sweepBuilds(cells []cell.ID) {
	e := f.cfg.Engine
	for _, id := range cells {
		c, err := e.Record(id)
		if err != nil || c.Labels[labelBuild] == buildReady {
			continue
		}
		if _, err := e.Remove(context.Background(), id, false); err != nil {
			f.cfg.Log.Warn("cannot remove what a build has left", "cell", id, "error", err)
		}
	}
}

func (f *Front) templateRoutes(m *http.ServeMux) {
	m.HandleFunc("GET /templates", f.listTemplates)
	m.HandleFunc("POST /v3/templates", f.beginTemplate)
	m.HandleFunc("POST /v2/templates/{id}/builds/{build}", f.buildTemplate)
	m.HandleFunc("DELETE /templates/{id...}", f.removeTemplate)
	m.HandleFunc("PUT /templates/{id}/files/{hash}", f.takeArchive)
	m.HandleFunc("GET /templates/{rest...}", f.lookAtTemplate)
	m.HandleFunc("POST /templates/tags", f.assignTags)
	m.HandleFunc("DELETE /templates/tags", f.removeTags)
	for _, p := range []string{"POST /templates", "POST /v2/templates"} {
		m.HandleFunc(p, untaken)
	}
}

// untaken rejects unsupported methods.
func untaken(w http.ResponseWriter, _ *http.Request) {
	refuse(w, http.StatusNotImplemented, "cannot do this with templates: POST /v3/templates begins to build one")
}

// lookAtTemplate answers queries of templates: aliases/NAME, and ID/builds/BUILD/status and
// logs. (These patterns would be ambiguous to a mux.)
func (f *Front) lookAtTemplate(w http.ResponseWriter, r *http.Request) {
	rest := r.PathValue("rest")
	if name, ok := strings.CutPrefix(rest, "aliases/"); ok {
		f.aliasOf(w, name)
		return
	}
	if name, ok := strings.CutSuffix(rest, "/tags"); ok {
		f.listTags(w, name)
		return
	}
	p := strings.Split(rest, "/")
	if len(p) == 3 && p[1] == "files" {
		f.archiveLink(w, r, p[0], p[2])
		return
	}
	if len(p) == 4 && p[1] == "builds" {
		r.SetPathValue("id", p[0])
		r.SetPathValue("build", p[2])
		switch p[3] {
		case "status":
			f.buildStatus(w, r)
			return
		case "logs":
			f.buildLogs(w, r)
			return
		}
	}
	untaken(w, r)
}

type templateView struct {
	TemplateID  string    `json:"templateID"`
	BuildID     string    `json:"buildID"`
	BuildStatus string    `json:"buildStatus"`
	Aliases     []string  `json:"aliases"`
	Names       []string  `json:"names"`
	Public      bool      `json:"public"`
	CPUCount    int       `json:"cpuCount"`
	MemoryMB    int64     `json:"memoryMB"`
	DiskSizeMB  int64     `json:"diskSizeMB"`
	EnvdVersion string    `json:"envdVersion"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	SpawnCount  int64     `json:"spawnCount"`
	BuildCount  int       `json:"buildCount"`
	LastSpawned any       `json:"lastSpawnedAt"`
	CreatedBy   any       `json:"createdBy"`
}

func (f *Front) listTemplates(w http.ResponseWriter, _ *http.Request) {
	var c api.Cell
	host := f.listed(&c)
	out := []templateView{{TemplateID: templateBase, BuildStatus: buildReady, Aliases: []string{templateBase}, Names: []string{templateBase}, CPUCount: host.CPUCount,
		MemoryMB: host.MemoryMB, DiskSizeMB: host.DiskSizeMB, EnvdVersion: envdVersion}}
	for _, t := range f.cfg.Engine.Templates() {
		l := f.cfg.Engine.Limits(cell.ID(t.Cell))
		out = append(out, templateView{TemplateID: t.Name, BuildID: t.Digest, BuildStatus: buildReady, Aliases: []string{t.Name}, Names: []string{t.Name}, CPUCount: host.CPUCount,
			MemoryMB: l.Memory >> 20, DiskSizeMB: host.DiskSizeMB, EnvdVersion: envdVersion, CreatedAt: t.Built, UpdatedAt: t.Built, SpawnCount: t.Forks, BuildCount: 1})
	}
	for _, id := range f.cfg.Engine.Labelled(labelBuild) {
		c, err := f.cfg.Engine.Record(id)
		if err != nil || c.Labels[labelBuild] == buildFailed || c.Labels[labelAlias] == "" {
			continue
		}
		l := f.listed(&c)
		out = append(out, templateView{TemplateID: cmp.Or(c.Labels[labelTID], c.ID), BuildID: c.Labels[labelBID], BuildStatus: c.Labels[labelBuild], Aliases: []string{c.Labels[labelAlias]}, Names: []string{c.Labels[labelAlias]},
			CPUCount: l.CPUCount, MemoryMB: l.MemoryMB, DiskSizeMB: l.DiskSizeMB, EnvdVersion: envdVersion, CreatedAt: c.Created, UpdatedAt: c.Created, BuildCount: 1})
	}
	answer(w, http.StatusOK, out)
}

// built finds a template built by steps: by its id, or by its name, with or without a tag. Of
// several builds of a name it is the newest ready one; an unfinished one counts only if there is
// no other.
func (f *Front) built(name string) (found api.Cell, ok bool) {
	if isSandboxID(name) {
		if c, ok := f.begunAs(name); ok { // first: its first cell may not be removed yet
			return c, true
		}
		if c, err := f.cfg.Engine.Record(cell.ID(name)); err == nil && c.State != string(cell.Removed) && c.Labels[labelBuild] != "" {
			return c, true
		}
	}
	alias, tag, tagged := strings.Cut(name, ":")
	better := func(c *api.Cell) bool {
		ready, was := c.Labels[labelBuild] == buildReady, found.Labels[labelBuild] == buildReady
		return !ok || ready && !was || ready == was && c.Created.After(found.Created)
	}
	list, _, err := f.cfg.Engine.Records(state.Query{Label: labelBuild, Labels: map[string]string{labelAlias: alias}})
	if err != nil {
		return found, false
	}
	for _, c := range list {
		if (!tagged || slices.Contains(tagsOf(&c), tag)) && better(&c) {
			found, ok = c, true
		}
	}
	return found, ok
}

// aliasOf returns the template that a name stands for.
func (f *Front) aliasOf(w http.ResponseWriter, name string) {
	id := name
	if !f.cfg.Engine.HasTemplate(name) && !slices.Contains(baseTemplates, name) {
		c, ok := f.built(name)
		if !ok {
			refuse(w, http.StatusNotFound, "template '"+cell.Clip(name)+"' not found")
			return
		}
		id = cmp.Or(c.Labels[labelTID], c.ID)
	}
	answer(w, http.StatusOK, map[string]any{"templateID": id, "public": false})
}

// removeTemplate removes a snapshot, or a template built by steps.
func (f *Front) removeTemplate(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("id")
	var err error
	switch k, ok := f.snapshotNamed(name); {
	case ok && strings.HasPrefix(k.Message, snapshotMark):
		err = f.cfg.Engine.RemoveCheckpoint(r.Context(), cell.ID(k.Cell), k.Number)
	default:
		c, ok := f.built(name)
		if !ok {
			if f.cfg.Engine.HasTemplate(name) {
				refuse(w, http.StatusForbidden, "cannot remove template "+cell.Clip(name)+" from here: pando template rm "+cell.Clip(name))
				return
			}
			refuse(w, http.StatusNotFound, "template '"+cell.Clip(name)+"' not found")
			return
		}
		_, err = f.cfg.Engine.Remove(r.Context(), cell.ID(c.ID), false)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

type templateRequest struct {
	Name     string   `json:"name"`
	Alias    string   `json:"alias"`
	Tags     []string `json:"tags"`
	CPUCount int      `json:"cpuCount"`
	MemoryMB int64    `json:"memoryMB"`
}

// beginTemplate makes the cell for the steps of a template.
func (f *Front) beginTemplate(w http.ResponseWriter, r *http.Request) {
	var req templateRequest
	if !decode(w, r, &req) {
		return
	}
	name := cmp.Or(req.Name, req.Alias)
	switch {
	case name == "":
		refuse(w, http.StatusBadRequest, "cannot build a template without a name")
		return
	case f.cfg.Engine.HasTemplate(name) || slices.Contains(baseTemplates, name):
		refuse(w, http.StatusConflict, "cannot build template "+cell.Clip(name)+": there is one of that name that was not built through this API")
		return
	}
	name, tags, err := nameAndTags(name, req.Tags)
	if err != nil {
		fail(w, err)
		return
	}
	place := f.cfg.Engine.HomePlace(home)
	engine := f.cfg.Engine
	create := api.CreateRequest{Place: place, Env: []string{"HOME=" + place}, CallerEnv: []string{"PATH=" + f.cfg.Path}}
	if len(f.cfg.BuildAllow) > 0 {
		create.Policy, engine = allowing(f.cfg.BuildAllow), engine.ByOperator()
	}
	if req.CPUCount > 0 {
		create.Limits.CPUs = strconv.Itoa(req.CPUCount)
	}
	if req.MemoryMB > 0 {
		create.Limits.Memory = strconv.FormatInt(req.MemoryMB, 10) + "M"
	}
	b := &build{id: "b-" + strconv.FormatInt(time.Now().UnixNano(), 36), status: buildWaiting, archives: map[string]*archive{}, limits: create.Limits}
	create.Labels = map[string]string{labelBuild: buildWaiting, labelAlias: name, labelBID: b.id, labelTags: strings.Join(tags, ",")}
	c, err := engine.Create(r.Context(), create)
	if err != nil {
		fail(w, err)
		return
	}
	b.cell = c.ID
	ctx := context.WithoutCancel(r.Context())
	b.await(func() {
		if _, err := f.cfg.Engine.Record(cell.ID(b.cell)); err == nil { // its client may have removed it
			f.discardBuild(ctx, cell.ID(b.cell))
		}
	})
	f.remember(b)
	answer(w, http.StatusAccepted, map[string]any{"templateID": c.ID, "buildID": b.id, "names": []string{name}, "aliases": []string{name}, "tags": tags, "public": false})
}

type buildRequest struct {
	FromImage    string         `json:"fromImage"`
	FromTemplate string         `json:"fromTemplate"`
	Registry     *registryLogin `json:"fromImageRegistry"`
	Steps        []buildStep    `json:"steps"`
	StartCmd     string         `json:"startCmd"`
	ReadyCmd     string         `json:"readyCmd"`
	Force        bool           `json:"force"` // no build reuses an earlier one
}

type buildStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Files string   `json:"filesHash"`
	Force bool     `json:"force"`
}

const noBuild = "no such build, or it was begun before this daemon"

// buildOf finds a build, and the cell of its template if it exists.
func (f *Front) buildOf(r *http.Request) (c api.Cell, b *build, ok bool) {
	f.mu.Lock()
	b = f.builds[r.PathValue("build")]
	f.mu.Unlock()
	if b == nil {
		return c, nil, false
	}
	b.mu.Lock()
	id := cmp.Or(b.moved, b.cell)
	b.mu.Unlock()
	if c, err := f.cfg.Engine.Record(cell.ID(id)); err == nil {
		return c, b, r.PathValue("id") == b.cell || r.PathValue("id") == c.Labels[labelAlias]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return c, b, b.status == buildFailed && r.PathValue("id") == b.cell
}

func (f *Front) buildTemplate(w http.ResponseWriter, r *http.Request) {
	var req buildRequest
	if !decode(w, r, &req) {
		return
	}
	c, b, ok := f.buildOf(r)
	if !ok {
		refuse(w, http.StatusNotFound, noBuild)
		return
	}
	if err := f.mayBegin(&req); err != nil {
		fail(w, err)
		return
	}
	for _, s := range req.Steps {
		if t := strings.ToUpper(s.Type); !slices.Contains([]string{"RUN", "ENV", "WORKDIR", "USER", "COPY"}, t) {
			refuse(w, http.StatusBadRequest, "cannot do step "+cell.Clip(s.Type)+": there are RUN, COPY, ENV, WORKDIR and USER")
			return
		}
	}
	if !b.start() {
		refuse(w, http.StatusConflict, "the build was begun already")
		return
	}
	go f.runSteps(context.WithoutCancel(r.Context()), &c, b, &req)
	w.WriteHeader(http.StatusAccepted)
}

// runSteps runs the steps of a template in its cell.
func (f *Front) runSteps(ctx context.Context, c *api.Cell, b *build, req *buildRequest) {
	e := f.cfg.Engine
	var id cell.ID
	var dir string
	err := func() (err error) {
		if id, dir, err = f.buildBase(ctx, c, b, req); err != nil {
			return err
		}
		env := e.LeasedEnv(id)
		for i, s := range req.Steps {
			b.mu.Lock()
			b.step = strconv.Itoa(i + 1)
			b.mu.Unlock()
			b.say("info", strings.ToUpper(s.Type)+" "+strings.Join(s.Args, " "))
			switch strings.ToUpper(s.Type) {
			case "ENV":
				for j := 0; j+1 < len(s.Args); j += 2 {
					env = append(env, s.Args[j]+"="+s.Args[j+1])
				}
			case "WORKDIR":
				was := dir
				if len(s.Args) > 0 {
					if dir = inHome(s.Args[0]); !path.IsAbs(dir) && s.Args[0] != "~" && !strings.HasPrefix(s.Args[0], "~/") {
						dir = path.Join(was, dir) // as in Docker
					}
					if _, err := e.Files(ctx, id, cell.FileAct{Act: cell.FileMkdir, Path: dir}, nil); err != nil && cell.KindOf(err) != cell.Exists {
						return err
					}
				}
			case "USER":
				if len(s.Args) > 0 {
					if err := f.buildUser(s.Args[0]); err != nil {
						return err
					}
				}
			case "COPY":
				if err := f.copyStep(ctx, b, cell.ID(c.ID), id, &s, dir); err != nil {
					return err
				}
			case "RUN":
				if len(s.Args) == 0 {
					continue
				}
				if len(s.Args) > 1 {
					if err := f.buildUser(s.Args[1]); err != nil {
						return err
					}
				}
				if err := f.runStep(ctx, id, s.Args[0], env, dir, b); err != nil {
					return err
				}
			}
		}
		if _, err := e.Lease(ctx, id, api.LeaseRequest{Env: env}); err != nil {
			return err
		}
		if _, err := e.Stop(ctx, id); err != nil { // processes left by steps are not part of it
			return err
		}
		if len(f.cfg.BuildAllow) > 0 { // the network was for the steps: a sandbox has its own
			if err := e.Regovern(ctx, id, "version: 1\n"); err != nil {
				return err
			}
		}
		_, err = e.Checkpoint(ctx, id, api.CheckpointRequest{Message: "template " + c.Labels[labelAlias]})
		return err
	}()
	if err == nil {
		err = f.complete(ctx, c, b, req, id, dir)
	}
	if err == nil { // not before: from now on its client makes sandboxes of it
		b.end(buildReady, "", "info", "the template is ready")
		return
	}
	reason := sentence(err)
	b.end(buildFailed, reason, "error", reason)
	f.discardBuild(ctx, cell.ID(c.ID))
	if id != "" && string(id) != c.ID {
		f.discardBuild(ctx, id)
	}
}

// end records how the build ended, with the last line of its log: a client that sees the end asks for no more lines.
func (b *build) end(status, reason, level, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.reason = status, reason
	b.add(level, message)
}

// complete makes the cell in which the steps of a build ran its template. c is the cell that the
// build began with.
func (f *Front) complete(ctx context.Context, c *api.Cell, b *build, req *buildRequest, id cell.ID, dir string) error {
	labels, replaced := maps.Clone(c.Labels), string(id) != c.ID
	labels[labelBuild] = buildReady
	if dir != "." {
		labels[labelDir] = dir
	}
	if req.StartCmd != "" {
		labels[labelStart], labels[labelReady] = req.StartCmd, req.ReadyCmd
	}
	if replaced {
		labels[labelTID] = c.ID
		if now, err := f.cfg.Engine.Record(cell.ID(c.ID)); err != nil || now.State == string(cell.Removed) {
			return cell.Errorf(cell.Conflict, "e2b.build", "build it again", "cannot complete template %s: it was removed meanwhile", labels[labelAlias])
		}
	}
	if _, err := f.cfg.Engine.Lease(ctx, id, api.LeaseRequest{Labels: labels}); err != nil {
		return err
	}
	now := *c
	now.ID, now.Labels = string(id), labels
	if replaced {
		b.mu.Lock()
		b.moved = now.ID
		b.mu.Unlock()
		f.discardBuild(ctx, cell.ID(c.ID))
	}
	f.supersede(ctx, &now)
	return nil
}

// discardBuild removes a cell that a build no longer needs. The log of a failed build is kept.
func (f *Front) discardBuild(ctx context.Context, id cell.ID) {
	if _, err := f.cfg.Engine.Remove(ctx, id, false); err != nil {
		f.cfg.Log.Warn("cannot remove what a build has left", "cell", id, "error", err)
	}
}

// supersede takes the tags of a new build from earlier ones of its name, and removes those
// without tags that no sandbox needs.
func (f *Front) supersede(ctx context.Context, c *api.Cell) {
	e := f.cfg.Engine
	mine := tagsOf(c)
	for _, id := range e.Labelled(labelBuild) {
		o, err := e.Record(id)
		if err != nil || o.ID == c.ID || o.Labels[labelAlias] != c.Labels[labelAlias] || o.Labels[labelBuild] != buildReady {
			continue
		}
		left := slices.DeleteFunc(tagsOf(&o), func(t string) bool { return slices.Contains(mine, t) })
		if len(left) == 0 {
			if _, err := e.Remove(ctx, id, false); err == nil {
				continue
			}
		}
		if err := f.setTags(ctx, &o, left); err != nil {
			f.cfg.Log.Warn("cannot take a tag from an earlier build", "cell", id, "error", err)
		}
	}
}

// failureLines and failureBytes bound the output of a failed command in its error; the log of
// the build has all of it.
const (
	failureLines = 20
	failureBytes = 4 << 10
)

// whyFailed lists what a step of a build could not reach, and what would allow it.
func (f *Front) whyFailed(ctx context.Context, id cell.ID, command string) string {
	const flag = "pando serve --build-allow HOST|@PRESET"
	if len(f.cfg.BuildAllow) == 0 {
		return "\n(builds have no network here: the operator can allow some, such as @pypi, @npm, @debian and @github, with " + flag + ")"
	}
	x, err := f.cfg.Engine.StartExec(ctx, id, api.ExecRequest{Command: []string{"/bin/sh", "-c", "tail -n 5 " + image.DenialsAt}, Wait: true, Timeout: "10s"})
	if err != nil || x.ExitCode == nil || *x.ExitCode != 0 || len(x.Stdout) == 0 {
		return ""
	}
	return "\nrefused, unless the operator allows more with " + flag + ":\n" + strings.TrimRight(strings.ToValidUTF8(string(x.Stdout), "�"), "\n")
}

// readyLimit bounds the start of a sandbox's start command: it is less than the minute that
// clients wait for an answer.
const readyLimit = 50 * time.Second

// begin runs the start command among the labels of a sandbox's template, and waits until it is ready.
func (f *Front) begin(ctx context.Context, id cell.ID, of map[string]string) error {
	if of[labelStart] == "" {
		return nil
	}
	e := f.cfg.Engine
	req := startRequest{Process: processConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", of[labelStart]}}, Tag: "start"}
	p, _, err := f.start(context.WithoutCancel(ctx), id, &req, api.ExecRequest{Command: append([]string{req.Process.Cmd}, req.Process.Args...), Workdir: of[labelDir], Attach: true})
	if err != nil {
		return err
	}
	p.mu.Lock()
	clear(p.subs) // its output has no reader
	p.mu.Unlock()
	ready := of[labelReady]
	for began := time.Now(); ready != ""; {
		x, err := e.StartExec(ctx, id, api.ExecRequest{Command: []string{"/bin/bash", "-l", "-c", ready}, Workdir: of[labelDir], Wait: true, Timeout: max(readyLimit-time.Since(began), time.Second).String()})
		if err != nil {
			return err
		}
		if x.ExitCode != nil && *x.ExitCode == 0 {
			return nil
		}
		if time.Since(began) > readyLimit {
			return cell.Errorf(cell.Timeout, "e2b.begin", "look at the template's start and ready commands", "cannot start a sandbox of %s: it was not ready after %s", of[labelAlias], readyLimit)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (f *Front) buildStatus(w http.ResponseWriter, r *http.Request) {
	_, b, ok := f.buildOf(r)
	if !ok {
		refuse(w, http.StatusNotFound, noBuild)
		return
	}
	q, err := logQueryOf(w, r, "logsOffset", "limit", "level")
	if err != nil {
		fail(w, err)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("logsOffset"))
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines[min(max(from, 0), len(b.lines)):]
	picked := []buildLine{}
	for _, i := range q.of(len(lines), func(i int) (time.Time, string, string) { return lines[i].Timestamp, lines[i].Level, lines[i].Message }) {
		picked = append(picked, lines[i])
	}
	v := map[string]any{"templateID": b.cell, "buildID": b.id, "status": b.status, "logEntries": picked, "logs": []string{}}
	if b.reason != "" {
		v["reason"] = map[string]any{"message": b.reason, "step": b.step}
	}
	answer(w, http.StatusOK, v)
}
