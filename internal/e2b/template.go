package e2b

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// A template that is built by steps is a cell in which they were run. A sandbox of
// it is a fork of its files; its start command runs in each.

// Labels of such cells.
const (
	labelBuild = "e2b:build" // building, ready, or error: why
	labelStart = "e2b:start" // the command that begins in each sandbox
	labelReady = "e2b:ready" // the command that tells when that is ready
	labelBID   = "e2b:build-id"
)

const (
	buildWaiting = "waiting"
	buildRunning = "building"
	buildReady   = "ready"
	buildFailed  = "error"
)

// build is a template on its way, or that was built by this daemon.
type build struct {
	id string

	mu     sync.Mutex // guards what follows
	status string
	reason string
	step   string
	lines  []buildLine
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
	b.lines = append(b.lines, buildLine{time.Now().UTC(), level, message, b.step})
}

func (f *Front) templateRoutes(m *http.ServeMux) {
	m.HandleFunc("GET /templates", f.listTemplates)
	m.HandleFunc("POST /v3/templates", f.beginTemplate)
	m.HandleFunc("POST /v2/templates/{id}/builds/{build}", f.buildTemplate)
	m.HandleFunc("DELETE /templates/{id...}", f.removeTemplate)
	m.HandleFunc("GET /templates/{rest...}", f.lookAtTemplate)
	for _, p := range []string{"POST /templates/tags", "DELETE /templates/tags", "POST /templates", "POST /v2/templates"} {
		m.HandleFunc(p, untaken)
	}
}

// untaken refuses what is not done with templates.
func untaken(w http.ResponseWriter, _ *http.Request) {
	refuse(w, http.StatusNotImplemented, "cannot do this with templates: tags and copied files are not taken; write files into a sandbox and make a snapshot of it")
}

// lookAtTemplate answers what is asked about templates: aliases/NAME, and
// ID/builds/BUILD/status and logs. (These patterns would be ambiguous to a mux.)
func (f *Front) lookAtTemplate(w http.ResponseWriter, r *http.Request) {
	rest := r.PathValue("rest")
	if name, ok := strings.CutPrefix(rest, "aliases/"); ok {
		f.aliasOf(w, name)
		return
	}
	if p := strings.Split(rest, "/"); len(p) == 4 && p[1] == "builds" {
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
		if err != nil {
			continue
		}
		l := f.listed(&c)
		out = append(out, templateView{TemplateID: c.ID, BuildID: c.Labels[labelBID], BuildStatus: c.Labels[labelBuild], Aliases: []string{c.Labels[labelAlias]}, Names: []string{c.Labels[labelAlias]},
			CPUCount: l.CPUCount, MemoryMB: l.MemoryMB, DiskSizeMB: l.DiskSizeMB, EnvdVersion: envdVersion, CreatedAt: c.Created, UpdatedAt: c.Created, BuildCount: 1})
	}
	answer(w, http.StatusOK, out)
}

// built finds a template that was built by steps, by its id or its name.
func (f *Front) built(name string) (found api.Cell, ok bool) {
	for _, id := range f.cfg.Engine.Labelled(labelBuild) {
		c, err := f.cfg.Engine.Record(id)
		if err == nil && (c.ID == name || c.Labels[labelAlias] == name && (!ok || c.Created.After(found.Created))) {
			found, ok = c, true
		}
	}
	return found, ok
}

// aliasOf tells which template a name stands for.
func (f *Front) aliasOf(w http.ResponseWriter, name string) {
	id := name
	_, err := f.cfg.Engine.Template(name)
	if err != nil && !slices.Contains(baseTemplates, name) {
		c, ok := f.built(name)
		if !ok {
			refuse(w, http.StatusNotFound, "template '"+clip(name)+"' not found")
			return
		}
		id = c.ID
	}
	answer(w, http.StatusOK, map[string]any{"templateID": id, "public": false})
}

