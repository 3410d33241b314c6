package gc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/volume"
	"github.com/pando-dev/pando/internal/workspace"
)

// DropCell frees, in the background, what a removed cell held and nothing else needs. What it
// misses, Collect finds.
func (m *Manager) DropCell(c *state.Cell) {
	gone := *c
	m.cfg.Dropped(c)
	m.cfg.Background(func(ctx context.Context) {
		if err := m.cfg.AwaitGone(context.WithoutCancel(ctx), gone.ID); err != nil {
			return
		}
		if !m.cfg.Records.Lowers(gone.ID) {
			if err := m.RemoveFolder(gone.ID); err != nil {
				m.cfg.Log.Warn("cannot remove a cell's files", "cell", gone.ID, "error", err)
			}
		}
		m.mu.Lock()
		m.gone = append(m.gone, &gone)
		busy := m.dropping
		m.dropping = true
		m.mu.Unlock()
		if !busy {
			m.dropGone()
		}
	})
}

// dropGone frees the layers of the cells that were removed meanwhile, until there are none.
func (m *Manager) dropGone() {
	for {
		m.mu.Lock()
		list := m.gone
		m.gone = nil
		m.dropping = len(list) > 0
		m.mu.Unlock()
		if len(list) == 0 {
			return
		}
		beside := sync.OnceValue(m.beside)
		var ids []cell.ID
		for _, c := range list {
			ids = append(ids, c.ID)
			m.dropWritable(c, beside)
			if known := m.cfg.Records.CheckpointIDs(c.ID); len(known) > 1 || c.Parent != nil { // else it had a base alone, which other cells of the source have too
				m.dropFrozen(known, beside)
			}
		}
		m.KeepReserve() // there may be room for it again
		if _, err := m.forget(ids, time.Time{}); err != nil {
			m.cfg.Log.Warn("cannot drop the records of removed cells", "error", err)
		}
	}
}

// KeepRemoved is how long the records of a removed cell stay that no other record needs: as
// long as an operation or an idempotency key that names the cell is known.
const KeepRemoved = 24 * time.Hour

// keptRemoved is how many such cells stay, or half as many more.
const keptRemoved = 200

// forget drops the records of removed cells that no other record needs, and returns how many
// there were: see state.Registry.Forgettable. Forks with memory, ids, leave none at all, since
// there may be a hundred thousand; their receipt says that they were there.
func (m *Manager) forget(ids []cell.ID, before time.Time) (n int, err error) {
	for {
		objects := m.cfg.Records.Forgettable(ids, before, keptRemoved)
		if len(objects) == 0 {
			return n, nil
		}
		if err := m.cfg.Records.Commit(objects...); err != nil {
			return n, err
		}
		n += len(objects)
	}
}

// dropFrozen removes the layers of a removed cell's checkpoints that are not needed.
func (m *Manager) dropFrozen(checkpoints []cell.CheckpointID, beside func() *needs) {
	for _, id := range checkpoints {
		k, err := m.cfg.Records.Checkpoint(id)
		if err != nil {
			continue
		}
		for _, s := range k.States() {
			for _, l := range s.Layers {
				if m.unneeded(beside, l, "") {
					m.DropLayer(s.Provider, l)
				}
			}
		}
	}
}

// dropWritable removes the writable layers of a removed cell, which records alone can name:
// those of forks of a template. Below its home and /tmp are layers that no checkpoint names.
func (m *Manager) dropWritable(c *state.Cell, beside func() *needs) {
	for _, g := range c.Gens() {
		if !m.cfg.Records.NamesLayer(g.Layer, "") {
			m.DropLayer(c.Provider, g.Layer)
		}
		if g == c.Gen {
			continue
		}
		for _, l := range g.Base.Layers {
			if m.unneeded(beside, l, "") {
				m.DropLayer(c.Provider, l)
			}
		}
	}
}

// DropStates removes the layers of a checkpoint that nothing else names, and returns how much
// space they hold, in bytes. With dry it removes nothing.
func (m *Manager) DropStates(k *state.Checkpoint, dry bool) (freed int64, err error) {
	beside := sync.OnceValue(m.beside)
	for _, s := range k.States() {
		p, err := m.cfg.Provider(s.Provider)
		if err != nil {
			return freed, err
		}
		for _, l := range s.Layers {
			if !m.unneeded(beside, l, k.ID) {
				continue
			}
			if size, err := p.Size(l); err == nil {
				freed += size
			}
			if !dry {
				if err := p.Drop(l); err != nil && !os.IsNotExist(err) {
					return freed, err
				}
			}
		}
	}
	return freed, nil
}

