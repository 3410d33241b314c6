package engine

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sort"

	"github.com/pando-dev/pando/internal/state"
)

// exportRun writes a run's folder, its record and its receipts as a tar
// archive with one folder, named after the run.
func exportRun(r *state.Run, bundle []byte, w io.Writer) error {
	entries, err := os.ReadDir(r.Folder)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries { // before anything is written: what is no record is not left out in silence
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
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	for _, e := range entries {
		f, err := openRecord(r.Folder, e.Name())
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
