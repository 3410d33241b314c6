package result

import (
	"bytes"
	"io"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// Bounds of the contents that are kept while a report is made, in bytes. What is beyond them is read again.
const (
	recallAll  = 64 << 20
	recallFile = 1 << 20
)

// recalled keeps the contents of small files, so that each is opened, read and verified once: counts of lines, the rules of findings
// and the diff all look at the same files. It is used by one goroutine.
type recalled struct {
	*kept
	contents workspace.Contents
}

// kept are contents by their digest, of both sides of a comparison.
type kept struct {
	left  int64 // bytes that may still be added
	files map[cell.Digest][]byte
}

// recall returns both sides with contents that are read once.
func recall(a, b workspace.Side) (workspace.Side, workspace.Side) {
	k := &kept{left: recallAll, files: map[cell.Digest][]byte{}}
	a.Contents, b.Contents = &recalled{k, a.Contents}, &recalled{k, b.Contents}
	return a, b
}

// Open implements workspace.Contents. Only what was read to its end, and had the digest of its entry, is kept.
func (r *recalled) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	if b, ok := r.files[e.Digest]; ok && int64(len(b)) == e.Size {
		return io.NopCloser(bytes.NewReader(b)), nil
	}
	f, err := r.contents.Open(path, e)
	if err != nil || e.Size > recallFile || e.Size > r.left {
		return f, err
	}
	defer f.Close()
	b, err := bound.ReadAll(f, path, e.Size)
	switch {
	case bound.Exceeded(err) != nil, err == nil && int64(len(b)) < e.Size:
		return nil, cell.Errorf(cell.Corrupt, "result.Examine", "", "cannot read %s: it is not what the tree recorded", path)
	case err != nil:
		return nil, err
	}
	r.files[e.Digest] = b
	r.left -= e.Size
	return io.NopCloser(bytes.NewReader(b)), nil
}
