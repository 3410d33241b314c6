package spawn

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// What forks of a warm template stand on can be changed beside pando, by
// a program that writes to its layers. Reading all of it for each fork would cost
// more than the forks. So their files are looked at, not read, beside the work,
// and not again within a moment; what looks different is read, and judged by
// its digest.

// lookAgainAfter is how long a template's files, once looked at, are taken for
// unchanged.
const lookAgainAfter = 2 * time.Second

// sight is what a template's files looked like.
type sight struct {
	looks cell.Digest
	at    time.Time
}

// unchanged looks whether the files that a template's forks begin on are what they
// were. A change is an error that names what was expected and what was found.
func (m *Manager) unchanged(ctx context.Context, par *warmParent) error {
	m.mu.Lock()
	was := m.sights[par.c.ID]
	m.mu.Unlock()
	if time.Since(was.at) < lookAgainAfter {
		return nil
	}
	looks, err := m.looksOfState(ctx, par.at.State)
	if err == nil && looks != was.looks {
		err = m.sameParent(ctx, &par.t, &par.at)
	} else if err != nil && ctx.Err() == nil {
		err = cell.Errorf(cell.Corrupt, "spawn.template", "build it anew: pando template build "+par.t.Name,
			"cannot fork template %s: its workspace can't be looked at: expected %s, found: %w", par.t.Name, par.at.Tree, err)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.sights[par.c.ID] = sight{looks, time.Now()}
	m.mu.Unlock()
	return nil
}

// looksOfState is the digest of names, types, sizes and times in the layers of a
// state.
func (m *Manager) looksOfState(ctx context.Context, s workspace.State) (sum cell.Digest, err error) {
	h := sha256.New()
	for _, l := range s.Layers {
		root, err := workspace.OpenRoot(filepath.Join(m.cfg.Home.Layers(), l, "fs"))
		if err != nil {
			return sum, err
		}
		all, err := workspace.Collect(ctx, root)
		root.Close()
		if err != nil {
			return sum, err
		}
		for i := range all {
			st := &all[i].Stat
			fmt.Fprintf(h, "%q", all[i].Path)
			var b []byte
			for _, n := range []int64{int64(st.Mode), st.Size, st.MTime, st.CTime} {
				b = binary.AppendVarint(b, n)
			}
			h.Write(b)
		}
	}
	return cell.Digest(h.Sum(nil)), nil
}
