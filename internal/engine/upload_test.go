package engine

import (
	"archive/tar"
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// A caller on another host names no directory, whatever its token may do; what it sends is
// its own, and for one cell.
func TestX21SourcesFromElsewhere(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	as := func(token string, level access.Level) *View {
		return b.All().As(access.Principal{Name: token, Token: token, Level: level})
	}
	run, other, admin := as("t-1", access.Run), as("t-2", access.Run), as("t-3", access.Admin)
	for name, v := range map[string]*View{"run": run, "admin": admin} {
		_, err := v.StartRun(b.ctx, b.request("", "true"))
		b.wantKind(name+": a run", err, cell.Invalid, "a path of another host", b.src)
		_, err = v.Plan(b.ctx, b.request("", "true"))
		b.wantKind(name+": a plan", err, cell.Invalid, "a path of another host")
		_, err = v.Create(b.ctx, api.CreateRequest{Name: "n", From: b.src})
		b.wantKind(name+": a cell", err, cell.Invalid, "a path of another host")
		_, err = v.BuildTemplate(b.ctx, api.TemplateRequest{Name: "t", From: b.src, DryRun: true}, nil)
		b.wantKind(name+": a template", err, cell.Invalid, "a path of another host")
	}

	send := func(v *View) string {
		t.Helper()
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		b.must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "sent", Size: 3, Mode: 0o644}))
		w.Write([]byte("abc"))
		b.must(w.Close())
		up, err := v.Upload(b.ctx, &buf)
		b.must(err)
		if up.Files != 1 || up.Bytes != 3 {
			t.Errorf("%+v", up)
		}
		return up.ID
	}
	waiting := func() int {
		t.Helper()
		list, err := os.ReadDir(b.cfg.Home.Uploads())
		b.must(err)
		return len(list)
	}
	id := send(run)
	with := func(id string) api.RunRequest {
		r := b.request("", "true")
		r.From, r.Upload = "", id
		return r
	}
	_, err := other.Plan(b.ctx, with(id))
	b.wantKind("another's", err, cell.NotFound, "no uploaded source")
	_, err = other.Create(b.ctx, api.CreateRequest{Name: "n", Upload: id})
	b.wantKind("another's for a cell", err, cell.NotFound, "no uploaded source")
	_, err = run.Create(b.ctx, api.CreateRequest{Name: "n", Upload: id, From: b.src})
	b.wantKind("both", err, cell.Invalid, "both")
	p, err := run.Plan(b.ctx, with(id))
	b.must(err)
	if p.Files != 1 || p.Source != emptyWorkspace {
		t.Errorf("the plan is of %d files in %s", p.Files, p.Source)
	}
	apply := with(id)
	apply.OnSuccess = "apply"
	_, err = run.Plan(b.ctx, apply)
	b.wantKind("applied on success", err, cell.Conflict, "no directory of the daemon's host")
	c, err := run.Create(b.ctx, api.CreateRequest{Name: "n", Upload: id})
	b.must(err)
	k, err := b.reg.Checkpoint(cell.CheckpointID(headOf(t, b, "n")))
	b.must(err)
	tree, err := b.tree(b.ctx, &k)
	b.must(err)
	if _, err := tree.Lookup("sent"); err != nil || c.Source != emptyWorkspace {
		t.Errorf("in %s: %v", c.Source, err)
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d uploads are left", n)
	}
	apply.Cell, apply.Upload = "n", ""
	_, err = run.Plan(b.ctx, apply)
	b.wantKind("applied on success in the cell", err, cell.Conflict, "no directory of the daemon's host")
	_, err = run.Create(b.ctx, api.CreateRequest{Name: "again", Upload: id})
	b.wantKind("a second time", err, cell.NotFound, "no uploaded source")

	// So many wait, and so long.
	first := send(run)
	theirs := send(other)
	for range maxUploads {
		id = send(run)
	}
	if n := waiting(); n != maxUploads+1 {
		t.Errorf("%d uploads wait", n)
	}
	_, err = run.Plan(b.ctx, with(first))
	b.wantKind("the oldest", err, cell.NotFound)
	b.must(second(other.Plan(b.ctx, with(theirs))))
	b.expireUploads(time.Now().Add(uploadTTL / 2))
	b.must(second(run.Plan(b.ctx, with(id))))
	b.expireUploads(time.Now().Add(2 * uploadTTL))
	if n := waiting(); n != 0 {
		t.Errorf("%d uploads are left after their time", n)
	}
}

func headOf(t *testing.T, b *bed, name string) string {
	t.Helper()
	c, err := b.reg.Cell(b.id(name))
	b.must(err)
	return string(c.Head)
}
