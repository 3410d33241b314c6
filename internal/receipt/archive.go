package receipt

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"io"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The files of a bundle as an archive, beside those of runs and views.
const (
	ArchiveReceipts = "receipts.json"
	ArchiveKey      = "key.pub"
	ArchiveReadme   = "README"
	ArchiveContents = "contents.json" // the last one
)

// ArchiveRun is the path of a file of a run.
func ArchiveRun(run, name string) string { return "runs/" + run + "/" + name }

// Contents is what the last file of a bundle says, signed: that these are all of its files, by the subjects of the statement,
// and these all of its receipts.
type Contents struct {
	Pando    string   `json:"pando"` // version
	Head     Head     `json:"head"`
	Receipts []int64  `json:"receipts"`
	Absent   []string `json:"absent,omitempty"` // files that receipts name, and that the installation did not have any more
}

// An ArchiveFile is one file of a bundle.
type ArchiveFile struct {
	Name string
	Size int64
	Open func() (io.ReadCloser, error)
}

// ArchiveText is a file of a bundle that is made for it.
func ArchiveText(name string, text []byte) ArchiveFile {
	return ArchiveFile{name, int64(len(text)), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }}
}

// WriteArchive writes a bundle as a tar archive: files in their order, and then their signed list. It has no more in memory
// than the list. The same files make the same archive.
func (l *Ledger) WriteArchive(w io.Writer, files []ArchiveFile, c Contents) error {
	if _, keys := l.signing(); keys.last().change != c.Head.change {
		return cell.Errorf(cell.Unavailable, "receipt.WriteArchive", "try again", "cannot write a bundle: the ledger's key was changed meanwhile")
	}
	t := tar.NewWriter(w)
	subjects := make([]Subject, 0, len(files))
	for _, f := range files {
		sum, err := writeArchived(t, f)
		if err != nil {
			return err
		}
		subjects = append(subjects, Subject{f.Name, sum})
	}
	list, err := l.Attest(PredicateContents, subjects, c)
	if err == nil {
		_, err = writeArchived(t, ArchiveText(ArchiveContents, append(list, '\n')))
	}
	if err != nil {
		return err
	}
	return t.Close()
}

func writeArchived(t *tar.Writer, f ArchiveFile) (cell.Digest, error) {
	err := t.WriteHeader(&tar.Header{Name: f.Name, Mode: 0o644, Size: f.Size, ModTime: time.Unix(0, 0)})
	if err != nil {
		return cell.Digest{}, err
	}
	r, err := f.Open()
	if err != nil {
		return cell.Digest{}, err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(t, h), r, f.Size); err != nil {
		return cell.Digest{}, err
	}
	return cell.Digest(h.Sum(nil)), nil
}

// SelectionFile is the file of a bundle with its receipts.
func (l *Ledger) SelectionFile(s Selection) (ArchiveFile, error) {
	var n counter
	if err := l.WriteSelection(&n, s); err != nil {
		return ArchiveFile{}, err
	}
	return ArchiveFile{ArchiveReceipts, int64(n), func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(l.WriteSelection(w, s)) }() // ends with its reader
		return r, nil
	}}, nil
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
