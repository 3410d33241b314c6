package govern

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

// talkFolder is where, in a cell's own folder, what it needs to talk is
// written.
const talkFolder = "net"

// authorityFile is where the authority of a cell's lineage is, in its folder.
// No mount of the cell shows it.
const authorityFile = "authority.json"

// authority returns the authority of a cell's lineage: its own, that of the
// cell it was forked from, or a new one.
func (m *Manager) authority(c *state.Cell) (cell.Authority, error) {
	for id := c.ID; ; {
		a, err := m.readAuthority(id)
		if err == nil && id != c.ID {
			err = m.writeAuthority(c.ID, a)
		}
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return a, err
		}
		of, err := m.cfg.Records.Cell(id)
		if err != nil || of.Parent == nil {
			break
		}
		id = of.Parent.Cell
	}
	a, err := gateway.NewAuthority("pando " + string(c.ID))
	if err != nil {
		return a, err
	}
	return a, m.writeAuthority(c.ID, a)
}

func (m *Manager) readAuthority(id cell.ID) (a cell.Authority, err error) {
	b, err := durable.ReadFile(durable.Disk(m.folder(id)), authorityFile)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(b, &a)
}

func (m *Manager) writeAuthority(id cell.ID, a cell.Authority) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return durable.WriteFile(durable.Disk(m.folder(id)), authorityFile, b, 0o600)
}

// TalkDir is the directory of the host that holds what a cell needs to talk.
func (m *Manager) TalkDir(id cell.ID) string { return filepath.Join(m.folder(id), talkFolder) }

// TalkSource is what a mount of a talking cell shows of that: a file, or all of it.
func (m *Manager) TalkSource(id cell.ID, mount *cell.Mount) string {
	if mount.Target == image.TalkDir {
		return m.TalkDir(id)
	}
	return filepath.Join(m.TalkDir(id), filepath.Base(mount.Source))
}

// WriteTalk writes what a cell that talks sees of its resolver and authority.
func (m *Manager) WriteTalk(c *state.Cell) error {
	a, err := m.authority(c)
	if err != nil {
		return err
	}
	link := cell.DefaultLink()
	return image.WriteTalk("/", m.TalkDir(c.ID), c.Setup.Mounts, c.Setup.TrustLists, []netip.Addr{link.Gateway4, link.Gateway6}, a.Cert)
}

// showDenials gives a living cell the files in which it reads what it was refused
// last: its own, in a folder of their own, so that forks inherit none.
func (m *Manager) showDenials(ctx context.Context, c *state.Cell, inst backend.Instance) error {
	if !c.Talks() {
		return nil
	}
	dir := filepath.Join(m.TalkDir(c.ID), image.DenialsFolder)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, name := range []string{image.DenialsText, image.DenialsLines} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return err
		}
		files = append(files, f)
		if err := f.Chmod(0o644); err != nil {
			return err
		}
	}
	return inst.ShowDenials(ctx, files[0], files[1])
}

// Governance is what a talking cell's gateway goes by now; nil for one that
// does not talk. run is the run that is about to go on in it, "" for none.
func (m *Manager) Governance(c *state.Cell, run cell.RunID) (*cell.Governance, error) {
	if !c.Talks() {
		return nil, nil
	}
	a, err := m.authority(c)
	if err != nil {
		return nil, err
	}
	if err := m.lendAnew(c); err != nil {
		return nil, err
	}
	g, err := m.rules(c, a)
	if err == nil {
		g.Credentials, g.Keys, g.Answers = m.lent(c), m.lentKeys(c), m.standing(c.ID, run)
	}
	return g, err
}

// rules is what the gateway of a cell goes by that was lent nothing.
func (m *Manager) rules(c *state.Cell, a cell.Authority) (*cell.Governance, error) {
	origins, err := json.Marshal(c.Setup.Origins)
	return &cell.Governance{Policy: json.RawMessage(c.Setup.PolicyText), Origins: origins, Authority: a, Resolvers: m.cfg.Resolvers, Roots: m.cfg.Roots, Proxy: m.cfg.Proxy, Turns: c.Agent != "", Services: c.ServiceNames(), Offline: c.Offline}, err
}

// lendAnew lends a cell what its policy says and it never had: a fork starts
// without what its parent was lent. What was taken back stays so.
func (m *Manager) lendAnew(c *state.Cell) error {
	if _, err := m.cfg.Records.Cell(c.ID); err != nil {
		return nil // a check's cell, which no record names
	}
	var handles []string
	for _, h := range c.Setup.Handles {
		if _, had := m.cfg.Records.Lending(c.ID, h); !had {
			handles = append(handles, h)
		}
	}
	_, _, err := m.Lend(c, handles)
	return err
}

// lockRules waits for the lock of what a cell's gateway goes by. It is held from when that is
// looked up until the gateway has it and it is recorded: a gateway never goes back to what was in
// force before.
func (m *Manager) lockRules(ctx context.Context, id cell.ID) (release func(), err error) {
	return m.rulesLocks.Acquire(ctx, id, "govern", nil)
}

// putInForce makes the gateway of an instance go by what is in force now. The caller holds the
// lock of lockRules.
func (m *Manager) putInForce(ctx context.Context, c *state.Cell, inst backend.Instance, run cell.RunID) error {
	g, err := m.Governance(c, run)
	if err != nil || g == nil {
		return err
	}
	return inst.Govern(ctx, *g)
}

// Refresh puts what a living cell is governed by into force as it is now
// recorded: at once, also for its open connections. A cell at rest gets it when
// it comes to life.
func (m *Manager) Refresh(ctx context.Context, id cell.ID) error {
	unlock, err := m.lockRules(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return err
	}
	inst, release, err := m.cfg.Instances().RefOf(&c)
	if inst == nil {
		return err
	}
	defer release()
	return m.putInForce(ctx, &c, inst, m.cfg.RunIn(id))
}