// removeTemplate removes a snapshot, or a template that was built by steps.
func (f *Front) removeTemplate(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("id")
	var err error
	switch k, ok := f.snapshotNamed(name); {
	case ok && strings.HasPrefix(k.Message, snapshotMark):
		err = f.cfg.Engine.RemoveCheckpoint(r.Context(), cell.ID(k.Cell), k.Number)
	default:
		c, ok := f.built(name)
		if !ok {
			if _, terr := f.cfg.Engine.Template(name); terr == nil {
				refuse(w, http.StatusForbidden, "cannot remove template "+clip(name)+" from here: pando template rm "+clip(name))
				return
			}
			refuse(w, http.StatusNotFound, "template '"+clip(name)+"' not found")
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

// beginTemplate makes the cell in which the steps of a template will run.
func (f *Front) beginTemplate(w http.ResponseWriter, r *http.Request) {
	var req templateRequest
	if !decode(w, r, &req) {
		return
	}
	name := cmp.Or(req.Name, req.Alias)
	switch _, err := f.cfg.Engine.Template(name); {
	case name == "":
		refuse(w, http.StatusBadRequest, "cannot build a template without a name")
		return
	case err == nil || slices.Contains(baseTemplates, name):
		refuse(w, http.StatusConflict, "cannot build template "+clip(name)+": there is one of that name that was not built from here")
		return
	}
	if len(req.Tags) > 0 {
		ignore(w, "tags")
	}
	place := f.cfg.Engine.HomePlace(home)
	create := api.CreateRequest{Place: place, Env: []string{"HOME=" + place}, CallerEnv: []string{"PATH=" + f.cfg.Path}}
	if req.CPUCount > 0 {
		create.Limits.CPUs = strconv.Itoa(req.CPUCount)
	}
	if req.MemoryMB > 0 {
		create.Limits.Memory = strconv.FormatInt(req.MemoryMB, 10) + "M"
	}
	b := &build{id: "b-" + strconv.FormatInt(time.Now().UnixNano(), 36), status: buildWaiting}
	create.Labels = map[string]string{labelBuild: buildWaiting, labelAlias: name, labelBID: b.id}
	c, err := f.cfg.Engine.Create(r.Context(), create)
	if err != nil {
		fail(w, err)
		return
	}
	f.mu.Lock()
	f.builds[b.id] = b
	f.mu.Unlock()
	answer(w, http.StatusAccepted, map[string]any{"templateID": c.ID, "buildID": b.id, "names": []string{name}, "aliases": []string{name}, "tags": []string{}, "public": false})
}

type buildRequest struct {
	FromImage    string      `json:"fromImage"`
	FromTemplate string      `json:"fromTemplate"`
	Steps        []buildStep `json:"steps"`
	StartCmd     string      `json:"startCmd"`
	ReadyCmd     string      `json:"readyCmd"`
	Force        bool        `json:"force"` // nothing is kept of earlier builds
}

type buildStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Files string   `json:"filesHash"`
	Force bool     `json:"force"`
}

const noBuild = "no such build, or it was begun before this daemon"

func (f *Front) buildOf(r *http.Request) (api.Cell, *build, bool) {
	c, ok := f.built(r.PathValue("id"))
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.builds[r.PathValue("build")]
	return c, b, ok && b != nil && c.Labels[labelBID] == b.id
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
	if req.FromTemplate != "" && !slices.Contains(baseTemplates, req.FromTemplate) {
		refuse(w, http.StatusBadRequest, "cannot build from template "+clip(req.FromTemplate)+": only from base")
		return
	}
	if req.FromImage != "" && req.FromImage != "e2bdev/base" && req.FromImage != "e2bdev/base:latest" {
		refuse(w, http.StatusBadRequest, "cannot build from image "+clip(req.FromImage)+": pando image pull it, and build a pando template of it: pando template build NAME --image")
		return
	}
	for _, s := range req.Steps {
		if t := strings.ToUpper(s.Type); !slices.Contains([]string{"RUN", "ENV", "WORKDIR", "USER"}, t) {
			refuse(w, http.StatusBadRequest, "cannot do step "+clip(s.Type)+": there are RUN, ENV, WORKDIR and USER")
			return
		}
	}
	b.mu.Lock()
	waiting := b.status == buildWaiting
	b.status = buildRunning
	b.mu.Unlock()
	if !waiting {
		refuse(w, http.StatusConflict, "the build was begun already")
		return
	}
	go f.runSteps(context.WithoutCancel(r.Context()), &c, b, &req)
	w.WriteHeader(http.StatusAccepted)
}

// runSteps runs the steps of a template in its cell.
func (f *Front) runSteps(ctx context.Context, c *api.Cell, b *build, req *buildRequest) {
	id, labels, e := cell.ID(c.ID), c.Labels, f.cfg.Engine
	err := func() error {
		env, dir := e.LeasedEnv(id), "."
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
				if len(s.Args) > 0 {
					dir = inHome(s.Args[0])
					if _, err := e.Files(ctx, id, cell.FileAct{Act: cell.FileMkdir, Path: dir}, nil); err != nil && cell.KindOf(err) != cell.Exists {
						return err
					}
				}
			case "USER":
				if own := e.User(); len(s.Args) > 0 && s.Args[0] != "user" && s.Args[0] != own.Name {
					return cell.Errorf(cell.Unsupported, "e2b.build", "leave it out", "cannot work as %q: the cell's only user is %s", clip(s.Args[0]), own.Name)
				}
			case "RUN":
				if len(s.Args) == 0 {
					continue
				}
				if err := f.runStep(ctx, id, s.Args[0], env, dir, b); err != nil {
					return err
				}
			}
		}
		if _, err := e.Lease(ctx, id, api.LeaseRequest{Env: env}); err != nil {
			return err
		}
		if _, err := e.Stop(ctx, id); err != nil { // what steps left running is no part of it
			return err
		}
		_, err := e.Checkpoint(ctx, id, api.CheckpointRequest{Message: "template " + labels[labelAlias]})
		return err
	}()
	b.mu.Lock()
	b.status = buildReady
	if err != nil {
		b.status, b.reason = buildFailed, sentence(err)
	}
	status := b.status
	b.mu.Unlock()
	b.say(map[bool]string{true: "info", false: "error"}[err == nil], map[bool]string{true: "the template is ready", false: b.reason}[err == nil])
	labels[labelBuild] = status
	if req.StartCmd != "" {
		labels[labelStart], labels[labelReady] = req.StartCmd, req.ReadyCmd
	}
	if _, err := e.Lease(ctx, id, api.LeaseRequest{Labels: labels}); err != nil {
		f.cfg.Log.Warn("cannot note what became of a template", "cell", id, "error", err)
	}
}

