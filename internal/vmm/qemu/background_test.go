package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/vmmtest"
)

func BenchmarkPauses(b *testing.B) {
	testenv.Program(b, "qemu-system-x86_64")
	vmmtest.BenchPauses(b, &Driver{}, vmm.Emulated, map[string]vmmtest.Way{"background": background})
}

// background is the program's own way: it protects its memory with a userfaultfd, and
// saves a page before the machine may write to it. We don't use it.
func background(ctx context.Context, m vmm.Machine, to *os.File) (time.Duration, int64, error) {
	v := m.(*machine)
	capability := func(on bool) error {
		_, err := v.m.do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []any{map[string]any{"capability": "background-snapshot", "state": on}}})
		return err
	}
	if err := capability(true); err != nil {
		return 0, 0, err
	}
	defer capability(false)
	if _, err := v.m.do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": 1 << 40}); err != nil {
		return 0, 0, err
	}
	if _, err := v.m.do(ctx, "getfd", map[string]any{"fdname": "image"}, to); err != nil {
		return 0, 0, err
	}
	if _, err := v.m.do(ctx, "migrate", map[string]any{"uri": "fd:image"}); err != nil {
		return 0, 0, err
	}
	select {
	case status := <-v.migrated:
		if status != "completed" {
			return 0, 0, fmt.Errorf("the snapshot is %s", status)
		}
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
	got, err := v.m.do(ctx, "query-migrate", nil)
	if err != nil {
		return 0, 0, err
	}
	var x struct {
		Downtime int64
		RAM      struct{ Transferred int64 }
	}
	if err := json.Unmarshal(got, &x); err != nil {
		return 0, 0, err
	}
	return time.Duration(x.Downtime) * time.Millisecond, x.RAM.Transferred, nil
}
