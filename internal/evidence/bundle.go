package evidence

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// A Bundle is what proves some receipts elsewhere, before it is written: see docs/format.md.
type Bundle struct {
	m         *Manager
	selection receipt.Selection
	files     []receipt.ArchiveFile
	contents  receipt.Contents
}

// Bundle collects the receipts of runs, cells and receipts, what leads to them and what was decided on them, as far as the
// caller sees it; "all" is the whole ledger.
func (m *Manager) Bundle(r Reader, of []string, dir string) (*Bundle, error) {
	c := collection{m: m, r: r, in: map[int64]bool{}}
	head := m.cfg.Ledger.Head()
	if slices.Contains(of, "all") {
		return m.bundleOf(receipt.Selection{Head: head, Indexes: upTo(0, head.Size)})
	}
	if len(of) == 0 {
		of = []string{""}
	}
	for _, sel := range of {
		if err := c.choose(sel, dir); err != nil {
			return nil, err
		}
	}
	if err := c.follow(); err != nil {
		return nil, err
	}
	head = m.cfg.Ledger.Head() // of all that was found
	return m.bundleOf(receipt.Selection{Head: head, Indexes: slices.Sorted(maps.Keys(c.in))})
}

// BundleFrom collects the receipts with indexes from up to, but not including, to, as they are copied off the machine.
func (m *Manager) BundleFrom(from, to int64) (*Bundle, error) {
	if from < 0 || from >= to {
		return nil, cell.Errorf(cell.Invalid, "evidence.Bundle", "", "receipts %d to %d are none", from, to)
	}
	head, err := m.cfg.Ledger.HeadAt(to)
	if err != nil {
		return nil, err
	}
	return m.bundleOf(receipt.Selection{Head: head, Indexes: upTo(from, to), Since: from})
}

func upTo(from, to int64) []int64 {
	list := make([]int64, 0, to-from)
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

// A collection is the receipts that a bundle is to have.
type collection struct {
	m    *Manager
	r    Reader
	in   map[int64]bool
	open []receipt.Entry // those that were not followed yet
}

// choose adds what the caller asks for.
func (c *collection) choose(sel, dir string) error {
	if c.isCell(sel, dir) {
		return nil
	}
	entry, err := c.m.find(c.r, sel, dir)
	if err != nil {
		return err
	}
	c.add(entry)
	return nil
}

// isCell adds the runs of a cell and what made it, if it is a cell that is asked for.
func (c *collection) isCell(sel, dir string) bool {
	if sel == "" || strings.HasPrefix(sel, "r-") || strings.Contains(sel, ":") {
		return false
	}
	id, err := c.r.SelectCell(sel, dir)
	if err != nil {
		return false
	}
	before := len(c.in)
	for _, r := range c.m.cfg.Records.Runs(id) {
		c.named(r.AllReceipts()...)
	}
	if of, err := c.m.cfg.Records.Cell(id); err == nil {
		c.named(of.Acts...)
	}
	c.named(c.m.parents(id)...)
	return len(c.in) > before
}

func (c *collection) add(entry receipt.Entry) {
	if !c.in[entry.Index] && c.r.sees(entry) {
		c.in[entry.Index] = true
		c.open = append(c.open, entry)
	}
}

// named adds receipts by their digests. What is not in the ledger is named by verification.
func (c *collection) named(ids ...string) {
	for _, id := range ids {
		if entry, err := c.m.cfg.Ledger.Find(id); err == nil {
			c.add(entry)
		}
	}
}

// follow adds what receipts come from, and what was decided on their runs.
func (c *collection) follow() error {
	for asked := len(c.open); len(c.open) > 0; asked-- {
		entry := c.open[0]
		c.open = c.open[1:]
		s, err := entry.Statement()
		if err != nil {
			return err
		}
		var p struct {
			Run     string          `json:"run"`
			Runs    []state.Decided `json:"runs"`
			Parents []string        `json:"parents"`
		}
		if err := unmarshal(s.Predicate, &p); err != nil {
			return err
		}
		c.named(p.Parents...)
		if run, err := c.m.cfg.Records.Run(cell.RunID(p.Run)); err == nil && s.PredicateType == receipt.PredicateRun {
			c.named(run.AllReceipts()...)
		}
		for _, d := range p.Runs {
			if asked > 0 { // a decision that was asked for itself; others may be on many runs
				c.named(d.Receipt)
			}
		}
	}
	return nil
}

func (m *Manager) bundleOf(s receipt.Selection) (*Bundle, error) {
	if len(s.Indexes) == 0 {
		return nil, cell.Errorf(cell.NotFound, "evidence.Bundle", "", "there are no receipts yet")
	}
	public := m.cfg.Ledger.Keys().Current()
	b := &Bundle{m: m, selection: s, contents: receipt.Contents{Pando: m.cfg.Version, Head: s.Head, Receipts: s.Indexes}}
	receipts, err := m.cfg.Ledger.SelectionFile(s)
	if err != nil {
		return nil, err
	}
	b.files = []receipt.ArchiveFile{receipt.ArchiveText(receipt.ArchiveReadme, []byte(fmt.Sprintf(readme, public.ID()))),
		receipt.ArchiveText(receipt.ArchiveKey, append([]byte("Came with what it is to verify: compare it with one got another way.\n"), public.PEM()...)), receipts}
	for _, index := range s.Indexes {
		entry, err := m.cfg.Ledger.Entry(index)
		if err == nil {
			err = b.addRun(entry)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

const readme = `Signed receipts of what pando ran, and the files that they name. They are verified with the public
key of the installation, the digest of which is %s.
The file key.pub proves nothing by itself: get the key, or its digest, another way.

    pando receipt key > pando.pub                   on the machine where it ran
    python3 verify.py THIS.tar --key pando.pub      docs/verify/verify.py of pando's source; Python alone
    pando receipt verify THIS.tar --key pando.pub   the same with pando

contents.json lists all files, signed. A policy's text is in the receipts of its runs.
`

// addRun adds the files that the receipt of a run names.
func (b *Bundle) addRun(entry receipt.Entry) error {
	s, err := entry.Statement()
	if err != nil || s.PredicateType != receipt.PredicateRun {
		return err
	}
	var p runPredicate
	if err := unmarshal(s.Predicate, &p); err != nil {
		return err
	}
	run, gone := b.m.cfg.Records.Run(cell.RunID(p.Run))
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		path := receipt.ArchiveRun(p.Run, name)
		open := func() (*os.File, error) { return OpenRecord(run.Folder, name) }
		size, err := int64(0), gone
		if err == nil {
			size, err = sizeOf(open)
		}
		if errors.Is(err, os.ErrNotExist) || gone != nil {
			b.contents.Absent = append(b.contents.Absent, path)
			continue
		}
		if err != nil {
			return err
		}
		b.files = append(b.files, receipt.ArchiveFile{Name: path, Size: size, Open: func() (io.ReadCloser, error) { return open() }})
	}
	return b.addSLSA(entry, s, &p)
}

// Write writes it as a tar archive. What can be refused was refused before: an error breaks the archive off, which its
// verification shows.
func (b *Bundle) Write(w io.Writer) error {
	return b.m.cfg.Ledger.WriteArchive(w, b.files, b.contents)
}

func sizeOf(open func() (*os.File, error)) (int64, error) {
	f, err := open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