func (f *Front) runStep(ctx context.Context, id cell.ID, command string, env []string, dir string, b *build) error {
	x, err := f.cfg.Engine.StartExec(ctx, id, api.ExecRequest{Command: []string{"/bin/bash", "-l", "-c", command}, Env: env, Workdir: dir, Wait: true})
	if err != nil {
		return err
	}
	for _, out := range [][]byte{x.Stdout, x.Stderr} {
		for line := range strings.Lines(strings.ToValidUTF8(string(out), "�")) {
			b.say("info", strings.TrimRight(line, "\n"))
		}
	}
	if x.ExitCode == nil || *x.ExitCode != 0 {
		return cell.Errorf(cell.Invalid, "e2b.build", "", "the command %q failed: %s", clip(command), endOf(x, nil).Status)
	}
	return nil
}

// readyLimit is how long what begins in a sandbox may take to be ready.
const readyLimit = time.Minute

// begin starts what its template says begins in a sandbox, and waits until it is
// ready.
func (f *Front) begin(ctx context.Context, id cell.ID) error {
	c, err := f.find(id)
	if err != nil || c.Labels[labelTemplate] == "" {
		return err
	}
	t, ok := f.built(c.Labels[labelTemplate])
	if !ok || t.Labels[labelStart] == "" {
		return nil
	}
	e := f.cfg.Engine
	req := startRequest{Process: processConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", t.Labels[labelStart]}}, Tag: "start"}
	p, _, err := f.start(context.WithoutCancel(ctx), id, &req, api.ExecRequest{Command: append([]string{req.Process.Cmd}, req.Process.Args...), Attach: true})
	if err != nil {
		return err
	}
	p.mu.Lock()
	clear(p.subs) // nobody reads what it prints
	p.mu.Unlock()
	ready := t.Labels[labelReady]
	for began := time.Now(); ready != ""; {
		x, err := e.StartExec(ctx, id, api.ExecRequest{Command: []string{"/bin/bash", "-l", "-c", ready}, Wait: true, Timeout: "10s"})
		if err != nil {
			return err
		}
		if x.ExitCode != nil && *x.ExitCode == 0 {
			return nil
		}
		if time.Since(began) > readyLimit {
			return cell.Errorf(cell.Timeout, "e2b.begin", "look at the template's start and ready commands", "cannot start a sandbox of %s: it was not ready after %s", t.Labels[labelAlias], readyLimit)
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
	c, b, ok := f.buildOf(r)
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
	v := map[string]any{"templateID": c.ID, "buildID": b.id, "status": b.status, "logEntries": picked, "logs": []string{}}
	if b.reason != "" {
		v["reason"] = map[string]any{"message": b.reason, "step": b.step}
	}
	answer(w, http.StatusOK, v)
}
