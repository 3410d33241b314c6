package backendtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// Of several concurrent creations of one cell one succeeds, and the others do not disturb it.
func testExists(k *bench) {
	s := k.spec()
	var wg sync.WaitGroup
	made, errs := make([]backend.Instance, 4), make([]error, 4)
	for n := range made {
		wg.Go(func() { made[n], errs[n] = k.b.Create(k.ctx, s) })
	}
	wg.Wait()
	var winner backend.Instance
	for n, err := range errs {
		switch {
		case err == nil && winner == nil:
			winner = made[n]
			k.made = append(k.made, winner)
		case err == nil:
			k.Error("a cell was made twice")
			k.made = append(k.made, made[n])
		default:
			k.wantKind("a cell that is there", err, cell.Exists)
		}
	}
	if winner == nil {
		k.Fatal("no creation of the cell succeeded")
	}
	_, err := k.b.Create(k.ctx, s)
	k.wantKind("a second Create", err, cell.Exists)
	if st, _ := k.run(winner, "exit 4"); st.Exit.Code != 4 {
		k.Errorf("in the winner's cell: %+v", *st.Exit)
	}
	again, err := k.b.Attach(k.ctx, s.ID, "")
	k.must(err)
	again.Close()
}

// living checks whether a cell is among the living ones.
func (k *bench) living(id, family cell.ID, want bool) {
	k.Helper()
	list, err := k.b.Living(k.ctx)
	if got := slices.Contains(list, cell.Held{ID: id, Family: family}); err != nil || got != want {
		k.Errorf("cell %s of family %q is among those that live: %v; %v, %v", id, family, got, list, err)
	}
}

// The daemon's end ends nothing: another daemon finds the cell, its processes, their output and
// their exit status.
func testAttach(k *bench) {
	i, s := k.cell()
	go1 := filepath.Join(k.folder(s), "go")
	p, err := i.Start(k.ctx, "long", sh("echo one; while ! test -e go; do sleep 0.02; done; echo two; exit 4"), [3]*os.File{})
	k.must(err)
	pid := p.PID()
	was, _ := json.Marshal(i.Assurance())
	measured, _ := json.Marshal(p.Assurance())
	i.Close()
	k.made = nil
	k.end()
	k.open()
	if found, err := k.b.Leftovers(k.ctx, false); err != nil || len(found) > 0 {
		k.Errorf("a living cell was taken for a leftover: %v, %v", found, err)
	}
	k.living(s.ID, "", true)
	_, err = k.b.Create(k.ctx, s)
	k.wantKind("making a cell that another daemon made", err, cell.Exists)
	i, err = k.b.Attach(k.ctx, s.ID, "")
	k.must(err)
	k.made = append(k.made, i)
	if now, _ := json.Marshal(i.Assurance()); string(now) != string(was) || i.ID() != s.ID {
		k.Errorf("attached to %s, assurance %s; it was %s, %s", i.ID(), now, s.ID, was)
	}
	p, err = i.Process(k.ctx, "long")
	k.must(err)
	if now, _ := json.Marshal(p.Assurance()); string(now) != string(measured) || p.PID() != pid {
		k.Errorf("found process %d, assurance %s; it was %d, %s", p.PID(), now, pid, measured)
	}
	k.must(os.WriteFile(go1, nil, 0o644))
	got := k.stream(p, backend.Offsets{}, false, "", nil)
	if got.stdout != "one\ntwo\n" || got.status.Exit == nil || *got.status.Exit != (cell.Exit{Code: 4}) {
		k.Errorf("what came of it: %+v", got)
	}
}

func testRemove(k *bench) {
	i, s := k.cell()
	k.start(i, sh("sleep 300"))
	// One in its own session, which can leave a cell without isolation. It ends with the test
	// at the latest.
	k.must(os.WriteFile(filepath.Join(k.folder(s), "live"), nil, 0o644))
	k.run(i, "setsid sh -c 'while test -e live; do echo x >> beat; sleep 0.02; done' >/dev/null 2>&1 & sleep 301 >/dev/null 2>&1 & echo kept > f")
	beat := filepath.Join(k.folder(s), "beat")
	k.eventually("the session lived", grows(beat))
	if len(k.m.Left()) == 0 {
		k.Fatal("Left sees nothing of a living cell")
	}
	k.must(i.Remove(k.ctx, "removed"))
	k.nothingLeft()
	if on := grows(beat); k.caps.Isolation == "" {
		time.Sleep(100 * time.Millisecond)
		if on() {
			k.Error("a session of a removed cell goes on")
		}
	}
	k.must(os.Remove(filepath.Join(k.folder(s), "live")))
	k.must(i.Remove(k.ctx, "again"))
	_, err := k.b.Attach(k.ctx, s.ID, "")
	k.wantKind("a removed cell", err, cell.NotFound)
	k.living(s.ID, "", false)
	for _, dry := range []bool{true, false} {
		if found, err := k.b.Leftovers(k.ctx, dry); err != nil || len(found) > 0 {
			k.Errorf("left over: %v, %v", found, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(k.folder(s), "f")); err != nil || string(b) != "kept\n" {
		k.Errorf("the files below the spec's paths: %q, %v", b, err)
	}
	// The identifier is free again, and instances of the previous cell have no effect.
	before := i
	i = k.create(s)
	k.must(before.Remove(k.ctx, "once more"))
	if _, err := before.KillAll(k.ctx, "late"); cell.KindOf(err) != cell.Unavailable && cell.KindOf(err) != cell.NotFound {
		k.Errorf("a removed cell answers in place of the new one: %v", err)
	}
	if st, _ := k.run(i, "cat f"); st.Exit.Code != 0 {
		k.Errorf("in the new cell: %+v", *st.Exit)
	}
}

func testNotFound(k *bench) {
	_, err := k.b.Attach(k.ctx, cell.NewID(), "")
	k.wantKind("a cell that never was", err, cell.NotFound)
	i, s := k.cell()
	other, err := k.b.Attach(k.ctx, s.ID, "")
	k.must(err)
	defer other.Close()
	k.must(i.Remove(k.ctx, "removed"))
	// Clients of the previous cell get an error, and never reach another cell.
	if _, err := other.Start(k.ctx, "late", sh("exit 0"), [3]*os.File{}); cell.KindOf(err) != cell.NotFound && cell.KindOf(err) != cell.Unavailable {
		k.Errorf("starting in a removed cell: %v", err)
	}
	if _, err := other.List(k.ctx); err == nil {
		k.Error("listing a removed cell works")
	}
	k.must(other.Remove(k.ctx, "gone already"))
}
