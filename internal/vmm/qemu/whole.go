package qemu

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/vmm"
)

// A Whole machine can be moved by QEMU's ordinary migration: all of it, memory included, as one
// stream. The copy shares nothing with its source. Cells are copied differently (Save, and
// package ram); Whole is for comparison in benchmarks. Machines of Open are Whole; their memory
// must be the program's own, or mapped shared.
type Whole interface {
	vmm.Machine
	// SaveAll writes a stopped machine to a file that is open for writing, from its start. The
	// machine can continue then. SaveAll fails with cell.Conflict unless the machine is
	// stopped.
	SaveAll(ctx context.Context, to *os.File) error
	// LoadAll reads the output of SaveAll, as Load reads that of Save.
	LoadAll(ctx context.Context, from *os.File) error
}

var _ Whole = (*machine)(nil)

// SaveAll implements Whole. It removes QEMU's bandwidth limit, which is for networks.
func (v *machine) SaveAll(ctx context.Context, to *os.File) error {
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := v.must(ctx, "save", func(s vmm.State) bool { return s == vmm.Stopped }); err != nil {
		return err
	}
	if _, err := v.m.do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(math.MaxInt32) << 10}); err != nil {
		return err
	}
	if err := v.move(ctx, "migrate", to); err != nil {
		return err
	}
	return v.finalized(ctx)
}

// finalized waits until the program has cleaned up after a migration. It reports completion
// before, and does not let the machine continue until then.
func (v *machine) finalized(ctx context.Context) error {
	for {
		got, err := v.m.do(ctx, "query-status", nil)
		if err != nil {
			return err
		}
		if !bytes.Contains(got, []byte(`"finish-migrate"`)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot move a machine: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// LoadAll implements Whole.
func (v *machine) LoadAll(ctx context.Context, from *os.File) error {
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := v.must(ctx, "load", func(s vmm.State) bool { return s == vmm.Waiting }); err != nil {
		return err
	}
	return v.move(ctx, "migrate-incoming", from)
}

// move makes the program migrate the machine to or from a file, and waits for the end.
func (v *machine) move(ctx context.Context, command string, f *os.File) error {
	if _, err := v.m.do(ctx, "getfd", map[string]any{"fdname": "whole"}, f); err != nil {
		return err
	}
	if _, err := v.m.do(ctx, command, map[string]any{"uri": "fd:whole"}); err != nil {
		return err
	}
	select {
	case status := <-v.migrated:
		if status != "completed" {
			return cell.Errorf(cell.Internal, "qemu."+command, "", "cannot move a machine: QEMU says %s", status)
		}
		return nil
	case <-v.m.done:
		return gone(command)
	case <-ctx.Done():
		return fmt.Errorf("cannot move a machine: %w", context.Cause(ctx))
	}
}
