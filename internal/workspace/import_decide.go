package workspace

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/secret"
)

func newImporter(ctx context.Context, req ImportRequest, src *sourceTree, top Found) (*importer, error) {
	im := &importer{ctx: ctx, req: req, src: src, top: top, taken: time.Now().UnixNano()}
	if src.gitWhy != nil {
		im.notes = append(im.notes, ".git: the repository that it points to stays outside: "+src.gitWhy.Error())
	}
	var err error
	if im.repo, err = gitdir.Find(req.Source); err == nil && im.repo != nil {
		im.tracked, err = im.repo.Tracked(ctx, req.Parser)
	}
	if err != nil {
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
	d := im.judge(f, im.tracked.Has(f.Path))
	if d.Tracked && d.Action == secret.LeaveOut {
		if f.Type() != Symlink {
			im.listSecret(f, d, d.Why)
		}
		d.Action = secret.Keep
	}
	if f.Type() == Symlink && d.Action != secret.LeaveOut {
		d.Action = secret.Keep
	}
	return d
}

// judge is the decision on a path by its names and the policy.
func (im *importer) judge(f *Found, tracked bool) secret.Decision {
	d := secret.Decide(f.Path, f.Type() == Folder, tracked, im.req.With)
	if im.req.Mask {
		d.Masked, d.Tracked = d.Tracked, false
	}
	return d
}

// listSecret lists a secret, and reports whether it is imported nevertheless: git tracks the file.
func (im *importer) listSecret(f *Found, d secret.Decision, why string, fields ...string) (in bool) {
	if !d.Tracked {
		im.leaveSecret(f, d, why)
		return false
	}
	im.leave(f.Path, Tracked, why+": in the cell, since git tracks it", fields...)
	return true
}

// leaveSecret lists a path that is left out, or has fields that are.
func (im *importer) leaveSecret(f *Found, d secret.Decision, why string, fields ...string) {
	l := LeftOut{Path: f.Path, Kind: leftKind(f), Why: why, Fields: fields}
	if len(fields) > 0 {
		l.Kind = Fields
	}
	if d.Masked {
		l.Masked, l.History, l.Why = true, im.hasObjects(), why+": masked, though git tracks it"
		if f.Type() == Symlink {
			l.Kind = Secret
		}
	}
	im.leaveOut(l)
}

func leftKind(f *Found) string {
	switch f.Type() {
	case File, Folder:
		return Secret
	}
	return Special
}
