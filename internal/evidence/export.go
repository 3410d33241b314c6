package evidence

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// Export writes a run's folder, its record and its receipts into w, as a tar archive with one
// folder, named after the run.
func (m *Manager) Export(id cell.RunID, w io.Writer) error {
	r, err := m.cfg.Records.Run(id)
	if err != nil {
		return err
	}
	var bundle []byte
	if len(r.Receipts) > 0 {
		entry, err := m.cfg.Ledger.Find(r.Receipts[0])
		if err != nil {
			return err
		}
		if bundle, err = m.bundle(entry.Index, entry.Index+1); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(r.Folder)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries { // before anything is written: a file that is no record is not left out in silence
		if !e.Type().IsRegular() {
			return noRecord(filepath.Join(r.Folder, e.Name()))
		}
	}
	t := tar.NewWriter(w)
	add := func(name string, size int64, body io.Reader) error {
		h := &tar.Header{Name: r.ID + "/" + name, Mode: 0o600, Size: size, ModTime: r.Created, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.CopyN(t, body, size)
		return err
	}
	for _, e := range entries {
		f, err := OpenRecord(r.Folder, e.Name())
		if err != nil {
			return err
		}
		st, err := f.Stat()
		if err == nil {
			err = add(e.Name(), st.Size(), f)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	record, err := json.MarshalIndent(r.API(), "", "  ")
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{"run.json": append(record, '\n'), "receipts.json": bundle} {
		if b == nil {
			continue
		}
		if err := add(name, int64(len(b)), bytes.NewReader(b)); err != nil {
			return err
		}
	}
	return t.Close()
}

// Log opens one of a run's files.
func (m *Manager) Log(id cell.RunID, name string) (*os.File, error) {
	r, err := m.cfg.Records.Run(id)
	if err != nil {
		return nil, err
	}
	if name != "applied.patch" && !slices.Contains(SealedFiles(), name) {
		return nil, cell.Errorf(cell.NotFound, "evidence.Log", "", "a run keeps no %q", name)
	}
	f, err := OpenRecord(r.Folder, name)
	if errors.Is(err, os.ErrNotExist) && r.ErasedFile(name) != nil {
		return nil, m.gone("evidence.Log", &r, name, name, "")
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, cell.Errorf(cell.NotFound, "evidence.Log", "", "run %s has no %s", id, name)
	}
	return f, err
}
