// Package engine wires the managers, and holds the use cases that are in none yet: what a run needs
// before its command, create, checkpoint, remove, and what callers see. It imports a source
// through workspace, asks image what a cell sees, and lets a backend run the command. It decides;
// the daemon translates, the CLI words.
//
// The path of a run:
//
//	StartRun (run.go) ─ prepare: import, cell, checkpoint before (prepare.go)
//	                  ─ execute: mounts, backend, process      (execute.go)
//	                  ─ finish: freeze, digests, verdict, receipt (packages run and result)
//
// Lock order: 1. the lock of a cell (state.CellLocks), 2. Engine.mu and run.Manager.mu, 3. registry.mu,
// 4. gc.Pins.mu. What is alive and what is removed have their own order below the first: see
// packages live, gc and spawn.
package engine

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cache"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/service"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/step"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what an Engine is made of. cmd names the concrete parts.
type Config struct {
	Home        paths.Home
	Log         *slog.Logger
	Backends    []backend.Backend            // the first is the default
	Providers   []workspace.Provider         // best first; each with why it can't be used here
	WhyNot      func(provider string) string // why it can't be used now; "", or nil: it can
	Objects     store.Store
	Parser      *parse.Parser // of what is too large to be parsed here
	Ledger      *receipt.Ledger
	Credentials *credential.Store
	Version     string
	User        cell.User // the owner of cells
	Path        string    // the user's PATH: where git is, which merges files
	Host        policy.Host
	HostPolicy  string        // the policy file of the host; "" for none
	Resolvers   []string      // DNS servers that gateways ask, "address:port"; none: the host's
	Proxy       *cell.Proxy   // the host's way out; nil: gateways dial by themselves
	Roots       string        // certificates (PEM) that gateways trust besides the host's
	Ceilings    *ceiling.Set  // what callers may have; nil: whatever they ask for
	MaxCells    int           // how many cells there may be; 0: DefaultCells
	MaxState    int64         // bytes that the state may hold before the oldest of what is no longer needed is removed; 0: a tenth of its file system
	MinFree     int64         // bytes of the state's file system below which nothing new is made; 0: gc.DefaultFree
	AttachGrace time.Duration // how long a command waits for the client that said it would attach; 0: DefaultAttachGrace
	ReachGrace  time.Duration // how long a keeper may take to answer a daemon that has no connection to it; 0: 5 s
	Agents      agent.Set     // coding agents that runs can start
	Pool        *int          // how many forks are made ahead at most, of all templates; nil: as many as pay
}

// Engine runs the use cases. It is safe for concurrent use.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	reg      *state.Registry
	locks    state.CellLocks
	alive    *live.Manager
	trees    *treeCache
	figures  *figures
	pins     *gc.Pins // stand before the objects
	gc       *gc.Manager
	caches   *cache.Manager
	spawn    *spawn.Manager
	services *service.Manager
	sources  *sources
	life     context.Context // ends with Close; work that outlives requests obeys it
	end      context.CancelCauseFunc
	work     sync.WaitGroup
	watching sync.WaitGroup // what goes on as long as the daemon
	images   *oci.Store
	evidence *evidence.Manager
	steps    *step.Log
	govern   *govern.Manager
	results  *result.Manager
	runs     *run.Manager
	races    races
	acts     atomic.Int64 // under way, but for runs and commands: see Working

	retaining  sync.Mutex   // held while a record of what is kept is changed
	holding    sync.RWMutex // held for reading while a cell is recorded as removed, and for writing while a hold is put on something
	evidenceAt time.Time    // when evidence was last looked at that may be kept no longer; of keepHouse alone

	hostHas func() (spawn.Needs, error) // what forks may use of the host now

	mu        sync.Mutex // guards what follows
	uploads   []upload   // sources that were sent, oldest first
	hostParts []string   // see there
	probed    map[string]probed
	moved     map[cell.ID][]string // what was moved aside for a cell's start, until that was told
	started   time.Time
}

