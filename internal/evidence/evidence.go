// Package evidence keeps the proof of what happened in cells: receipts of runs, of acts and of
// batches of new cells, and what lies in the folder of a run: its manifest, output and events.
// It writes them, shows and exports them, and compares records and files with what was signed.
//
// It promises that an act and its receipt are one, also after a crash (Seal, CommitBatch, Resume),
// and that a key has one receipt. The caller decides what happened, gives its records their states and
// verdicts, and holds the locks of their cells. What a caller from outside may see is the engine's
// to say: see Reader.
//
// A Manager has no state beside the ledger and the registry, and no lock of its own.
package evidence

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Config is what a Manager is made of.
type Config struct {
	Ledger  *receipt.Ledger
	Records *state.Registry
	Home    paths.Home // of the ledger and its key
	Log     *slog.Logger
	Version string    // of pando
	User    cell.User // that cells belong to
	Host    policy.Host

	// Ending returns the channel that closes when a run ends, nil for a run that is not under way.
	Ending func(cell.RunID) <-chan struct{}
	// Background starts work that outlives its request.
	Background func(func(context.Context))
}

// Manager writes and reads evidence. It is safe for concurrent use.
type Manager struct{ cfg Config }

// New makes a Manager.
func New(cfg Config) *Manager { return &Manager{cfg} }

// Sealed reports whether there is a receipt with a key.
func (m *Manager) Sealed(key string) bool {
	_, err := m.cfg.Ledger.Lookup(key)
	return err == nil
}

// Origin is the name of the installation's ledger.
func (m *Manager) Origin() string { return m.cfg.Ledger.Keys().Origin() }

// PublicKey is the public key that receipts are signed with now, PEM.
func (m *Manager) PublicKey() []byte { return m.cfg.Ledger.Keys().Current().PEM() }

func unmarshal(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return cell.Errorf(cell.Corrupt, "evidence", "", "cannot read a record: %w", err)
	}
	return nil
}

// predicate reads what a receipt says.
func predicate[T any](entry receipt.Entry) (p T, err error) {
	s, err := entry.Statement()
	if err != nil {
		return p, err
	}
	return p, unmarshal(s.Predicate, &p)
}

func digest(s string) cell.Digest {
	d, _ := cell.ParseDigest(s)
	return d
}
