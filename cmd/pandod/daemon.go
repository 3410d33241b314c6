//go:build linux

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/gvisor"
	"github.com/pando-dev/pando/internal/backend/microvm"
	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/backend/none"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/doctor"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/signer"
	"github.com/pando-dev/pando/internal/store/disk"
	"github.com/pando-dev/pando/internal/telemetry"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
	"github.com/pando-dev/pando/internal/workspace/overlay"
)

const daemonRole = "daemon"

// launch is the configuration of a daemon from its starter. A daemon gets no environment.
type launch struct {
	Home     paths.Home `json:"home"`
	UserHome string     `json:"user_home"`
	Path     string     `json:"path,omitempty"` // the user's PATH
	Version  string     `json:"version"`
	// OwnMounts: it has a mount namespace of its own, for opening volumes.
	OwnMounts bool          `json:"own_mounts,omitempty"`
	Idle      time.Duration `json:"idle,omitempty"`
	// Resolvers, Roots and Pool: see engine.Config.
	Resolvers []string    `json:"resolvers,omitempty"`
	Roots     string      `json:"roots,omitempty"`
	Proxy     *cell.Proxy `json:"proxy,omitempty"`
	Pool      *int        `json:"pool,omitempty"`
	Machines  machines    `json:"machines,omitzero"`
	// Telemetry are the variables that say where traces go.
	Telemetry []string `json:"telemetry,omitempty"`
	// Serve: it answers callers over the network, and ends with its starter.
	Serve *serving `json:"serve,omitempty"`
}

// launched is the daemon's answer.
type launched struct {
	Kind  cell.Kind `json:"kind,omitempty"`
	Error string    `json:"error,omitempty"`
	Hint  string    `json:"hint,omitempty"`
	// Served: of launch.Serve.
	Served *cli.Served `json:"served,omitempty"`
}

// killed reports whether a process was ended by SIGKILL: by a person, the kernel for want of
// memory, or the watchdog.
func killed(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Sys() any // of the process's state
	}](err)
	if !ok {
		return false
	}
	status, ok := e.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// another bounds the wait for a daemon that holds the lock to answer or to end: it may be just
// starting, or ending.
const another = 30 * time.Second

// served bounds the wait for a daemon that a pando serve brings back. One that was started meanwhile
// would soon have to hand over to that.
const served = 5 * time.Second

