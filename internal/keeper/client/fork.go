package client

import (
	"context"
	"strconv"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

func unforked(op string) error {
	return cell.Errorf(cell.Unsupported, "keeper."+op, cell.Isolated, "cannot fork an interpreter: this backend can't")
}

// Seal implements backend.Warmer.
func (i *Instance) Seal(ctx context.Context) (cell.Warmth, error) {
	if i.MakeFork == nil {
		return cell.Warmth{}, unforked("Seal")
	}
	return Ask(ctx, i.Client, proto.Seal, i.of())
}

// Fork implements backend.Warmer.
func (i *Instance) Fork(ctx context.Context, spec cell.Spec) (backend.Warmer, error) {
	if i.MakeFork == nil {
		return nil, unforked("Fork")
	}
	let, err := i.holdClient()
	if err != nil {
		return nil, err
	}
	defer let()
	f, err := i.MakeFork(ctx, i, spec)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Limit implements backend.Warmer.
func (i *Instance) Limit(_ context.Context, l cell.Limits) error {
	for n := range i.Known.Limits {
		known := &i.Known.Limits[n]
		text := ""
		switch {
		case known.Applied == "":
		case known.Name == "memory" && l.Memory > 0:
			text = strconv.FormatInt(l.Memory, 10)
		case known.Name == "pids" && l.PIDs > 0:
			text = strconv.FormatInt(l.PIDs, 10)
		case known.Name == "cpus" && l.CPUs > 0:
			text = strconv.FormatFloat(l.CPUs, 'g', -1, 64)
		}
		if text == "" || text == known.Applied {
			continue
		}
		if i.Lower == nil || known.How != "cgroup" {
			return cell.Errorf(cell.Unsupported, "keeper.Limit", "", "cannot lower the limit on %s of a fork that was made", known.Name)
		}
		if err := i.Lower(known.Name, l); err != nil {
			return err
		}
		known.Applied = text
	}
	return nil
}

// Adopt implements backend.Warmer.
func (i *Instance) Adopt(ctx context.Context, a cell.Adoption) (cell.Certificate, error) {
	if i.MakeFork == nil && i.CaptureImage == nil {
		return cell.Certificate{}, unforked("Adopt")
	}
	return Ask(ctx, i.Client, proto.Adopt, proto.Adoption{Cell: i.Cell, Adopt: a})
}

// Branch implements backend.Warmer.
func (i *Instance) Branch(ctx context.Context, b cell.Branching) ([]backend.Warmer, cell.Pause, error) {
	if i.MakeBranches == nil {
		return nil, cell.Pause{}, unforked("Branch")
	}
	let, err := i.holdClient()
	if err != nil {
		return nil, cell.Pause{}, err
	}
	defer let()
	made, pause, err := i.MakeBranches(ctx, i, b)
	if err != nil {
		return nil, pause, err
	}
	list := make([]backend.Warmer, len(made))
	for n, m := range made {
		list[n] = m
	}
	return list, pause, nil
}

// Mounts returns the cell's mounts, from its keeper. Those of a fork parent do not change, so
// they are cached.
func (i *Instance) Mounts(ctx context.Context) ([]cell.Mount, error) {
	i.looking.Lock()
	defer i.looking.Unlock()
	if i.mounts == nil {
		mounts, err := Ask(ctx, i.Client, proto.Mounts, i.of())
		if err != nil {
			return nil, err
		}
		i.mounts = mounts
	}
	return i.mounts, nil
}

// Changed drops the cached mounts: the cell was branched.
func (i *Instance) Changed() {
	i.looking.Lock()
	defer i.looking.Unlock()
	i.mounts = nil
}

// holdClient keeps the client open even if the cell ends meanwhile. The instances made with it
// later have their own shares of it.
func (i *Instance) holdClient() (let func(), err error) {
	c := i.Client.Share()
	if c == nil {
		return nil, cell.Errorf(cell.NotFound, "keeper.Fork", "", "cell %s was removed", i.Cell)
	}
	return c.Close, nil
}

// Relative returns an instance of the same family.
func (i *Instance) Relative(id cell.ID, known cell.Assurance) *Instance {
	return &Instance{Host: i.Host, Client: i.Client.Share(), Cell: id, Family: i.family(), Known: known}
}

var _ backend.Warmer = (*Instance)(nil)
