package client

import (
	"context"
	"encoding/json"
	"os"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// Prepare implements backend.Capturer.
func (i *Instance) Prepare(ctx context.Context, dir string, brief bool) error {
	if i.PrepareImage == nil {
		return nil
	}
	return i.PrepareImage(ctx, i, dir, brief)
}

// Capture implements backend.Capturer.
func (i *Instance) Capture(ctx context.Context, dir string) (taken string, err error) {
	if i.CaptureImage == nil {
		return "", cell.Errorf(cell.Unsupported, "keeper.Capture", cell.ForkSandbox, "cannot capture memory: this backend can't")
	}
	return i.CaptureImage(ctx, i, dir)
}

// CaptureTo makes the keeper write the cell's memory into files. It returns the data for the
// keeper of a copy.
func (i *Instance) CaptureTo(ctx context.Context, files []*os.File) (json.RawMessage, *cell.Warmth, error) {
	c, err := Ask(ctx, i.Client, proto.Capture, i.of(), files...)
	return c.More, c.Warmth, err
}

// PrepareTo makes the keeper start to write the cell's memory into files. With own the files
// may contain only the difference to base, which the caller then closes.
func (i *Instance) PrepareTo(ctx context.Context, files []*os.File, own bool) (base *os.File, err error) {
	_, given, err := ask(ctx, i.Client, proto.Prepare, proto.Preparation{Cell: i.Cell, Own: own}, nil, files...)
	if err != nil || len(given) == 0 {
		return nil, err
	}
	proto.CloseAll(given[1:])
	return given[0], nil
}

var _ backend.Capturer = (*Instance)(nil)
