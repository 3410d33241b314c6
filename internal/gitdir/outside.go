//go:build linux

package gitdir

import (
	"context"
	"io"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/parse"
)

// IndexJob is the name of ParseIndexJob in package parse.
const IndexJob = "git-index"

// Index describes an index to read.
type Index struct {
	What    string      // its name in errors
	Key     cell.Digest // equal for inputs with equal content: see parse.Parser
	Size    int64
	HashLen int // see HashLen
}

// ParseIndex is ReadIndex, in a process of its own if the index is large.
func ParseIndex(ctx context.Context, outside *parse.Parser, x Index, r io.Reader) (*Set, error) {
	if x.Size <= inPlace {
		return ReadIndex(r, x.Size, x.HashLen)
	}
	names, err := outside.Do(ctx, x.What, x.Key, parse.Job{Name: IndexJob, Arg: int64(x.HashLen), Size: x.Size}, r)
	if err != nil {
		return nil, err
	}
	return decodeSet(names)
}

// ParseIndexJob is the part of ParseIndex that runs in the other process.
func ParseIndexJob(r io.Reader, job parse.Job) ([]byte, error) {
	s, err := ReadIndex(r, job.Size, int(job.Arg))
	if err != nil {
		return nil, err
	}
	return s.names, nil
}
