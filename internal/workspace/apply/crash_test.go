package apply

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// Tests do not wait for the disk; what is synced when is tested below.
var _ = func() bool {
	fsync = func(int) error { return nil }
	syncfs = fsync
	return true
}()

// Each step is durable before the next one relies on it: the plan before the
// staging folder, staged files and the journal before anything moves, the
// moves before the journal says that all is done, and that before the
// originals go.
func TestApplySyncsInOrder(t *testing.T) {
	var calls []string
	note := func(name string) func(int) error {
		return func(fd int) error {
			path, _ := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
			switch base := filepath.Base(path); {
			case base == journalName:
				name = "journal"
			case strings.HasPrefix(base, stagePrefix):
				name = "stage"
			case len(base) == 2 && base[0] == 'n':
				name = "file"
			default:
				name = "folder"
			}
			calls = append(calls, "sync "+name)
			return nil
		}
	}
	defer func(f, s func(int) error) { fsync, syncfs = f, s }(fsync, syncfs)
	fsync, syncfs = note("f"), note("s")
	base := wt.Model{"d/a": wt.Plain("1"), "d/b": wt.Plain("1")}
	req := applyRequest(t, sourceOf(t, base), base, wt.Model{"d/a": wt.Plain("2")})
	req.hook = func(step, path string) error {
		calls = append(calls, step)
		return nil
	}
	mustApply(t, req)
	const want = `journal, sync journal, sync folder, stage, write, sync file, sync stage, journal, sync journal, ` +
		`recheck, recheck, take, put, prune, sync folder, sync folder, journal, sync journal, clean`
	if diff := cmp.Diff(strings.Split(want, ", "), calls); diff != "" {
		t.Error(diff)
	}
	// A failing sync is a failing apply.
	for n := range 6 {
		dir := sourceOf(t, base)
		before := snapshotOf(t, dir)
		req := applyRequest(t, dir, base, wt.Model{"d/a": wt.Plain("2")})
		left := n
		fsync = func(int) error {
			if left--; left == -1 {
				return unix.EIO
			}
			return nil
		}
		if _, err := doOne(context.Background(), req); !errors.Is(err, unix.EIO) {
			t.Errorf("sync %d fails: %v", n, err)
		}
		leftNothing(t, req)
		unchanged(t, dir, before)
	}
}

// A failure before any step leaves the source as it was, down to times and
// owners of files and folders, and nothing else.
func TestF23ApplyUndoesAtEveryStep(t *testing.T) {
	t.Parallel()
	base, after := everything()
	for fail := 0; ; fail++ {
		dir := sourceOf(t, base)
		req := applyRequest(t, dir, base, after)
		old := time.Now().Add(-time.Hour)
		for p := range wt.Read(t, dir).With(".", wt.Thing{}) {
			os.Chtimes(filepath.Join(dir, p), old, old)
		}
		before := snapshotOf(t, dir)
		n, at := 0, ""
		req.hook = func(step, path string) error {
			if n++; n-1 == fail && !strings.HasPrefix(step, "undo") {
				at = step + " " + path
				return unix.ENOSPC
			}
			return nil
		}
		res, err := doOne(context.Background(), req)
		if at == "" {
			if err != nil || fail < 40 {
				t.Fatalf("step %d: %v", fail, err)
			}
			leftNothing(t, req)
			return
		}
		if strings.HasPrefix(at, "clean") {
			if got := wt.ContentDigest(t, dir); err == nil || len(res.Applied) == 0 || got == req.Base.ContentDigest() {
				t.Errorf("at %s: %v", at, err)
			}
			if r, err := Recover(context.Background(), req.Backup); err != nil || r.Outcome != "finished" {
				t.Errorf("%+v, %v", r, err)
			}
			os.Remove(req.Backup)
			leftNothing(t, req)
			continue
		}
		if cell.KindOf(err) != cell.Unavailable || !errors.Is(err, unix.ENOSPC) || !strings.HasPrefix(err.Error(), "cannot ") || res.Applied != nil {
			t.Errorf("at %s: %v, %+v", at, err, res)
		}
		if _, path, _ := strings.Cut(at, " "); !strings.Contains(err.Error(), path) {
			t.Errorf("at %s: %v does not name the file", at, err)
		}
		leftNothing(t, req)
		unchanged(t, dir, before)
		if t.Failed() {
			t.Fatalf("failed at step %d, %s", fail, at)
		}
	}
}