// startDaemon starts a daemon that outlives this process, and returns when it answers. It is no
// error if another daemon came first.
func startDaemon(ctx context.Context, h paths.Home) error {
	if err := h.Make(); err != nil {
		return err
	}
	for began := time.Now(); h.Served() && time.Since(began) < served; time.Sleep(20 * time.Millisecond) {
		if answers(h.Socket()) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for began := time.Now(); ; {
		err := launchDaemon(h)
		if cell.KindOf(err) != cell.Exists {
			return err
		}
		for { // until it answers, or ends
			if answers(h.Socket()) {
				return nil
			}
			if !h.Locked() {
				break
			}
			if time.Since(began) > another {
				return cell.Errorf(cell.Unavailable, "startDaemon", "see why in "+h.Log()+", or kill it; cells live on",
					"cannot reach the daemon: process %d holds %s, and has neither answered nor ended in %v", h.Holder().PID, h.Lock(), another)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// answers reports whether a daemon listens on a socket; its path may be longer than an address
// can be.
func answers(socket string) bool {
	c, err := dialSocket(context.Background(), socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func dialSocket(ctx context.Context, socket string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(socket))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket)))
}

// launchDaemon starts one; Exists when another holds the lock.
func launchDaemon(h paths.Home) error {
	log, err := os.OpenFile(h.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p, err := begin(h, log, nil, nil)
	if err != nil {
		return err
	}
	p.conn.Close()
	go p.wait() // reaped if it ends before this process
	return nil
}

// process is a daemon started by this process.
type process struct {
	pid    *os.Process
	wait   func() error
	conn   *reexec.Conn
	answer launched
}

// begin starts a daemon and returns when it answers. With serve, it also answers on sockets, and
// ends with the connection to it.
func begin(h paths.Home, log *os.File, serve *serving, sockets []*os.File) (p *process, err error) {
	l := launch{Home: h, UserHome: os.Getenv("HOME"), Path: os.Getenv("PATH"), Version: version, OwnMounts: os.Geteuid() == 0, Serve: serve}
	attr := &syscall.SysProcAttr{Setsid: true}
	if l.OwnMounts {
		attr.Cloneflags = syscall.CLONE_NEWNS
	}
	cmd, conn, err := reexec.Start(daemonRole, attr, log)
	if l.OwnMounts && errors.Is(err, syscall.EPERM) { // a root without the right to mount
		l.OwnMounts, attr.Cloneflags = false, 0
		cmd, conn, err = reexec.Start(daemonRole, attr, log)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
			go cmd.Wait()
		}
	}()
	if s := os.Getenv("PANDO_IDLE"); s != "" {
		if l.Idle, err = time.ParseDuration(s); err != nil || l.Idle <= 0 {
			return nil, fmt.Errorf("cannot start the daemon: PANDO_IDLE=%q is no duration", s)
		}
	}
	if s := os.Getenv("PANDO_POOL"); s != "" { // for measurements, which separate forks made ahead from others
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("cannot start the daemon: PANDO_POOL=%q is no number of forks", s)
		}
		l.Pool = &n
	}
	l.Proxy = hostProxy(os.Getenv)
	if l.Resolvers, l.Roots, err = outside(); err != nil {
		return nil, err
	}
	if l.Machines, err = machinesHere(); err != nil {
		return nil, err
	}
	l.Telemetry = telemetry.Environment(os.Environ())
	if err := conn.Send(l, sockets...); err != nil {
		return nil, fmt.Errorf("cannot start the daemon: %w", err)
	}
	var answer launched
	if _, err := conn.Recv(&answer); err != nil {
		return nil, fmt.Errorf("cannot start the daemon: it ended at once; see %s", h.Log())
	}
	if answer.Error == "" {
		return &process{cmd.Process, cmd.Wait, conn, answer}, nil
	}
	return nil, &cell.Error{Op: "startDaemon", Kind: answer.Kind, Hint: answer.Hint, Err: errors.New("cannot start the daemon: " + answer.Error)}
}

// machines is the configuration of microVM cells, where it differs from the host's defaults.
type machines struct {
	Kernel     string `json:"kernel,omitempty"` // default kernel: IMAGE or IMAGE:MODULES
	NoKVM      bool   `json:"no_kvm,omitempty"` // machines are emulated
	Unrecorded bool   `json:"unrecorded,omitempty"`
}

// machinesHere reads it: PANDO_KERNEL, PANDO_KVM=off, and PANDO_RECORD_WRITES=off, with which a
// machine's memory is captured while it is paused.
func machinesHere() (m machines, err error) {
	if s := os.Getenv("PANDO_KERNEL"); s != "" {
		paths := strings.SplitN(s, ":", 2)
		for i, p := range paths {
			if paths[i], err = filepath.Abs(p); err != nil {
				return m, err
			}
		}
		m.Kernel = strings.Join(paths, ":")
	}
	for name, off := range map[string]*bool{"PANDO_KVM": &m.NoKVM, "PANDO_RECORD_WRITES": &m.Unrecorded} {
		switch s := os.Getenv(name); s {
		case "", "on":
		case "off":
			*off = true
		default:
			return m, fmt.Errorf("cannot start the daemon: %s=%q is neither on nor off", name, s)
		}
	}
	return m, nil
}

// hostProxy reads the host's proxy from the environment of the daemon's start, as curl does: the
// lower case name first. No request can set another. nil: there is none.
func hostProxy(getenv func(string) string) *cell.Proxy {
	get := func(names ...string) string {
		for _, n := range names {
			if v := cmp.Or(getenv(strings.ToLower(n)), getenv(n)); v != "" {
				return v
			}
		}
		return ""
	}
	p := cell.Proxy{HTTP: get("HTTP_PROXY", "ALL_PROXY"), HTTPS: get("HTTPS_PROXY", "ALL_PROXY"), No: get("NO_PROXY")}
	if p.HTTP == "" && p.HTTPS == "" {
		return nil
	}
	return &p
}

// outside reads how gateways reach and trust the outside, where that differs from the host:
// PANDO_RESOLVER, the address of a DNS server (or several, with commas), and PANDO_ROOTS, a file
// of certificates (PEM) that are trusted besides the host's.
func outside() (resolvers []string, roots string, err error) {
	for _, s := range strings.FieldsFunc(os.Getenv("PANDO_RESOLVER"), func(r rune) bool { return r == ',' || r == ' ' }) {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			addr, aerr := netip.ParseAddr(s)
			if aerr != nil {
				return nil, "", fmt.Errorf("cannot start the daemon: PANDO_RESOLVER=%q is no address of a DNS server", s)
			}
			at = netip.AddrPortFrom(addr, 53)
		}
		resolvers = append(resolvers, at.String())
	}
	if at := os.Getenv("PANDO_ROOTS"); at != "" {
		b, err := os.ReadFile(at)
		if err != nil {
			return nil, "", fmt.Errorf("cannot start the daemon: PANDO_ROOTS: %w", err)
		}
		if block, _ := pem.Decode(b); block == nil {
			return nil, "", fmt.Errorf("cannot start the daemon: PANDO_ROOTS=%s has no certificates in it", at)
		}
		roots = string(b)
	}
	return resolvers, roots, nil
}

// daemonMain is the main function of a daemon.
func daemonMain() error {
	conn, err := reexec.Inherited()
	if err != nil {
		return err
	}
	parent := os.Getppid()
	var l launch
	sockets, err := conn.Recv(&l)
	if err != nil {
		return err
	}
	fail := func(err error) error {
		conn.Send(launched{Kind: cell.KindOf(err), Error: err.Error(), Hint: cell.HintOf(err)})
		return err
	}
	lock, err := daemon.Lock(l.Home)
	if err != nil {
		fail(err)
		return nil
	}
	defer daemon.Unlock(l.Home, lock)
	file := openLog(l.Home.Log())
	log := slog.New(slog.NewTextHandler(file, nil))
	if l.OwnMounts {
		if err := linux.KeepMounts(l.Home.Cells()); err != nil {
			return fail(err)
		}
	}
	tracer, flush, err := telemetry.Open(context.Background(), l.Telemetry, l.Version, log)
	switch {
	case err != nil && l.Serve != nil:
		return fail(err)
	case err != nil: // the variables may be meant for other programs of the user
		log.Warn("tracing is off", "error", err, "hint", cell.HintOf(err))
	}
	if tracer != nil {
		defer func() { // spans of the last requests
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			if err := flush(ctx); err != nil {
				log.Warn("traces", "error", err)
			}
		}()
	}
	caught, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	hup := make(chan os.Signal, 1) // from the beginning: unhandled, the signal would end the daemon
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ctx, stop := context.WithCancel(caught)
	defer stop()
	eng, closeAll, err := assemble(ctx, l, log)
	if err != nil {
		return fail(err)
	}
	defer closeAll()
	go daemon.KeepLock(ctx, l.Home)
	ln, err := daemon.Listen(l.Home)
	if err != nil {
		return fail(err)
	}
	cfg := daemon.Config{Home: l.Home, Engine: eng.All(), Log: log, Version: l.Version, Doctor: eng.doctor, Idle: l.Idle, Tracer: tracer}
	if cfg.Tokens, err = access.Open(durable.Disk(l.Home.Tokens())); err != nil {
		return fail(err)
	}
	if cfg.Audit, err = daemon.OpenAudit(l.Home.Audit()); err != nil {
		return fail(err)
	}
	defer cfg.Audit.Close()
	if cfg.Keys, err = operation.OpenKeysOrNew(durable.Disk(l.Home.State), filepath.Base(l.Home.Idempotency()), log); err != nil {
		return fail(err)
	}
	defer cfg.Keys.Close()
	if cfg.Operations, err = operation.OpenOrNew(durable.Disk(l.Home.State), filepath.Base(l.Home.Operations()), log); err != nil {
		return fail(err)
	}
	defer cfg.Operations.Close()
	eng.SettleAllBut(append(cfg.Keys.Open(), cfg.Operations.Open()...))
	cfg.Settle = eng.SettleRequest
	go func() {
		for {
			select {
			case <-hup:
				l.again(cfg.Audit, file, eng.Engine, log)
			case <-ctx.Done():
				return
			}
		}
	}()
	var answer launched
	if l.Serve != nil {
		cfg.Orphaned = func() bool { return os.Getppid() != parent }
		cfg.Limits = l.Serve.limits()
		if cfg.Listen, answer.Served, err = l.Serve.open(l.Home, cfg.Tokens, sockets); err != nil {
			return fail(err)
		}
	}
	upload := daemon.DefaultLimits.Upload
	if cfg.Limits != nil {
		upload = cfg.Limits.Upload
	}
	var buildAllow, buildImages []string
	if l.Serve != nil {
		buildAllow, buildImages = l.Serve.BuildAllow, l.Serve.BuildImages
	}
	front, err := e2bFront(l.Home, eng.Engine, l.Path, upload, buildAllow, buildImages, log)
	if err != nil {
		return fail(err)
	}
	// Ports of cells come first: they may have any path.
	cfg.Fronts = append(cfg.Fronts, front, agents(l.Home, l.Version, log))
	d := daemon.New(cfg)
	if err := conn.Send(answer); err != nil {
		log.Warn("the starter of the daemon has ended")
	}
	if l.Serve == nil {
		conn.Close()
	} else {
		go func() { // in the foreground: it ends with its starter
			conn.Recv(&struct{}{})
			log.Info("the starter of the daemon has ended")
			stop()
		}()
	}
	log.Info("daemon is ready", "version", l.Version, "pid", os.Getpid())
	defer os.Remove(l.Home.Socket())
	return d.Serve(ctx, ln)
}

// again opens files by their names again: logs, which other programs may have moved, ceilings
// and the certificate.
func (l *launch) again(audit *daemon.Audit, file *daemonLog, eng *engine.Engine, log *slog.Logger) {
	if err := file.Reopen(); err != nil {
		log.Error("cannot reopen the log", "error", err)
	}
	if err := audit.Reopen(); err != nil {
		log.Error("cannot reopen the audit log", "error", err)
	}
	if c, err := govern.ReadCeilings(l.ceilings(), hostSize()); err != nil {
		log.Error("the ceilings are unchanged: the new ones can't be used", "error", err)
	} else {
		eng.SetCeilings(c)
	}
	if l.Serve == nil {
		return
	}
	switch changed, err := l.Serve.reload(l.Home); {
	case err != nil:
		log.Error("the certificate is unchanged: the new one can't be used", "error", err)
	case changed:
		log.Info("the certificate was replaced")
	}
}

// ceilings opens the operator's file of ceilings; "" is the default path.
func (l *launch) ceilings() string {
	if l.Serve == nil {
		return ""
	}
	return l.Serve.Ceilings
}

type parts struct {
	*engine.Engine
	doctor daemon.Doctor
}

// openLogin opens the login file of a program of this host.
func openLogin(path string) (*os.File, error) {
	f, err := cli.OpenSecretFile("read the login in "+path, path)
	if e, ok := errors.AsType[*api.Error](err); ok {
		return nil, cell.Errorf(cell.Unavailable, "credential.Login", e.Hint, "%s", e.Message)
	}
	return f, err
}

// assemble names every concrete part.
func assemble(ctx context.Context, l launch, log *slog.Logger) (p parts, closeAll func(), err error) {
	if err := l.Home.Make(); err != nil {
		return p, nil, err
	}
	inst, base, err := identity(l.Home)
	if err != nil {
		return p, nil, err
	}
	u, err := currentUser(l.UserHome)
	if err != nil {
		return p, nil, err
	}
	if err := linux.RemoveProbe(l.Home.Layers()); err != nil {
		return p, nil, err
	}
	settings, err := signer.Read(l.Home.Signer())
	if err != nil {
		return p, nil, err
	}
	elsewhere, err := signer.Open(settings)
	if err != nil {
		return p, nil, err
	}
	ledger, err := receipt.Open(durable.Disk(l.Home.Keys()), durable.Disk(l.Home.Ledger()), elsewhere)
	if err != nil {
		return p, nil, err
	}
	objects, err := disk.Open(l.Home.Trees())
	if err != nil {
		ledger.Close()
		return p, nil, err
	}
	credentials, err := credential.Open(credential.Config{Dir: durable.Disk(l.Home.Credentials()), Keys: durable.Disk(l.Home.Keys()),
		Open: openLogin})
	if err != nil {
		ledger.Close()
		objects.Close()
		return p, nil, err
	}
	cells := isolation.Config{Keepers: l.Home.Keepers(), Scratch: l.Home.Scratch(), Installation: inst, IDBase: base, Log: log}
	ns := namespace.New(cells)
	gv := gvisor.New(gvisor.Config{Config: cells, Runsc: beside("pando-runsc"), Guest: beside("pando-guest")})
	vmCells := microvm.Config{Config: cells, Guest: beside("pando-guest"), Path: l.Path, Cache: l.Home.Machines(), Kernel: l.Machines.Kernel, Unrecorded: l.Machines.Unrecorded}
	if l.Machines.NoKVM {
		vmCells.KVM = func() kvm.Verdict {
			return kvm.Verdict{State: kvm.Refused, Why: "the daemon was started with PANDO_KVM=off"}
		}
	}
	vm := microvm.New(vmCells)
	no := none.New(none.Config{Keepers: l.Home.Keepers(), Log: log})
	overlays := unlessMended(func() string { return linux.ProbeOverlay(l.Home.Layers(), os.Geteuid() == 0, l.Home.Scratch()) })
	whyNot := func(provider string) string {
		if provider != overlay.Name {
			return ""
		}
		return overlays()
	}
	var most int
	var free, state int64
	if l.Serve != nil {
		most, free, state = int(l.Serve.Limits.Cells), l.Serve.Limits.Free, l.Serve.Limits.State
	}
	ceilings, err := govern.ReadCeilings(l.ceilings(), hostSize())
	if err != nil {
		ledger.Close()
		objects.Close()
		return p, nil, err
	}
	eng, err := engine.Open(ctx, engine.Config{
		Ceilings: ceilings, MaxCells: most, MinFree: free, MaxState: state,
		Home: l.Home, Log: log, Backends: []backend.Backend{ns, gv, vm, no},
		Providers: []workspace.Provider{overlay.New(l.Home.Layers(), os.Geteuid() == 0), clone.New(l.Home.Layers())}, WhyNot: whyNot,
		Parser:  parse.New(durable.Disk(l.Home.State), filepath.Base(l.Home.Unreadable())),
		Objects: objects, Ledger: ledger, Credentials: credentials, Version: l.Version, User: u, Path: l.Path, Host: hostSize(), HostPolicy: paths.HostPolicy, Resolvers: l.Resolvers, Roots: l.Roots, Proxy: l.Proxy, Pool: l.Pool,
		Agents: catalog.All(),
	})
	if err != nil {
		ledger.Close()
		objects.Close()
		return p, nil, err
	}
	ns.Warm()
	p = parts{eng, doctor.New(doctor.Config{Home: l.Home, Copied: func() string { return copiedFrom(l.Home) }, Signer: func() (string, error) { return signer.Try(ledger.Signer()) }, Backend: ns, Gvisor: gv, Machines: vm, KVM: vmCells.KVM, Disk: eng.All().Disk, Overlay: overlays})}
	return p, func() {
		if err := errors.Join(eng.Close(), ledger.Close(), objects.Close()); err != nil {
			log.Error("cannot close", "error", err)
		}
		ns.Close()
		gv.Close()
		no.Close()
	}, nil
}

// unlessMended repeats a check until it succeeds, so that a repaired fault is noticed, and a
// success is not checked again.
func unlessMended(why func() string) func() string {
	var mu sync.Mutex
	works := false
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		if works {
			return ""
		}
		reason := why()
		works = reason == ""
		return reason
	}
}