// Open reads the registry and brings what an earlier daemon left to an end or
// on its way again (see recover.go).
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.Home.Make(); err != nil {
		return nil, err
	}
	cfg.MaxCells = cmp.Or(cfg.MaxCells, DefaultCells)
	cfg.AttachGrace = cmp.Or(cfg.AttachGrace, DefaultAttachGrace)
	cfg.ReachGrace = cmp.Or(cfg.ReachGrace, 5*time.Second)
	reg, err := state.Open(durable.Disk(cfg.Home.State), filepath.Base(cfg.Home.Registry()), cfg.Home)
	if err != nil {
		return nil, err
	}
	pins := gc.NewPins(cfg.Objects)
	cfg.Objects = pins
	e := &Engine{
		cfg: cfg, pins: pins, log: cfg.Log, reg: reg, trees: newTreeCache(cfg.Objects), figures: newFigures(),
		sources: &sources{dir: cfg.Home.Sources(), m: map[string]*workspace.Imported{}}, hostParts: hostParts, probed: map[string]probed{},
		moved: map[cell.ID][]string{}, started: time.Now(),
	}
	e.hostHas = func() (spawn.Needs, error) { return spawn.Available(e.gc, gc.ReserveSize) }
	e.evidence = evidence.New(evidence.Config{Ledger: cfg.Ledger, Records: reg, Home: cfg.Home, Log: cfg.Log, Version: cfg.Version, User: cfg.User, Host: cfg.Host, Ending: func(id cell.RunID) <-chan struct{} { return e.runs.Ends(id) }, Background: e.background})
	if e.images, err = oci.OpenStore(filepath.Join(cfg.Home.Images(), "oci"), os.Getuid() == 0, cfg.Version); err != nil {
		reg.Close()
		return nil, err
	}
	e.life, e.end = context.WithCancelCause(context.WithoutCancel(ctx))
	e.govern = e.newGovern()
	reg.KeepPaused(func(l *state.Lease) time.Duration { d, _ := e.govern.Keep(l); return d })
	e.SetCeilings(cfg.Ceilings)
	e.caches = e.newCaches()
	e.services = e.newServices()
	e.steps = step.New(e.private)
	e.alive = live.New(live.Config{
		Registry: reg, Locks: &e.locks, Log: e.log, Backend: e.backend, Reach: cfg.ReachGrace, Life: e.life,
		Work: e.background, Follow: func(f func(context.Context)) { e.watching.Go(func() { f(e.life) }) },
		Working: func(id cell.ID) bool { return e.runs.In(id) != nil },
		WithinRun: func(ctx context.Context, run cell.RunID, do func() error) (bool, error) {
			return e.runs.Within(ctx, run, do)
		},
		Drain: func(ctx context.Context, template, cause string) { e.spawn.Drain(ctx, template, cause) }, Leaving: e.leaving, TakeUp: e.takeUp, Policies: e.govern, Gateways: e.govern, Services: e.services,
		Prepare: e.prepareStart, Specify: e.specify, Woken: e.woken, Unmounted: e.caches.Unmounted, ClearCaches: e.caches.Clear,
		Redactor: &redactor, Stage: stage, StartNotes: e.takeMoved, EndNotes: func(ctx context.Context, id cell.ID, dir string, inst backend.Instance, proc backend.Process, d backend.Done) []string {
			return e.runs.ExecNotes(ctx, id, dir, inst, proc, d)
		}, Ended: e.endCommand, AttachGrace: cfg.AttachGrace, EndKept: e.endKept,
		Stop:       func(ctx context.Context, id cell.ID) error { _, err := e.Stop(ctx, id); return err },
		RemoveCell: func(ctx context.Context, id cell.ID) error { _, err := e.Remove(ctx, id, false); return err },
	})
	e.gc = e.newGC()
	e.results = e.newResults()
	e.runs = e.newRuns()
	e.spawn = e.newSpawn()
	if err := e.govern.KnowStored(); err != nil {
		reg.Close()
		return nil, err
	}
	if err := e.recover(ctx); err != nil {
		reg.Close()
		return nil, err
	}
	e.watching.Go(e.keepHouse)
	e.watching.Go(e.alive.KeepLeases)
	e.watching.Go(func() { e.govern.KeepBudgets(e.life) })
	e.watching.Go(func() { e.govern.KeepLogins(e.life) })
	return e, nil
}