// DropLayer removes a layer that nothing names.
func (m *Manager) DropLayer(provider, layer string) {
	p, err := m.cfg.Provider(provider)
	if err == nil {
		err = p.Drop(layer)
	}
	if err != nil && !os.IsNotExist(err) {
		m.cfg.Log.Warn("cannot remove a layer", "layer", layer, "error", err)
	}
}

// RemoveFolder removes what belonged to a removed cell alone.
func (m *Manager) RemoveFolder(id cell.ID) error {
	dir := m.folder(id)
	if volume.Exists(dir) {
		return volume.Remove(dir)
	}
	return workspace.RemoveTree(dir)
}

// RemoveCheckpoint drops a checkpoint of a cell. What forks of it need stays, and the record
// explains old receipts. The one that the workspace is at can't go. The caller has the cell's
// lock.
func (m *Manager) RemoveCheckpoint(c *state.Cell, number int) error {
	const opName = "gc.RemoveCheckpoint"
	if err := m.cfg.Records.Unheld(c.ID, "remove", fmt.Sprintf("checkpoint %s@%d", c.Title(), number)); err != nil {
		return err
	}
	k, err := m.cfg.Records.Numbered(c.ID, number)
	switch {
	case err != nil:
		return err
	case k.Gone:
		return cell.Errorf(cell.NotFound, opName, "", "checkpoint %s@%d was removed already", c.Title(), number)
	case k.ID == c.Head && k.Message == "":
		return cell.Errorf(cell.Conflict, opName, "remove the cell", "cannot remove checkpoint %s@%d: the cell is at it", c.Title(), number)
	case k.ID == c.Head: // its state is the cell's: only its name goes
		k.Message = ""
	case m.cfg.Records.HasRun(&k):
		return cell.Errorf(cell.Conflict, opName, "discard the run", "cannot remove checkpoint %s@%d: it belongs to run %s", c.Title(), number, k.Run)
	case m.beginsResult(c.ID, k.ID):
		return cell.Errorf(cell.Conflict, opName, "wait until the run has ended, or discard it", "cannot remove checkpoint %s@%d: a run began at it, and its result is kept", c.Title(), number)
	default:
		if m.cfg.Records.IsPart(c, k.ID) {
			return cell.Errorf(cell.Conflict, opName, "it goes with that", "cannot remove checkpoint %s@%d: a checkpoint of the cell that it serves has it", c.Title(), number)
		}
		k.Gone = true
	}
	return m.cfg.Records.Commit(&k)
}

// ForgetLooked drops a checkpoint that was made only to show what there was, unless it came to be more than that. The
// caller has the cell's lock.
func (m *Manager) ForgetLooked(c *state.Cell, at cell.CheckpointID) error {
	k, err := m.cfg.Records.Checkpoint(at)
	if err != nil || k.Gone || k.Kind != state.KindLooked || k.Message != state.LookedMessage || c.Head == at || slices.Contains(c.KnownAt, at) {
		return err
	}
	if slices.ContainsFunc(m.cfg.Records.Runs(c.ID), func(r state.Run) bool { return r.In.Before == at || r.In.After == at }) {
		return nil
	}
	k.Gone = true
	return m.cfg.Records.Commit(&k)
}

// beginsResult reports whether a run began at a checkpoint that goes on, or has a result that is kept.
func (m *Manager) beginsResult(id cell.ID, at cell.CheckpointID) bool {
	return slices.ContainsFunc(m.cfg.Records.Runs(id), func(r state.Run) bool {
		if r.In.Before != at || r.Phase != cell.Ended {
			return r.In.Before == at
		}
		after, err := m.cfg.Records.Checkpoint(r.In.After)
		return err == nil && !after.Gone && after.ID != at
	})
}

// GiveUp removes the layers of a checkpoint after commit made it durable that it is gone. Where the
// disk is too full for that, what is removed makes room.
func (m *Manager) GiveUp(k *state.Checkpoint, commit func() error) error {
	err := m.Freeing(commit)
	full := durable.IsFull(err)
	if err != nil && !full {
		return err
	}
	if _, err = m.DropStates(k, false); err == nil && full { // not even the reserve was there
		err = commit()
	}
	m.KeepReserve() // there may be room for it again
	return err
}