// identity returns the installation's name and, for root, the first of the host ids that its
// cells use; both are chosen once.
func identity(h paths.Home) (name string, base int, err error) {
	fsys, file := durable.Disk(h.State), filepath.Base(h.Installation())
	if b, err := durable.ReadFile(fsys, file); err == nil {
		f := strings.Fields(string(b))
		if len(f) > 2 {
			base, err := strconv.Atoi(f[1])
			return f[0], base, err
		}
		return "", 0, cell.Errorf(cell.Corrupt, "identity", "", "cannot read %s", h.Installation())
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", 0, err
	}
	var b [4]byte
	rand.Read(b[:])
	name = hex.EncodeToString(b[:])
	base = linux.FreeIDRange(isolation.IDRange)
	mark, err := linux.Born(h.State)
	if err != nil {
		return "", 0, err
	}
	return name, base, durable.WriteFile(fsys, file, []byte(fmt.Sprintf("%s %d %s %s\n", name, base, mark, h.State)), 0o600)
}

// copiedFrom is the directory of which the state is a copy; "" if it is where it was made, or was moved.
func copiedFrom(h paths.Home) string {
	b, err := os.ReadFile(h.Installation())
	if err != nil {
		return ""
	}
	mark, err := linux.Born(h.State)
	if f := strings.SplitN(strings.TrimSpace(string(b)), " ", 4); err == nil && len(f) == 4 && f[2] != mark {
		return f[3]
	}
	return ""
}

