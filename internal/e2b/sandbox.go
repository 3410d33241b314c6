package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Labels of sandboxes that are not the user's.
const (
	ownLabels     = "e2b:"
	labelTemplate = "e2b:template" // the requested template
	labelAlias    = "e2b:alias"    // its name
	labelAuto     = "e2b:auto"     // requests to its ports resume it when it is paused
	labelPrivate  = "e2b:private"  // its ports need a token
	labelNetwork  = "e2b:network"  // as requested
	labelInternet = "e2b:internet" // likewise
)

// metaBackend is the metadata key that chooses the backend of a sandbox of the base.
const metaBackend = "pando:backend"

// isolating are its values: the backends with an isolation.
var isolating = []string{"namespace", "gvisor", "microvm"}

// home is the home directory that programs expect in a sandbox.
const home = "/home/user"

// Default lifetimes, in seconds, of both generations of the protocol.
const (
	lifeV1 = 15
	lifeV2 = 300
)

type createRequest struct {
	TemplateID      string            `json:"templateID"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	Timeout         *int64            `json:"timeout"` // seconds
	AllowInternet   *bool             `json:"allow_internet_access"`
	Network         *network          `json:"network"`
	AutoPause       *bool             `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *autoResume       `json:"autoResume"`
	Secure          *bool             `json:"secure"` // always on
	MCP             json.RawMessage   `json:"mcp"`
	IAM             json.RawMessage   `json:"iam"`
	VolumeMounts    json.RawMessage   `json:"volumeMounts"`
}

// refused returns the first required option that is not supported.
func (req *createRequest) refused() error {
	for _, x := range []struct {
		name string
		raw  json.RawMessage
	}{{"mcp", req.MCP}, {"iam", req.IAM}, {"volumeMounts", req.VolumeMounts}} {
		if isSet(x.raw) {
			return cell.Errorf(cell.Unsupported, "e2b.create", "leave "+x.name+" out of the request", "cannot make a sandbox with %s: pando does not have this option of E2B", x.name)
		}
	}
	return nil
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

// sandboxView is a sandbox in the answer that makes it.
type sandboxView struct {
	SandboxID    string `json:"sandboxID"`
	TemplateID   string `json:"templateID"`
	Alias        string `json:"alias,omitempty"`
	ClientID     string `json:"clientID"`
	EnvdVersion  string `json:"envdVersion"`
	EnvdToken    string `json:"envdAccessToken,omitempty"`
	TrafficToken string `json:"trafficAccessToken,omitempty"`
	Domain       string `json:"domain,omitempty"`
}

// listedView is a sandbox in a list.
type listedView struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	Alias        string            `json:"alias,omitempty"`
	ClientID     string            `json:"clientID"`
	EnvdVersion  string            `json:"envdVersion"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	State        string            `json:"state"` // running, paused
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	VolumeMounts []any             `json:"volumeMounts"`
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"` // kill, pause
	AutoResume bool   `json:"autoResume"`
}

// detailView is a sandbox with all details.
type detailView struct {
	listedView
	EnvdToken     string    `json:"envdAccessToken,omitempty"`
	Domain        string    `json:"domain,omitempty"`
	Network       *network  `json:"network,omitempty"`
	Lifecycle     lifecycle `json:"lifecycle"`
	AllowInternet *bool     `json:"allowInternetAccess"`
}

// find returns the cell of a sandbox.
func (f *Front) find(id cell.ID) (api.Cell, error) {
	if !isSandboxID(string(id)) {
		return api.Cell{}, cell.Errorf(cell.NotFound, "e2b", "", "sandbox %q not found", cell.Clip(string(id)))
	}
	c, err := f.cfg.Engine.Record(id)
	if err != nil || c.State == string(cell.Removed) || c.State == string(cell.Creating) || c.Template != "" {
		return c, cell.Errorf(cell.NotFound, "e2b", "", "sandbox %s not found", id)
	}
	return c, f.cfg.Engine.Enter(id)
}

// paused reports whether a sandbox must first be resumed.
func paused(c *api.Cell) bool {
	return c.State == string(cell.Paused) || c.Lease != nil && c.Lease.Paused
}

// stateOf is the E2B state of a cell.
func stateOf(c *api.Cell) string {
	if paused(c) {
		return "paused"
	}
	return "running"
}

