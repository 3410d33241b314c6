package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/state"
)

// What a fork of an interpreter needs to talk is its lineage's, but for
// placeholders and sockets.

// pooledGovernance is what the gateway of a fork goes by that has no identity
// yet: the policy, and nothing that was lent. nil for one that does not talk.
func (e *Engine) pooledGovernance(c *state.Cell) (*cell.Governance, error) {
	if !c.Talks() {
		return nil, nil
	}
	a, err := e.lineage(c)
	if err != nil {
		return nil, err
	}
	return e.rules(c, a)
}

// lineage reads the authority of the cell that a fork was made from.
func (e *Engine) lineage(c *state.Cell) (cell.Authority, error) {
	from, err := e.reg.Cell(c.Parent.Cell)
	if err != nil {
		return cell.Authority{}, err
	}
	return e.authority(&from)
}

// copyTalk gives a fork files of its own for what it sees of its resolver and
// its authorities: the same ones, which nobody writes to, in a directory in
// which sockets are its own.
func (e *Engine) copyTalk(c *state.Cell, mounts []cell.Mount) error {
	if !c.Talks() {
		return nil
	}
	to := filepath.Join(e.private(c.ID), talkFolder)
	for i := range mounts {
		if m := &mounts[i]; m.Role == cell.RoleNetwork {
			m.Source = filepath.Join(to, talkName(m))
		}
	}
	if err := os.Mkdir(to, 0o755); errors.Is(err, fs.ErrExist) {
		return nil // of a source that goes on in a branch
	} else if err != nil {
		return full(err)
	}
	from := filepath.Join(e.private(c.Parent.Cell), talkFolder)
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
	if err := os.Link(filepath.Join(e.private(c.Parent.Cell), authorityFile), filepath.Join(e.private(c.ID), authorityFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lendFork lends a fork what its policy says, with placeholders of its own: the
// records are to be made durable with it. a gets its variables, and what its
// gateway goes by.
func (e *Engine) lendFork(c *state.Cell, a *cell.Adoption) ([]*state.Lending, error) {
	var lendings []state.Lending
	var out []*state.Lending
	whole := false
	if len(c.Setup.Handles) > 0 {
		var err error
		if whole, err = e.captures(e.life, c); err != nil {
			return nil, err
		}
	}
	for _, h := range c.Setup.Handles {
		known, _, err := e.cfg.Credentials.Get(h)
		if err != nil {
			return nil, govern.CannotLend(h, err)
		}
		was, had := e.reg.Lending(c.Parent.Cell, h)
		if had && !was.Revoked.IsZero() {
			continue // taken back from the cell that it was forked from
		}
		l := state.Lending{Cell: c.ID, Handle: h, Since: time.Now().UTC()}
		switch {
		case known.Kind != credential.Token:
		case had && whole: // what runs in a copy has it in its memory
			l.Placeholder = was.Placeholder
		default:
			l.Placeholder = credential.Placeholder(known.Shape)
		}
		lendings = append(lendings, l)
		out = append(out, &l)
	}
	for _, kv := range e.envOf(lendings) {
		name, value, _ := strings.Cut(kv, "=")
		a.Env[name] = value
	}
	if !c.Talks() {
		return out, nil
	}
	au, err := e.lineage(c)
	if err != nil {
		return nil, err
	}
	if a.Network, err = e.rules(c, au); err != nil {
		return nil, err
	}
	a.Network.Credentials, a.Network.Keys = e.valuesOf(lendings), e.keysOf(c, lendings)
	return out, nil
}