// currentUser is the owner of cells.
func currentUser(homeDir string) (cell.User, error) {
	u := cell.User{UID: os.Getuid(), GID: os.Getgid(), Home: homeDir}
	if x, err := user.LookupId(strconv.Itoa(u.UID)); err == nil {
		u.Name = x.Username
		if u.Home == "" {
			u.Home = x.HomeDir
		}
	}
	if u.Name == "" {
		u.Name = "user"
	}
	if !filepath.IsAbs(u.Home) {
		return u, cell.Errorf(cell.Invalid, "currentUser", "set HOME", "cannot find your home directory")
	}
	return u, nil
}

func hostSize() policy.Host {
	var si syscall.Sysinfo_t
	h := policy.Host{CPUs: linux.CPUs(), Memory: 4 << 30}
	if syscall.Sysinfo(&si) == nil {
		h.Memory = int64(si.Totalram) * int64(si.Unit)
	}
	return h
}

// beside returns the path of a program that is built and installed beside this one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

func namespaceDriver() (server.Driver, error) { return namespace.NewDriver() }

func noneDriver() (server.Driver, error) { return none.NewDriver() }

// newEvents makes a run's event stream: a chain of hashes in a file.
func newEvents(f *os.File, run string) server.Events {
	return &events{f: f, w: receipt.NewEventWriter(f, receipt.StartChain(cell.RunID(run)))}
}

type events struct {
	f *os.File
	w *receipt.EventWriter

	mu  sync.Mutex // guards err
	err error
}

func (e *events) Emit(kind string, fields any) {
	if err := e.w.Emit(kind, fields); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.err == nil {
			e.err = err
		}
	}
}

func (e *events) Seal() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return errors.Join(e.err, e.w.Sync(), e.f.Close())
}