// domain is the domain of the addresses of sandboxes' ports: the one that the caller used.
func domain(r *http.Request) string {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = r.Host, ""
	}
	if ip := net.ParseIP(strings.Trim(host, "[]")); ip != nil {
		host = "localhost"
	}
	if port == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}

func (f *Front) view(r *http.Request, c *api.Cell) sandboxView {
	id := cell.ID(c.ID)
	return sandboxView{SandboxID: c.ID, TemplateID: cmp.Or(c.Labels[labelTemplate], templateBase), Alias: c.Labels[labelAlias], ClientID: "pando", EnvdVersion: envdVersion,
		EnvdToken: f.token(id, useEnvd), TrafficToken: f.token(id, useTraffic), Domain: domain(r)}
}

func (f *Front) listed(c *api.Cell) listedView {
	v := listedView{SandboxID: c.ID, TemplateID: cmp.Or(c.Labels[labelTemplate], templateBase), Alias: c.Labels[labelAlias], ClientID: "pando", EnvdVersion: envdVersion,
		StartedAt: c.Created, EndAt: forever, State: stateOf(c), CPUCount: runtime.NumCPU(), Metadata: metadataOf(c), VolumeMounts: []any{}}
	if c.Lease != nil && !c.Lease.Until.IsZero() {
		v.EndAt = c.Lease.Until
	}
	s := f.cfg.Engine.Limits(cell.ID(c.ID))
	v.MemoryMB = s.Memory >> 20
	if s.CPUs >= 1 {
		v.CPUCount = int(s.CPUs)
	}
	total, _ := f.disk()
	v.DiskSizeMB = total >> 20
	if s.Disk > 0 {
		v.DiskSizeMB = s.Disk >> 20
	}
	return v
}

// forever is the end of a sandbox without a lease.
var forever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// disk returns the size and the usage of the cells' file system, in bytes.
func (f *Front) disk() (total, used int64) {
	var st unix.Statfs_t
	if unix.Statfs(cmp.Or(f.cfg.Disk, os.TempDir()), &st) != nil {
		return 0, 0
	}
	total = int64(st.Blocks) * st.Bsize
	return total, total - int64(st.Bavail)*st.Bsize
}

// metadataOf returns the user's labels of a sandbox.
func metadataOf(c *api.Cell) map[string]string {
	out := map[string]string{}
	for k, v := range c.Labels {
		if !strings.HasPrefix(k, ownLabels) {
			out[k] = v
		}
	}
	return out
}

func (f *Front) controlRoutes() *http.ServeMux {
	m := http.NewServeMux()
	for _, v := range []string{"", "/v2"} {
		life := int64(lifeV1)
		if v != "" {
			life = lifeV2
		}
		m.HandleFunc("POST "+v+"/sandboxes", func(w http.ResponseWriter, r *http.Request) { f.create(w, r, life) })
		m.HandleFunc("GET "+v+"/sandboxes", f.list)
		m.HandleFunc("POST "+v+"/sandboxes/{id}/connect", f.with(f.connect))
	}
	m.HandleFunc("GET /sandboxes/{id}/logs", f.with(f.logs))
	m.HandleFunc("GET /v2/sandboxes/{id}/logs", f.with(f.logsV2))
	m.HandleFunc("POST /sandboxes/{id}/resume", f.with(f.connect))
	m.HandleFunc("GET /sandboxes/{id}", f.with(f.info))
	m.HandleFunc("DELETE /sandboxes/{id}", f.with(f.kill))
	m.HandleFunc("POST /sandboxes/{id}/timeout", f.with(f.setTimeout))
	m.HandleFunc("POST /sandboxes/{id}/refreshes", f.with(f.refresh))
	m.HandleFunc("POST /sandboxes/{id}/pause", f.with(f.pause))
	m.HandleFunc("POST /sandboxes/{id}/fork", f.with(f.fork))
	m.HandleFunc("POST /sandboxes/{id}/snapshots", f.with(f.snapshot))
	m.HandleFunc("GET /snapshots", f.snapshots)
	m.HandleFunc("PUT /sandboxes/{id}/network", f.with(f.setNetwork))
	m.HandleFunc("GET /sandboxes/{id}/metrics", f.with(f.metrics))
	m.HandleFunc("GET /sandboxes/metrics", f.allMetrics)
	f.templateRoutes(m)
	for _, what := range []string{"/sandboxes", "/v2/sandboxes", "/templates", "/v2/templates", "/v3/templates", "/snapshots"} {
		for _, p := range []string{what, what + "/"} {
			m.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) {
				refuse(w, http.StatusNotImplemented, "cannot do this: pando has no "+r.Method+" "+cell.Clip(r.URL.Path)+" for E2B clients")
			})
		}
	}
	for _, what := range []string{"/volumes", "/volumes/", "/volumecontent/", "/secrets", "/secrets/", "/teams", "/teams/"} {
		m.HandleFunc(what, func(w http.ResponseWriter, r *http.Request) {
			refuse(w, http.StatusNotImplemented, "cannot do this: pando has no "+strings.Trim(what, "/")+" for E2B clients")
		})
	}
	return m
}

