package engine

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
)

// unreadable is a store that takes nothing while it is on, so that a tree which
// differs from those before can't be recorded.
type unreadable struct {
	store.Store
	on atomic.Bool
}

func (s *unreadable) Put(d cell.Digest, b []byte) error {
	if s.on.Load() {
		return errors.New("the tree can't be read")
	}
	return s.Store.Put(d, b)
}

// A run with a result that can't be read ends with that error, in its record and in
// its receipt. It is accepted under no option, and its cell is not lost.
func TestX08UnreadableResult(t *testing.T) {
	for _, x := range []struct {
		name, script string
		ask          func(*api.RunRequest)
		code         int
	}{
		{name: "success", script: "echo 1 > f"},
		{name: "success to be accepted", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.OnSuccess = "accept" }},
		{name: "success to be applied", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.OnSuccess = "apply" }},
		{name: "failure", script: "echo 1 > f; exit 3", code: 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			objects := &unreadable{}
			b := newBedWith(t, func(s store.Store) store.Store { objects.Store = s; return objects }, "f: 0")
			b.run("w", "true")
			objects.on.Store(true)
			req := b.request("w", x.script)
			if x.ask != nil {
				x.ask(&req)
			}
			r := b.do(req)
			if r.Error == nil || r.ExitCode == nil || *r.ExitCode != x.code || r.Phase != string(cell.Ended) || r.Verdict != string(cell.Pending) || r.After != nil {
				t.Fatalf("the run ended as %+v", r)
			}
			entry, err := b.ledger.Find(r.Receipt)
			b.must(err)
			s, err := entry.Statement()
			b.must(err)
			var p struct {
				Error   *state.Error  `json:"error"`
				After   *state.Point  `json:"after"`
				Verdict state.Verdict `json:"verdict"`
			}
			b.must(json.Unmarshal(s.Predicate, &p))
			if p.Error == nil || p.After != nil || p.Verdict.Verdict != cell.Pending {
				t.Errorf("the receipt says %+v", p)
			}
			for _, a := range []api.AcceptRequest{{}, {Apply: true}, {Force: true, Reason: "all the same"}, {Apply: true, Force: true, Reason: "all the same"}} {
				_, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, a)
				b.wantKind("accept", err, cell.Conflict, "could not be finished", "can't be read")
			}
			_, err = b.results.Diff(b.ctx, result.DiffRequest{Target: result.Target{Run: cell.RunID(r.ID)}})
			b.wantKind("diff", err, cell.Conflict, "could not be finished")
			if text, err := os.ReadFile(filepath.Join(b.src, "f")); err != nil || string(text) != "0" {
				t.Errorf("the source has %q, %v", text, err)
			}
			_, err = b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: 1})
			b.must(err)
			objects.on.Store(false)
			b.has("w", "f: 0")
			b.run("w", "echo 2 > f")
			b.has("w", "f: 2")
			b.verified()
		})
	}
}

// A cell with processes that can't be listed is no cell without processes: nothing
// takes it down, and no fork leaves them behind.
func TestX08ListErrorIsNotEmptiness(t *testing.T) {
	b := newBed(t, "f: 0")
	b.run("w", "true")
	id := b.id("w")
	x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
	b.must(err)
	inst := b.alive.Instance(id)
	b.toys.fail("list", cell.Errorf(cell.Unavailable, "toy.List", "", "the guest does not answer"))
	r := b.run("w", "echo 1 > f")
	if r.Verdict != string(cell.Pending) || b.ended(x.ID) || b.alive.Instance(id) != inst {
		t.Errorf("the run ended as %+v, and took down what runs beside it", r)
	}
	b.alive.Rest(b.ctx, id)
	if b.alive.Instance(id) != inst {
		t.Error("the cell was taken down as if nothing ran in it")
	}
	_, err = b.Fork(b.ctx, id, api.ForkRequest{Name: "d"})
	b.wantKind("fork", err, cell.Unsupported, "it has processes")
	b.toys.fail("list", nil)
	if list, err := b.alive.Processes(b.ctx, id); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	b.has("w", "f: 1")
}

// deepIn makes n folders called name in one another in dir, and a file with text
// in the last.
func deepIn(dir, name string, n int, text string) error {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < n && err == nil; i++ {
		var next int
		if err = unix.Mkdirat(at, name, 0o755); err == nil {
			next, err = unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(at)
		at = next
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, "transcript", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "transcript")
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// A lent credential is found however deep it lies in the cell's home. What of it
// can't be read is said not to have been searched.
func TestX08SearchOfADeepHome(t *testing.T) {
	for _, x := range []struct {
		name  string
		depth int
		found bool
	}{{"d", 3000, true}, {strings.Repeat("x", 200), 1300, false}} {
		b, c := lendingBed(t)
		flag := filepath.Join(t.TempDir(), "go")
		r, err := b.StartRun(b.ctx, b.request("a", "while ! test -e "+flag+"; do sleep 0.01; done"))
		b.must(err)
		b.starts(r)
		b.must(deepIn(b.ownDir(c, cell.RoleHome), x.name, x.depth, leak))
		b.must(os.WriteFile(flag, nil, 0o644))
		r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID))
		b.must(err)
		if r.Error != nil || r.Secrets == nil {
			t.Fatalf("%+v", r)
		}
		found := len(r.Secrets.Found) == 1 && r.Secrets.Found[0].In == state.InHome && strings.HasSuffix(r.Secrets.Found[0].Path, "transcript")
		said := strings.Contains(strings.Join(r.Secrets.NotScanned, "\n"), "in home and /tmp: they can't be read")
		if found != x.found || said == x.found {
			t.Errorf("below %d folders: found %v, said not to be searched %v", x.depth, found, said)
		}
	}
}