// Close lets go: cells and their commands live on in their keepers. What was
// made ahead goes.
func (e *Engine) Close() error {
	e.end(live.ErrClosing)
	e.watching.Wait()
	e.work.Wait()
	e.spawn.Close("the daemon ends")
	for _, i := range e.alive.Instances() {
		i.Close()
	}
	return e.reg.Close()
}

// AwaitStarts waits until no run is being prepared, for at most limit: their commands have
// started, or never will.
func (v *View) AwaitStarts(limit time.Duration) {
	if m := v.e.runs; m != nil { // an engine that was opened
		m.AwaitStarts(limit)
	}
}

// Busy reports whether anything needs this daemon: a request's work or a cell
// with processes.
func (e *Engine) Busy() bool {
	return len(e.runs.IDs()) > 0 || e.racing() || e.alive.Busy()
}

func (e *Engine) backend(name string) (backend.Backend, error) {
	if name == "" || name == "auto" {
		return e.cfg.Backends[0], nil
	}
	for _, b := range e.cfg.Backends {
		if b.Name() == name {
			return b, nil
		}
	}
	return nil, cell.Errorf(cell.Unsupported, "engine.backend", cell.Isolated, "this pando has no backend %q", name)
}

// provider returns the best one that works here with a backend, and why not a
// better one.
func (e *Engine) provider(ctx context.Context, b backend.Backend) (workspace.Provider, string, error) {
	caps, err := e.caps(ctx, b)
	if err != nil {
		return nil, "", err
	}
	why := ""
	for _, p := range e.cfg.Providers {
		reason := ""
		if e.cfg.WhyNot != nil {
			reason = e.cfg.WhyNot(p.Name())
		}
		bad := reason != ""
		if caps.Mounts != "" && p.Mounts() {
			reason, bad = caps.Mounts, true
		}
		if !bad {
			return p, why, nil
		}
		if why == "" {
			why = reason
		}
	}
	return nil, "", cell.Errorf(cell.Unsupported, "engine.provider", "run `pando doctor`", "no workspace provider works here: %s", why)
}

// probed is the answer of a backend's probe, with the stamp of the host's files then.
type probed struct {
	caps  backend.Caps
	stamp string
}

// hostParts are the files of the host that decide what backends can do here: devices,
// programs, modules and settings of the kernel.
var hostParts = []string{
	"/dev/net/tun", "/dev/kvm", "/dev/loop-control", "/usr/sbin/mke2fs", "/sbin/mke2fs", "/sys/fs/cgroup", "/proc/modules", "/proc/self/cgroup",
	"/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}

// caps asks a backend what works on this host, and again when the host has changed. A
// failure is not remembered.
func (e *Engine) caps(ctx context.Context, b backend.Backend) (backend.Caps, error) {
	stamp := linux.Stamp(e.hostParts...)
	e.mu.Lock()
	was, ok := e.probed[b.Name()]
	e.mu.Unlock()
	if ok && was.stamp == stamp {
		return was.caps, nil
	}
	c, err := b.Probe(ctx)
	if err != nil {
		return c, err
	}
	e.mu.Lock()
	e.probed[b.Name()] = probed{c, stamp}
	e.mu.Unlock()
	return c, nil
}

func (e *Engine) providerOf(name string) (workspace.Provider, error) {
	for _, p := range e.cfg.Providers {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, cell.Errorf(cell.Unsupported, "engine.provider", "", "this pando has no workspace provider %q", name)
}

// background starts work that outlives its request.
func (e *Engine) background(f func(ctx context.Context)) {
	e.work.Go(func() { f(e.life) })
}

// bound returns a context that ends with the request and with the daemon.
func (e *Engine) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	c, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(context.Cause(e.life)) })
	return c, func() {
		stop()
		cancel(nil)
	}
}

// houseEvery is the interval of what is looked at now and then.
const houseEvery = 10 * time.Second

// keepHouse looks, now and then, which forks made ahead, templates and uploads are not needed.
func (e *Engine) keepHouse() {
	tick := time.NewTicker(houseEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.life.Done():
			return
		case now := <-tick.C:
			e.spawn.Tend(e.life, now)
			e.expireUploads(now)
			e.tendEvidence(now)
		}
	}
}
