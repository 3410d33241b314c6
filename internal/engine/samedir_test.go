package engine

import (
	"os"
	"os/exec"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// Every method of a View that uses a path of the host refuses it when the daemon can't
// compare what it sees there with what the caller sees.
func TestX21CallersThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	other := t.TempDir()
	run := b.run("w", "echo 1 > f")
	target := result.Target{Cell: b.id("w")}
	gone := exec.Command("true")
	b.must(gone.Run())
	at := func(here bool, process int) *View {
		return b.All().As(access.Principal{Name: "local", Level: access.Admin, Here: here, Process: process})
	}
	dry := b.request("", "true")
	existing := b.request("w", "true")
	existing.From = ""
	mounts := b.request("", "true")
	mounts.Mounts = []string{other + ":/data"}
	created := api.CreateRequest{Name: "n", From: b.src}
	acts := map[string]func(v *View) error{
		"start":     func(v *View) error { _, err := v.StartRun(b.ctx, dry); return err },
		"plan":      func(v *View) error { _, err := v.Plan(b.ctx, dry); return err },
		"in a cell": func(v *View) error { _, err := v.Plan(b.ctx, existing); return err },
		"create":    func(v *View) error { _, err := v.Create(b.ctx, created); return err },
		"template": func(v *View) error {
			_, err := v.BuildTemplate(b.ctx, api.TemplateRequest{Name: "t", From: b.src, DryRun: true}, nil)
			return err
		},
		"accept": func(v *View) error {
			return second(v.Accept(b.ctx, target, api.AcceptRequest{Apply: true, DryRun: true}))
		},
		"accept a run": func(v *View) error {
			return second(v.Accept(b.ctx, result.Target{Run: cell.RunID(run.ID)}, api.AcceptRequest{Apply: true, DryRun: true}))
		},
		"revert": func(v *View) error { return second(v.Revert(b.ctx, target, api.RevertRequest{DryRun: true})) },
		"undo":   func(v *View) error { return second(v.Undo(b.ctx, target.Cell, api.UndoRequest{})) },
	}
	for name, act := range acts {
		b.wantKind(name, act(at(true, 0)), cell.Unavailable, "does not see the process", b.src)
	}
	_, err := at(true, 0).Plan(b.ctx, mounts)
	b.wantKind("mounts", err, cell.Unavailable, b.src)
	for name, v := range map[string]*View{"elsewhere": at(false, 0), "this process": at(true, os.Getpid()), "exited": at(true, gone.Process.Pid)} {
		for _, act := range []string{"plan", "in a cell", "template", "accept", "accept a run"} {
			if err := acts[act](v); err != nil {
				t.Errorf("%s: %s: %v", name, act, err)
			}
		}
	}
	// Acts without a path of the host need no comparison.
	v := at(true, 0)
	b.must(second(v.Undo(b.ctx, target.Cell, api.UndoRequest{KeepSource: true, DryRun: true})))
	b.must(second(v.Diff(b.ctx, result.DiffRequest{Target: target})))
	b.must(second(v.Accept(b.ctx, target, api.AcceptRequest{})))
	_, err = v.Create(b.ctx, api.CreateRequest{Name: "empty"})
	b.must(err)
	// Each path besides the source.
	_, err = v.Create(b.ctx, api.CreateRequest{Name: "mounts", Mounts: []string{other + ":/data"}})
	b.wantKind("mounts of a cell", err, cell.Unavailable, other)
	_, err = v.BuildTemplate(b.ctx, api.TemplateRequest{Name: "t", Policy: "version: 1\nfiles: {mounts: [{source: " + other + ", target: /data}]}\n", DryRun: true}, nil)
	b.wantKind("mounts of a template", err, cell.Unavailable, other)
}
