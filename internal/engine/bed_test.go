package engine

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/mem"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/store/disk"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
)

// etc is where the image of the host keeps its filtered /etc, for all beds: it takes a
// second to make with the race detector.
var etc string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "pando-engine-etc-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		etc = dir
		return m.Run()
	}())
}

// bed is an engine in a home of its own, over a fake backend and real files.
type bed struct {
	testing.TB
	*Engine
	ctx     context.Context
	home    paths.Home
	host    *mem.Host
	toys    *toyHost
	src     string
	wrap    func(store.Store) store.Store // what stands before the objects, if anything
	objects *disk.Store
	ledger  *receipt.Ledger
	closed  bool
	freed   int64 // bytes of trees that gc freed

	// MaxState and MinFree of the next daemon.
	maxState, minFree int64
}

// newBed makes a source with the files given, as "path: content".
func newBed(t testing.TB, files ...string) *bed { return newBedWith(t, nil, files...) }

func newBedWith(t testing.TB, wrap func(store.Store) store.Store, files ...string) *bed {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b := &bed{TB: t, ctx: ctx, wrap: wrap, src: filepath.Join(dir, "src"),
		home: paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run"), Policy: filepath.Join(dir, "policy.yaml")}}
	b.must(os.Mkdir(b.src, 0o755))
	for _, f := range files {
		path, text, _ := strings.Cut(f, ": ")
		b.write(path, text)
	}
	b.must(b.home.Make())
	b.must(os.MkdirAll(b.home.Images(), 0o700))
	b.must(os.Symlink(etc, filepath.Join(b.home.Images(), "etc")))
	b.host = &mem.Host{Events: events}
	b.toys = newToyHost(b.host)
	b.open()
	t.Cleanup(func() {
		if !b.closed {
			for _, tm := range b.Templates() {
				if _, err := b.RemoveTemplate(context.Background(), tm.Name, api.TemplateRemoval{Force: true}); err != nil {
					t.Errorf("cannot remove template %s at the end: %v", tm.Name, err)
				}
			}
			for _, c := range b.reg.Cells() {
				if _, err := b.Remove(context.Background(), c.ID, false); err != nil {
					t.Errorf("cannot remove cell %s at the end: %v", c.Title(), err)
				}
			}
			b.close()
			b.host.Wait()
		}
	})
	return b
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// wantKind asserts the kind of an error, and that its text has every word.
func (b *bed) wantKind(what string, err error, want cell.Kind, words ...string) {
	b.Helper()
	if got := cell.KindOf(err); got != want {
		b.Errorf("%s: %v (kind %q), want kind %q", what, err, got, want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.Errorf("%s: %v; want %q in it", what, err, w)
		}
	}
}

// What finds things for callers, as the user.

func (b *bed) SelectCell(sel, dir string) (cell.ID, error) { return b.All().SelectCell(sel, dir) }

func (b *bed) GC(ctx context.Context, dry bool) (api.GCResult, error) { return b.All().GC(ctx, dry) }

func (b *bed) Disk(ctx context.Context, objects bool) (api.Disk, error) {
	return b.All().Disk(ctx, objects)
}

// What makes cells of cells, as a request without a caller does.

func (b *bed) Fork(ctx context.Context, id cell.ID, req api.ForkRequest) (api.ForkResult, error) {
	return b.spawn.Fork(ctx, id, req)
}

func (b *bed) Branch(ctx context.Context, id cell.ID, req api.BranchRequest) (api.BranchResult, error) {
	return b.spawn.Branch(ctx, id, req)
}

func (b *bed) ForkTemplate(ctx context.Context, name string, req api.WarmForkRequest, out func(api.StreamLine)) (api.WarmForkResult, error) {
	return b.spawn.ForkTemplate(ctx, name, req, out)
}

func (b *bed) BuildTemplate(ctx context.Context, req api.TemplateRequest, out func(api.StreamLine)) (api.Template, error) {
	return b.spawn.BuildTemplate(ctx, req, out, func() error { return nil })
}

func (b *bed) RemoveTemplate(ctx context.Context, name string, req api.TemplateRemoval) (api.Template, error) {
	return b.spawn.RemoveTemplate(ctx, name, req)
}

func (b *bed) Templates() []api.Template { return b.spawn.Templates() }

func (b *bed) Template(name string) (api.Template, error) { return b.spawn.Template(name) }

// listOf are the cells that a caller sees.
func listOf(v *View) []api.Cell {
	list, _, _ := v.Cells(state.Query{})
	return list
}

func (b *bed) Verify(sel, dir string) (api.Verification, error) {
	return b.All().Verify(sel, dir)
}

// open starts a daemon's engine on the bed.
func (b *bed) open() {
	b.Helper()
	key, err := receipt.OpenKey(durable.Disk(b.home.Keys()))
	b.must(err)
	b.ledger, err = receipt.OpenLedger(durable.Disk(b.home.Ledger()), key)
	b.must(err)
	b.objects, err = disk.Open(b.home.Trees())
	b.must(err)
	var objects store.Store = b.objects
	if b.wrap != nil {
		objects = b.wrap(objects)
	}
	credentials, err := credential.Open(credential.Config{Dir: durable.Disk(b.home.Credentials()), Keys: durable.Disk(b.home.Keys()), Open: os.Open})
	b.must(err)
	b.Engine, err = Open(b.ctx, Config{
		Home: b.home, MaxState: b.maxState, MinFree: b.minFree, ReachGrace: 300 * time.Millisecond, Log: slog.New(slog.NewTextHandler(b.Output(), &slog.HandlerOptions{Level: slog.LevelError})), Backends: []backend.Backend{&toyBackend{b.host.Open(), b.toys}},
		Providers: []workspace.Provider{clone.New(b.home.Layers())}, Objects: objects, Ledger: b.ledger, Credentials: credentials, Version: "test",
		User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "u", Home: "/home/u"}, Host: policy.Host{CPUs: 2, Memory: 4 << 30},
	})
	b.must(err)
}

func (b *bed) close() {
	b.Helper()
	b.must(b.Engine.Close())
	b.must(b.ledger.Close())
	b.must(b.objects.Close())
}

// reopen ends the daemon and starts the next.
func (b *bed) reopen() {
	b.Helper()
	b.close()
	b.open()
}

// events makes the stream of a run as cmd does.
func events(f *os.File, run string) server.Events {
	return &stream{f, receipt.NewEventWriter(f, receipt.StartChain(cell.RunID(run)))}
}

type stream struct {
	f *os.File
	w *receipt.EventWriter
}

func (s *stream) Emit(kind string, fields any) { s.w.Emit(kind, fields) }

func (s *stream) Seal() error { defer s.f.Close(); return s.w.Sync() }

// write puts a file into the source.
func (b *bed) write(path, text string) {
	b.Helper()
	p := filepath.Join(b.src, path)
	b.must(os.MkdirAll(filepath.Dir(p), 0o755))
	b.must(os.WriteFile(p, []byte(text), 0o644))
}

// request is a run of a script in a cell; "" is a new anonymous one.
func (b *bed) request(name, script string) api.RunRequest {
	return api.RunRequest{Command: []string{"sh", "-c", script}, From: b.src, Cell: name, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}}
}

