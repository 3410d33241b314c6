package govern

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/state"
)

// What a fork of an interpreter needs to talk is its lineage's, but for
// placeholders and sockets.

// ForkGovernance is what the gateway of a fork goes by that has no identity
// yet: the policy, and nothing that was lent. nil for one that does not talk.
func (m *Manager) ForkGovernance(c *state.Cell) (*cell.Governance, error) {
	if !c.Talks() {
		return nil, nil
	}
	a, err := m.lineage(c)
	if err != nil {
		return nil, err
	}
	return m.rules(c, a)
}

// lineage reads the authority of the cell that a fork was made from.
func (m *Manager) lineage(c *state.Cell) (cell.Authority, error) {
	from, err := m.cfg.Records.Cell(c.Parent.Cell)
	if err != nil {
		return cell.Authority{}, err
	}
	return m.authority(&from)
}

// CopyTalk gives a fork files of its own for what it sees of its resolver and
// its authorities: the same ones, which nothing writes to, in a directory in
// which sockets are its own.
func (m *Manager) CopyTalk(c *state.Cell, mounts []cell.Mount) error {
	if !c.Talks() {
		return nil
	}
	for i := range mounts {
		if mounts[i].Role == cell.RoleNetwork {
			mounts[i].Source = m.TalkSource(c.ID, &mounts[i])
		}
	}
	to := m.TalkDir(c.ID)
	if err := os.Mkdir(to, 0o755); errors.Is(err, fs.ErrExist) {
		return nil // of a source that goes on in a branch
	} else if err != nil {
		return err
	}
	from := m.TalkDir(c.Parent.Cell)
	names, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n.IsDir() { // that of its agent
			if err := os.Mkdir(filepath.Join(to, n.Name()), 0o755); err != nil {
				return err
			}
		}
		if n.Type().IsRegular() {
			if err := os.Link(filepath.Join(from, n.Name()), filepath.Join(to, n.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Link(filepath.Join(m.folder(c.Parent.Cell), authorityFile), filepath.Join(m.folder(c.ID), authorityFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// LendFork lends a fork what its policy says, with placeholders of its own: the
// records are to be made durable with it. a gets its variables, and what its
// gateway goes by.
func (m *Manager) LendFork(c *state.Cell, a *cell.Adoption) ([]*state.Lending, error) {
	var lendings []state.Lending
	var out []*state.Lending
	copied := false
	if len(c.Setup.Handles) > 0 {
		var err error
		if copied, err = m.cfg.Captures(m.cfg.Life, c); err != nil {
			return nil, err
		}
	}
	for _, h := range c.Setup.Handles {
		known, _, err := m.cfg.Credentials.Get(h)
		if err != nil {
			return nil, cannotLend(h, err)
		}
		was, had := m.cfg.Records.Lending(c.Parent.Cell, h)
		if had && !was.Revoked.IsZero() {
			continue // taken back from the cell that it was forked from
		}
		l := state.Lending{Cell: c.ID, Handle: h, Since: time.Now().UTC()}
		switch {
		case known.Kind != credential.Token:
		case had && copied: // what runs in a copy has it in its memory
			l.Placeholder = was.Placeholder
		default:
			l.Placeholder = known.Placeholder()
		}
		lendings = append(lendings, l)
		out = append(out, &l)
	}
	for _, kv := range m.envOf(lendings, c.Setup.Env) {
		name, value, _ := strings.Cut(kv, "=")
		a.Env[name] = value
	}
	if !c.Talks() {
		return out, nil
	}
	au, err := m.lineage(c)
	if err != nil {
		return nil, err
	}
	if a.Network, err = m.rules(c, au); err != nil {
		return nil, err
	}
	a.Network.Credentials, a.Network.Keys = m.valuesOf(lendings), m.keysOf(c, lendings)
	return out, nil
}
