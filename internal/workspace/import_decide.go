package workspace

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/secret"
)

func newImporter(ctx context.Context, req ImportRequest, root *linux.Dir, top Found) (*importer, error) {
	im := &importer{req: req, root: root, top: top, taken: time.Now().UnixNano()}
	var err error
	if im.tracked, err = gitdir.Tracked(ctx, req.Source, req.Parser); err != nil {
		if k := cell.KindOf(err); k != cell.Unsupported && k != cell.TooLarge {
			return nil, err
		}
		im.notes = append(im.notes, err.Error()+": every file is treated as untracked")
	}
	return im, nil
}

func (im *importer) decide(f *Found) secret.Decision {
	switch f.Type() {
	case Socket, CharDev, Block, 0:
		return secret.Decision{Action: secret.LeaveOut, Why: "sockets and devices have no place in a workspace"}
	case Fifo:
		return secret.Decision{Action: secret.Keep}
	}
	d := secret.Decide(f.Path, f.Type() == Folder, im.tracked.Has(f.Path), im.req.With)
	if f.Type() == Symlink && d.Action != secret.LeaveOut {
		d.Action = secret.Keep
	}
	return d
}

func leftKind(f *Found) string {
	switch f.Type() {
	case File, Folder:
		return Secret
	}
	return Special
}