// do runs a request to its end.
func (b *bed) do(req api.RunRequest) api.Run {
	b.Helper()
	r, err := b.StartRun(b.ctx, req)
	b.must(err)
	r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID))
	b.must(err)
	return r
}

func (b *bed) run(name, script string) api.Run {
	b.Helper()
	r := b.do(b.request(name, script))
	if r.Error != nil {
		b.Fatalf("run of %q: %s", script, r.Error.Message)
	}
	return r
}

// begin starts a run that executes a script, and another when the function is called, which waits for its end.
func (b *bed) begin(name, first, then string) (r api.Run, goOn func() api.Run) {
	b.Helper()
	return b.beginWith(name, first, then, func(*api.RunRequest) {})
}

func (b *bed) beginWith(name, first, then string, change func(*api.RunRequest)) (r api.Run, goOn func() api.Run) {
	b.Helper()
	dir := b.TempDir()
	req := b.request(name, fmt.Sprintf("%s; : > %s/ready; while ! test -e %s/go; do sleep 0.01; done; %s", first, dir, dir, then))
	change(&req)
	r, err := b.StartRun(b.ctx, req)
	b.must(err)
	testenv.Eventually(b, func() bool {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err == nil
	}, "the first half of the script")
	return r, func() api.Run {
		b.Helper()
		b.must(os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
		r, err := b.runs.Wait(b.ctx, cell.RunID(r.ID))
		b.must(err)
		return r
	}
}

func (b *bed) id(name string) cell.ID {
	b.Helper()
	id, err := b.SelectCell(name, b.src)
	b.must(err)
	return id
}

// has asserts the files of a cell's head, as "path: content", all of them.
func (b *bed) has(name string, files ...string) {
	b.Helper()
	c, err := b.reg.Cell(b.id(name))
	b.must(err)
	k, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	b.holds(name, &k, files...)
}

func (b *bed) holds(what string, k *state.Checkpoint, files ...string) {
	b.Helper()
	s, err := b.side(b.ctx, k)
	if err != nil {
		b.Errorf("%s: %v", what, err)
		return
	}
	got := []string{}
	err = s.Tree.Walk("", func(path string, e workspace.Entry) error {
		if e.Type != workspace.File {
			return nil
		}
		f, err := s.Contents.Open(path, e)
		if err != nil {
			return err
		}
		defer f.Close()
		text := make([]byte, e.Size+1)
		n, _ := f.Read(text)
		got = append(got, path+": "+strings.TrimSpace(string(text[:n])))
		return nil
	})
	sort.Strings(files)
	if err != nil || strings.Join(got, "\n") != strings.Join(files, "\n") {
		b.Errorf("%s has %q (%v), want %q", what, got, err, files)
	}
}

// verified asserts that every receipt there is can be verified.
func (b *bed) verified() {
	b.Helper()
	v, err := b.Verify("all", b.src)
	if err != nil || !v.OK {
		b.Errorf("verify: %+v, %v", v, err)
	}
}

// soon is a context for what must not be waited for.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