// killed ends an Apply as kill -9 does: nothing that it would still do happens.
type killed struct{}

func killAt(n *int, at int) func(step, path string) error {
	return func(step, path string) error {
		if *n++; *n-1 == at {
			panic(killed{})
		}
		return nil
	}
}

func survives(f func()) (dead bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r)
			}
			dead = true
		}
	}()
	f()
	return false
}

// After a crash at any step, and a crash of the recovery itself at some step,
// the source is what it was or what it should become, and nothing is left.
func TestF19ApplyRecoversFromKill(t *testing.T) {
	for part := range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			killEverywhere(t, part, 4)
		})
	}
}

func killEverywhere(t *testing.T, first, stride int) {
	base, after := everything()
	r := rand.New(rand.NewSource(int64(first)))
	steps := 60 // of a recovery, about
	for at := first; ; at += stride {
		for _, again := range []int{-1, r.Intn(steps)} {
			dir := sourceOf(t, base)
			req := applyRequest(t, dir, base, after)
			req.Include = []string{"."}
			before := snapshotOf(t, dir)
			n := 0
			req.hook = killAt(&n, at)
			if dead := survives(func() { doOne(context.Background(), req) }); !dead {
				if at < 40 {
					t.Fatalf("only %d steps", at)
				}
				return
			}
			if again >= 0 {
				n = 0
				survives(func() { recoverWith(req.Backup, killAt(&n, again)) })
				steps = max(2, n)
			}
			if _, err := Recover(context.Background(), req.Backup); err != nil {
				t.Fatalf("killed at %d and %d: %v", at, again, err)
			}
			switch got := wt.ContentDigest(t, dir); got {
			case req.Base.ContentDigest():
				unchanged(t, dir, before)
			case req.After.Tree.ContentDigest():
			default:
				t.Errorf("half a state: %v", snapshotOf(t, dir))
			}
			os.Remove(req.Backup)
			leftNothing(t, req)
			if t.Failed() {
				t.Fatalf("killed at %d and %d", at, again)
			}
		}
	}
}

func TestRecoverOfNothing(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if r, err := Recover(context.Background(), dir); err != nil || r.Outcome != "nothing" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Random changes survive a failure and a kill at a random step.
func TestApplyRandomFailures(t *testing.T) {
	t.Parallel()
	for seed := range 150 {
		r := rand.New(rand.NewSource(int64(seed)))
		base := wt.Random(r)
		after := wt.Mutate(r, base)
		at := r.Intn(30)
		dir := sourceOf(t, base)
		req := applyRequest(t, dir, base, after)
		req.Include = []string{"."}
		before := snapshotOf(t, dir)
		n := 0
		req.hook = func(step, path string) error {
			if n++; n-1 == at && step != "clean" {
				return unix.EIO
			}
			return nil
		}
		if _, err := doOne(context.Background(), req); err != nil {
			unchanged(t, dir, before)
			n = 0
			req.hook = killAt(&n, at)
			if !survives(func() { doOne(context.Background(), req) }) {
				t.Fatal("not killed")
			}
			if _, err := Recover(context.Background(), req.Backup); err != nil {
				t.Fatal(err)
			}
			unchanged(t, dir, before)
			os.Remove(req.Backup)
		}
		leftNothing(t, req)
		if t.Failed() {
			t.Fatalf("seed %d, step %d", seed, at)
		}
	}
}