// with finds the sandbox of a request's path.
func (f *Front) with(h func(http.ResponseWriter, *http.Request, *api.Cell)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := f.find(cell.ID(r.PathValue("id")))
		if err != nil {
			fail(w, err)
			return
		}
		h(w, r, &c)
	}
}

// failOf answers with an error about a sandbox. A removed sandbox is reported in the form that
// clients recognise, whatever failed.
func (f *Front) failOf(w http.ResponseWriter, c *api.Cell, err error) {
	if gone := f.lost(cell.ID(c.ID)); gone != nil {
		err = gone
	}
	fail(w, err)
}

// lost returns the error for a sandbox that is missing or is being killed; nil if it exists.
func (f *Front) lost(id cell.ID) error {
	b := f.box(id)
	b.mu.Lock()
	going := b.gone
	b.mu.Unlock()
	if going {
		return cell.Errorf(cell.NotFound, "e2b", "", "sandbox %s not found", id)
	}
	_, err := f.find(id)
	return err
}

func (f *Front) create(w http.ResponseWriter, r *http.Request, life int64) {
	var req createRequest
	if !decode(w, r, &req) {
		return
	}
	if life == lifeV1 { // clients of that generation always send their defaults
		if req.AutoPause != nil && !*req.AutoPause {
			req.AutoPause = nil
			ignore(w, "autoPause")
		}
		if req.AllowInternet != nil && *req.AllowInternet {
			req.AllowInternet = nil
			ignore(w, "allow_internet_access")
		}
	}
	if req.Timeout != nil {
		life = *req.Timeout
	}
	labels, err := labelsOf(&req)
	if err == nil {
		err = req.refused()
	}
	if err != nil {
		fail(w, err)
		return
	}
	lease := api.LeaseRequest{For: seconds(life), Then: api.LeasePause}
	switch {
	case req.AutoPause != nil && !*req.AutoPause:
		lease.Then = api.LeaseRemove
	case req.AutoPauseMemory != nil && !*req.AutoPauseMemory:
		lease.Then = api.LeaseStop
	}
	c, err := f.make(r.Context(), &req, labels, lease)
	if err != nil {
		fail(w, err)
		return
	}
	f.note(cell.ID(c.ID), "info", "sandbox created from "+c.Labels[labelTemplate])
	answer(w, http.StatusCreated, f.view(r, &c))
}

// seconds is a lifetime for the engine. 0 ends at once.
func seconds(n int64) string {
	if n <= 0 {
		return "1ms"
	}
	return strconv.FormatInt(min(n, 100*365*24*3600), 10) + "s"
}

// labelsOf returns the labels of a new sandbox.
func labelsOf(req *createRequest) (map[string]string, error) {
	labels := map[string]string{}
	for k, v := range req.Metadata {
		if strings.HasPrefix(k, ownLabels) {
			return nil, cell.Errorf(cell.Invalid, "e2b.create", "choose another key", "cannot set metadata %s: pando uses such keys itself", cell.Clip(k))
		}
		if strings.HasPrefix(k, "pando:") && (k != metaBackend || !slices.Contains(isolating, v)) {
			return nil, cell.Errorf(cell.Invalid, "e2b.create", "set "+metaBackend+" to one of "+strings.Join(isolating, ", ")+", or choose a key that does not begin with pando:", "cannot set metadata %s to %s: it is not an option of pando's", cell.Clip(k), cell.Clip(v))
		}
		labels[k] = v
	}
	labels[labelTemplate] = cmp.Or(req.TemplateID, templateBase)
	if req.AutoResume != nil && req.AutoResume.Enabled {
		labels[labelAuto] = "on"
	}
	return labels, req.Network.label(labels, req.AllowInternet)
}

