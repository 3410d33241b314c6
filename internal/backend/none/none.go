// Package none is the backend without isolation: commands run as the caller, on the host, in a
// copy of the workspace. It exists for hosts on which no other backend works, and for
// comparison. It is used only on explicit request, and all missing protection is named as a
// downgrade.
package none

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"syscall"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// Name is the name of the backend.
const Name = "none"

const noIsolation = "no isolation: the command runs as you, on the host, and can read and change whatever you can"

// noGateway is the reason to refuse network rules: they could not be enforced.
const noGateway = "without isolation a command uses the host's network, past any rule"

// Config configures a Backend.
type Config struct {
	Keepers string // directory of sockets and locks
	Log     *slog.Logger
}

// Backend runs commands on the host.
type Backend struct{ host *client.Host }

// New returns the backend. It starts nothing.
func New(cfg Config) *Backend {
	return &Backend{&client.Host{Backend: Name, Dir: cfg.Keepers, Log: cfg.Log, Attr: func() (*syscall.SysProcAttr, error) {
		return &syscall.SysProcAttr{Setsid: true}, nil
	}}}
}

// Name implements backend.Backend.
func (b *Backend) Name() string { return Name }

// Close releases all resources. Cells live on.
func (b *Backend) Close() { b.host.Close() }

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	lacks := "backend none can't"
	return backend.Caps{
		Isolation: noIsolation, Mounts: "backend none shows the host's own files", Files: "without isolation a cell's files are the host's: use cp", Memory: lacks, Fork: lacks, LiveBranch: lacks,
		MemoryLimit: lacks, CPULimit: lacks, ProcessLimit: lacks, DiskLimit: lacks, ManyIDs: lacks, Landlock: lacks, Network: noGateway,
	}, nil
}

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (_ backend.Instance, err error) {
	if b.host.Alive(spec.ID) {
		return nil, cell.Errorf(cell.Exists, "none.Create", "", "cell %s is alive already", spec.ID)
	}
	if spec.Network != nil {
		return nil, cell.Errorf(cell.Unsupported, "none.Create", "leave out the network rules, or "+cell.Isolated, "cannot govern the network: %s", noGateway)
	}
	for _, limit := range spec.Asked {
		if limit != "timeout" && limit != "disk" {
			return nil, cell.Errorf(cell.Unsupported, "none.Create", "leave out --"+limit+", or "+cell.Isolated, "cannot limit %s without isolation", limit)
		}
	}
	a := cell.Assurance{Backend: Name, Network: "the host's", IDs: "the caller",
		Downgrades: []string{noIsolation, "memory, cpus and processes are not limited", "the network is open",
			"what a command detaches from its session outlives its time-out"}}
	k, err := b.host.Take()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			k.Kill()
			if cell.KindOf(err) != cell.Exists { // on Exists the files belong to another keeper
				b.host.Release(spec.ID)
			}
		}
	}()
	conn, err := b.host.Assign(k, spec.ID)
	if err != nil {
		return nil, err
	}
	n := proto.NewCell{Cell: spec.ID}
	if n.Spec, err = json.Marshal(spec); err != nil {
		return nil, err
	}
	var dirs []*os.File
	if spec.Limits.Disk > 0 {
		var how cell.AppliedLimit
		how, n.Watch, dirs, err = client.WatchDisk(spec, client.OpenDir)
		if err != nil {
			return nil, err
		}
		defer proto.CloseAll(dirs)
		a.Limits = append(a.Limits, how)
	}
	i, err := b.host.Make(ctx, conn, "", n, a, dirs...)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	return b.host.Attach(ctx, id, family)
}

// Living implements backend.Backend.
func (b *Backend) Living(ctx context.Context) ([]cell.Held, error) { return b.host.Living(ctx) }

// Leftovers implements backend.Backend.
func (b *Backend) Leftovers(ctx context.Context, dry bool) ([]string, error) {
	return b.host.Leftovers(dry)
}

// NewDriver returns the keeper's side.
func NewDriver() (server.Driver, error) {
	// Orphans of commands become children of the keeper, so that it knows all processes.
	if err := becomeReaper(); err != nil {
		return nil, err
	}
	return &driver{self: os.Getpid(), cells: map[cell.ID]cell.Spec{}, commands: map[int]bool{}}, nil
}
