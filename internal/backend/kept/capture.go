package kept

import (
	"context"
	"encoding/json"
	"os"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

// Capturing is what a backend adds to instances whose memory can be captured.
type Capturing interface {
	// Capture is that of backend.Capturer.
	Capture(ctx context.Context, of *Instance, dir string) (taken string, err error)
}

// Preparing is what Capturing may implement.
type Preparing interface {
	// Prepare is that of backend.Capturer.
	Prepare(ctx context.Context, of *Instance, dir string, brief bool) error
}

// Prepare implements backend.Capturer.
func (i *Instance) Prepare(ctx context.Context, dir string, brief bool) error {
	if p, ok := i.Memory.(Preparing); ok {
		return p.Prepare(ctx, i, dir, brief)
	}
	return nil
}

// Capture implements backend.Capturer.
func (i *Instance) Capture(ctx context.Context, dir string) (taken string, err error) {
	if i.Memory == nil {
		return "", cell.Errorf(cell.Unsupported, "kept.Capture", cell.ForkSandbox, "cannot capture memory: this backend can't")
	}
	return i.Memory.Capture(ctx, i, dir)
}

// CaptureTo has the keeper write the cell's memory into files. It returns what the
// keeper of a copy must know.
func (i *Instance) CaptureTo(ctx context.Context, files []*os.File) (json.RawMessage, *cell.Warmth, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "capture"}, files...)
	if err != nil {
		return nil, nil, err
	}
	return resp.Captured, resp.Warmth, nil
}

// PrepareTo has the keeper begin to write the cell's memory into files. With own these
// may be what it has of its own, beside base, which is the caller's to close then.
func (i *Instance) PrepareTo(ctx context.Context, files []*os.File, own bool) (base *os.File, err error) {
	resp, err := i.do(ctx, keeper.Request{Op: "prepare", Own: own}, files...)
	if err != nil {
		return nil, err
	}
	for _, f := range resp.Given {
		if base != nil {
			base.Close()
		}
		base = f
	}
	return base, nil
}

var _ backend.Capturer = (*Instance)(nil)