func (f *Front) info(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	v := detailView{listedView: f.listed(c), EnvdToken: f.token(cell.ID(c.ID), useEnvd), Domain: domain(r),
		Lifecycle: lifecycle{OnTimeout: "pause", AutoResume: c.Labels[labelAuto] != ""}}
	if c.Lease != nil && c.Lease.Then == api.LeaseRemove {
		v.Lifecycle.OnTimeout = "kill"
	}
	v.Network, v.AllowInternet = networkIn(c.Labels)
	answer(w, http.StatusOK, v)
}

func (f *Front) kill(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	id := cell.ID(c.ID)
	going := func(is bool) {
		b := f.box(id)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gone = is
	}
	going(true)
	if _, err := f.cfg.Engine.Remove(r.Context(), id, false); err != nil {
		going(false)
		f.failOf(w, c, err)
		return
	}
	f.forget(id)
	if strings.Contains(c.Labels[labelNetwork], masked) {
		f.unlend(context.WithoutCancel(r.Context()))
	}
	w.WriteHeader(http.StatusNoContent)
}

type timeoutRequest struct {
	Timeout int64 `json:"timeout"`
}

func (f *Front) setTimeout(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var req timeoutRequest
	if !decode(w, r, &req) {
		return
	}
	if _, err := f.cfg.Engine.Lease(r.Context(), cell.ID(c.ID), api.LeaseRequest{For: seconds(req.Timeout)}); err != nil {
		f.failOf(w, c, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

type refreshRequest struct {
	Duration int64 `json:"duration"`
}

func (f *Front) refresh(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var req refreshRequest
	if !decode(w, r, &req) {
		return
	}
	if _, err := f.cfg.Engine.Lease(r.Context(), cell.ID(c.ID), api.LeaseRequest{For: seconds(cmp.Or(req.Duration, lifeV1)), Extend: true}); err != nil {
		f.failOf(w, c, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

type pauseRequest struct {
	Memory *bool `json:"memory"`
}

func (f *Front) pause(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var req pauseRequest
	if !decode(w, r, &req) {
		return
	}
	id := cell.ID(c.ID)
	if paused(c) {
		refuse(w, http.StatusConflict, "sandbox "+c.ID+" is paused already")
		return
	}
	if req.Memory != nil && !*req.Memory {
		if _, err := f.cfg.Engine.Stop(r.Context(), id); err != nil {
			f.failOf(w, c, err)
			return
		}
	}
	did, err := f.cfg.Engine.Park(r.Context(), id)
	switch {
	case err != nil:
		f.failOf(w, c, err)
	case !did:
		refuse(w, http.StatusConflict, "sandbox "+c.ID+" is paused already")
	default:
		f.note(id, "info", "sandbox paused")
		w.WriteHeader(http.StatusNoContent)
	}
}

type connectRequest struct {
	Timeout   *int64 `json:"timeout"`
	Memory    *bool  `json:"memory"`    // false: start without its memory
	AutoPause *bool  `json:"autoPause"` // of older clients
}

func (f *Front) connect(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	var req connectRequest
	if !decode(w, r, &req) {
		return
	}
	was, err := f.goOn(r.Context(), c, &req)
	if err != nil {
		f.failOf(w, c, err)
		return
	}
	status := http.StatusOK
	if was {
		status = http.StatusCreated
		f.note(cell.ID(c.ID), "info", "sandbox resumed")
	}
	answer(w, status, f.view(r, c))
}

// goOn resumes a sandbox if it is paused, and extends its lifetime. It reports whether it was
// paused.
func (f *Front) goOn(ctx context.Context, c *api.Cell, req *connectRequest) (was bool, err error) {
	id := cell.ID(c.ID)
	lease := api.LeaseRequest{For: seconds(lifeV2), Extend: !paused(c)}
	if req != nil {
		if req.Timeout != nil {
			lease.For = seconds(*req.Timeout)
		}
		if req.AutoPause != nil && ours(c) {
			lease.Then = api.LeasePause
			if !*req.AutoPause {
				lease.Then = api.LeaseRemove
			}
		}
		if req.Memory != nil && !*req.Memory && paused(c) {
			if _, err := f.cfg.Engine.Stop(ctx, id); err != nil {
				return false, err
			}
		}
	}
	// Before it is resumed: its lifetime may have ended.
	now, err := f.cfg.Engine.Lease(ctx, id, lease)
	if err != nil {
		return false, err
	}
	if was, err = f.cfg.Engine.Unpark(ctx, id); err == nil {
		*c = now
		if v, verr := f.find(id); verr == nil {
			*c = v
		}
	}
	return was, err
}

// list lists sandboxes, newest first.
func (f *Front) list(w http.ResponseWriter, r *http.Request) {
	known(w, r, "metadata", "state", "startedAfter", "template", "order", "limit", "nextToken")
	q := r.URL.Query()
	want, err := url.ParseQuery(q.Get("metadata"))
	if err != nil {
		refuse(w, http.StatusBadRequest, "cannot read metadata: "+err.Error())
		return
	}
	var after time.Time
	if s := q.Get("startedAfter"); s != "" {
		if after, err = time.Parse(time.RFC3339, s); err != nil {
			refuse(w, http.StatusBadRequest, "cannot read startedAfter: "+err.Error())
			return
		}
	}
	limit, ok := limitOf(w, r)
	if !ok {
		return
	}
	find := state.Query{Label: labelTemplate, Limit: limit, After: q.Get("nextToken"), Since: after, Oldest: q.Get("order") == "asc", States: []string{state.QueryRunning, state.QueryPaused}}
	if states := strings.FieldsFunc(strings.Join(q["state"], ","), func(r rune) bool { return r == ',' }); len(states) > 0 {
		find.States = states
	}
	var list []api.Cell
	var next string
	if find.Labels, ok = labelsAsked(want, q.Get("template")); ok {
		if list, next, err = f.cfg.Engine.Records(find); err != nil {
			fail(w, err)
			return
		}
	}
	out := []listedView{}
	for _, c := range list {
		out = append(out, f.listed(&c))
	}
	w.Header().Set("x-total-running", strconv.Itoa(f.cfg.Engine.Running(labelTemplate)))
	if next != "" {
		w.Header().Set("x-next-token", next)
	}
	answer(w, http.StatusOK, out)
}

// labelsAsked returns the labels of a query by metadata, which clients encode twice, and by
// template. ok is false when no sandbox can match.
func labelsAsked(want url.Values, template string) (labels map[string]string, ok bool) {
	labels = map[string]string{}
	if template != "" {
		labels[labelTemplate] = template
	}
	for k, vs := range want {
		if key, err := url.QueryUnescape(k); err == nil {
			k = key
		}
		for _, v := range vs {
			if val, err := url.QueryUnescape(v); err == nil {
				v = val
			}
			if got, ok := labels[k]; ok && got != v {
				return nil, false
			}
			labels[k] = v
		}
	}
	return labels, true
}

// maxPage bounds the items of a page.
const maxPage = 1000

// limitOf parses the size of a page; it answers and returns false for an invalid one.
func limitOf(w http.ResponseWriter, r *http.Request) (int, bool) {
	s := r.URL.Query().Get("limit")
	if s == "" {
		return maxPage, true
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		refuse(w, http.StatusBadRequest, "cannot list "+cell.Clip(s)+" at once: limit is a number from 1 on")
		return 0, false
	}
	return min(n, maxPage), true
}

// page answers with the items after the one that nextToken names.
func page[T any](w http.ResponseWriter, r *http.Request, all []T, key func(T) string) {
	q := r.URL.Query()
	limit, ok := limitOf(w, r)
	if !ok {
		return
	}
	if from := q.Get("nextToken"); from != "" {
		i := slices.IndexFunc(all, func(v T) bool { return key(v) == from })
		if i < 0 {
			refuse(w, http.StatusBadRequest, "cannot continue after "+cell.Clip(from)+": it was removed; list from the beginning")
			return
		}
		all = all[i+1:]
	}
	if len(all) > limit {
		all = all[:limit]
		w.Header().Set("x-next-token", key(all[limit-1]))
	}
	if all == nil {
		all = []T{}
	}
	answer(w, http.StatusOK, all)
}
