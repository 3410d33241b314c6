// Package state keeps what an installation knows: cells, checkpoints, runs, templates, leases,
// and what else must outlive the daemon. The registry has all of it in memory, with an index,
// and on disk in one journal. What Commit was given is durable when Commit returns, all of it or
// nothing.
//
// Records are values: a caller gets a copy, changes that, and commits it. It holds the lock of
// the cell meanwhile (CellLocks), so that commits of one object are in order; the registry does
// not check this.
//
// Lock order: 1. the lock of a cell, 2. Registry.rewriting, 3. Registry.mu.
package state
